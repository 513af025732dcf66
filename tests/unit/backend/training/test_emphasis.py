"""What an edit changes, and how the first thought begins, counts for more in the loss."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from k3agent.backend.chat.template import render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.training import encode
from k3agent.backend.training.emphasis import (
    CHANGE_WEIGHT,
    CHOICE_TOKENS,
    CHOICE_WEIGHT,
    REASON_WEIGHT,
    answer_weights,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_dir(encode.NANO)


def weighed(
    tokenizer: Tokenizer, old: str, new: str, thought: str = "", is_first: bool = False
) -> list[tuple[str, float]]:
    arguments = json.dumps({"path": "a.py", "old": old, "new": new, "line": 3})
    call = {"id": "edit:0", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    return weighed_thought(tokenizer, thought or f"Line 3 is wrong. It must be: {new}", [call], is_first)


def weighed_thought(
    tokenizer: Tokenizer, thought: str, calls: Sequence[Mapping[str, Any]] = (), is_first: bool = False
) -> list[tuple[str, float]]:
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": thought}
    if calls:
        message["tool_calls"] = list(calls)
    ids = render_assistant(tokenizer, message)
    weights = answer_weights(tokenizer, message, ids, is_first)
    assert len(weights) == len(ids)
    return [(tokenizer.decode([i]), weight) for i, weight in zip(ids, weights, strict=True)]


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("return len(values)", "return sum(values)", "sum"),
        ("if a <= b:", "if a >= b:", ">"),
        ("total = x", "total += x", "+"),
        ("return a, b, c", "return a, c", "c"),
        ("x = 1", "x = 1\ny = 2", "y = 2"),
    ],
)
def test_what_differs_counts_more_in_thought_and_argument(
    tokenizer: Tokenizer, old: str, new: str, changed: str
) -> None:
    pieces = weighed(tokenizer, old, new)
    heavy = "".join(text for text, weight in pieces if weight == CHANGE_WEIGHT)
    assert heavy.count(changed) == 2 and len(heavy) <= 2 * len(changed) + 8
    assert {weight for _, weight in pieces} == {1.0, CHANGE_WEIGHT}


def test_only_the_argument_where_the_thought_does_not_say_it(tokenizer: Tokenizer) -> None:
    pieces = weighed(tokenizer, "return len(values)", "return sum(values)", "Something must change.")
    assert "".join(text for text, weight in pieces if weight == CHANGE_WEIGHT) == "sum"


def test_the_first_thought_begins_with_a_choice(tokenizer: Tokenizer) -> None:
    pieces = weighed(tokenizer, "return len(values)", "return sum(values)", "It must be a sum. Edit.", True)
    assert [weight for _, weight in pieces[:CHOICE_TOKENS]] == [CHOICE_WEIGHT] * CHOICE_TOKENS
    assert pieces[CHOICE_TOKENS][1] == 1.0


@pytest.mark.parametrize(
    ("old", "new", "thought", "changed"),
    [
        ("f(a, b)\ng(c)", "f(a, x)\ng(d)", "Edit.", "xd"),
        ("gone\n", "", "Remove it.", "<|close|>"),
        ("his end", "its end", "Line 3 is wrong. his -> its", "3" + "its" * 2),
        ("a < b", "a <= b", "It still fails. Try < -> <=.", "=="),
    ],
)
def test_only_what_differs_counts_more(
    tokenizer: Tokenizer, old: str, new: str, thought: str, changed: str
) -> None:
    pieces = weighed(tokenizer, old, new, thought)
    heavy = "".join(text.strip() for text, weight in pieces if weight == CHANGE_WEIGHT)
    assert heavy == changed


def test_the_line_and_what_decides_for_it_count_more(tokenizer: Tokenizer) -> None:
    thought = (
        "assert 2 == 9. It is too low. Nothing reads b.c: look. Line 14 has return a. Try a -> d: return d"
    )
    pieces = weighed(tokenizer, "return a", "return d", thought)
    reason = "".join(text for text, weight in pieces if weight == REASON_WEIGHT)
    assert reason.strip() == "Nothing reads b.c: look."
    heavy = "".join(text for text, weight in pieces if weight == CHANGE_WEIGHT)
    assert heavy.replace(" ", "") == "14ddd"


def test_a_correction_before_the_search_counts_more(tokenizer: Tokenizer) -> None:
    pieces = weighed_thought(tokenizer, "Correct resXponse -> response. Find it.")
    heavy = "".join(text for text, weight in pieces if weight > 1)
    assert "s" in heavy and len(heavy) <= len("response") + 1


def test_what_stands_behind_the_number_of_a_task_is_a_choice(tokenizer: Tokenizer) -> None:
    thought = "The diff shows it. Task 2 of 3: Rename a to b. Find a as a word, everywhere."
    pieces = weighed_thought(tokenizer, thought)
    heavy = "".join(text for text, weight in pieces if weight > 1)
    assert heavy.strip().startswith("Rename a to") and "everywhere" not in heavy
    assert sum(weight == CHOICE_WEIGHT for _, weight in pieces) == CHOICE_TOKENS


@pytest.mark.parametrize(
    "said",
    [
        "keppt stands only in line 9; line 4 has kept: p is too much.",
        "self_a stands only in line 9; line 9 also has self_ab: b is missing.",
        "Line 3 has keppt: pp for p.",
    ],
)
def test_where_a_name_is_written_wrongly_counts_more(tokenizer: Tokenizer, said: str) -> None:
    pieces = weighed(tokenizer, "return keppt", "return kept", f"It fails. {said} keppt -> kept")
    heavy = "".join(text for text, weight in pieces if weight == CHANGE_WEIGHT)
    assert said in heavy

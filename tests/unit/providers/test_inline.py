"""Calls and markers in the text: read whole however the pieces are cut, prose left alone."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from k3agent.providers.inline import (
    Found,
    TextWatcher,
    _Shown,
    parse_json_calls,
    parse_markers,
    without_repeats,
)

TOOLS = frozenset({"read", "shell"})


def watch(
    text: str, sizes: list[int], *, is_lenient: bool = True
) -> tuple[str, list[tuple[str, str]], Found]:
    watcher = TextWatcher(TOOLS, is_lenient=is_lenient)
    shown, at = "", 0
    for size in [*sizes, len(text)]:
        shown += watcher.feed(text[at : at + size])
        at += size
    found = watcher.finish()
    return shown + ("" if found.is_leak else found.text), [*watcher.calls, *found.calls], found


PROSE = st.lists(
    st.sampled_from(
        ["a ", "`", "```", "```json\n", "{", "}", "[", "\n", "<", "<|", "|>", "<tool", "x<|y", '"', "é"]
    ),
    max_size=14,
).map("".join)


@given(PROSE, st.lists(st.integers(1, 5), max_size=20))
def test_text_without_calls_comes_out_as_it_went_in(text: str, sizes: list[int]) -> None:
    shown, calls, _ = watch(text, sizes)
    assert (shown, calls) == (text, [])


PARTS = st.lists(
    st.sampled_from(
        [
            "```json\n",
            '{"name": "read", "arguments": {"a": "`"}}',
            "\n```",
            "```\n",
            "\n",
            " ",
            "word",
            "[1",
            "`",
        ]
    ),
    max_size=10,
).map("".join)


@example('```json\n```json\n```json\n{"name": "read", "arguments": {"a": "`"}}', [])
@given(PARTS, st.lists(st.integers(1, 9), max_size=30))
def test_fences_are_read_alike_however_they_come(text: str, sizes: list[int]) -> None:
    assert watch(text, sizes)[:2] == watch(text, [1] * len(text))[:2]


@given(PROSE, PROSE)
def test_whether_a_block_is_open_is_known_without_the_text(first: str, more: str) -> None:
    shown = _Shown()
    for letter in first:
        shown.add(letter)
    assert shown.in_fence(more) == ((first + more).count("```") % 2 == 1)
    assert shown.last(more) == (first + more)[-1:]
    assert shown.is_blank == (not first.strip())


CALL = (
    '<|open|>call tool="shell" index="1"<|sep|>'
    '<|open|>argument key="command" type="string"<|sep|>{}<|close|>argument'
)
K3 = "<|open|>tools<|sep|>" + CALL + "<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"


@given(
    st.text(st.characters(exclude_characters="<|"), max_size=40), st.lists(st.integers(1, 30), max_size=20)
)
def test_k3_markup_is_read_letter_for_letter(command: str, sizes: list[int]) -> None:
    shown, calls, found = watch("Now: " + K3.format(command), sizes, is_lenient=False)
    assert shown == "Now: "
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("shell", {"command": command})]
    assert found.had_markers


def test_argument_types_and_escapes() -> None:
    markup = (
        '<|open|>call tool="a&quot;b&amp;c" index="1"<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|>'
        '<|open|>argument key="o" type="object"<|sep|>{"x": [1]}<|close|>argument<|sep|>'
        '<|open|>argument key="bad" type="number"<|sep|>three<|close|>argument<|sep|><|close|>call<|sep|>'
    )
    name, arguments = parse_markers(markup).calls[0]
    assert name == 'a"b&c'
    assert json.loads(arguments) == {"n": 3, "o": {"x": [1]}, "bad": "three"}


def test_channels_without_calls() -> None:
    found = parse_markers(
        "<|open|>response<|sep|>Hello.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )
    assert (found.text, found.is_leak) == ("Hello.", False)
    found = parse_markers("<|close|>think<|sep|><|open|>response<|sep|>Hi")
    assert (found.text, found.is_leak) == ("Hi", False)


@pytest.mark.parametrize("markup", [K3.format("ls")[:60], "<|open|>tools<|sep|>junk", "<|open|>call tool="])
def test_broken_markup_is_a_leak(markup: str) -> None:
    found = parse_markers(markup)
    assert found.is_leak
    assert "<|" not in found.text or "tool=" in found.text


def test_k2_markup() -> None:
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>"
        '{"path": "a"}<|tool_call_end|><|tool_calls_section_end|>'
    )
    assert parse_markers(text).calls == [("read", '{"path": "a"}')]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"name": "read", "arguments": {"path": "a"}}', ["read"]),
        (
            '[{"name": "read", "arguments": {}}, {"name": "shell", "parameters": {"command": "x"}}]',
            ["read", "shell"],
        ),
        (
            '{"type": "function", "function": {"name": "read", "arguments": "{\\"path\\": \\"a\\"}"}}',
            ["read"],
        ),
        ('{"name": "other", "arguments": {}}', []),
        ('{"name": "read"}', []),
        ('{"name": "read", "arguments": []}', []),
        ("[]", []),
        ("nothing", []),
    ],
)
def test_json_calls(text: str, names: list[str]) -> None:
    assert [name for name, _ in parse_json_calls(text, TOOLS)] == names


def test_several_fences_with_text_between() -> None:
    call = '```json\n{"name": "read", "arguments": {"path": "%s"}}\n```\n'
    shown, calls, _ = watch("First.\n" + call % "a" + "Then.\n" + call % "b", [3] * 60)
    assert [json.loads(arguments)["path"] for _, arguments in calls] == ["a", "b"]
    assert shown == "First.\nThen.\n"


READ = '{"name": "read", "arguments": {"path": "%s"}}'


@pytest.mark.parametrize(
    ("text", "calls", "rest"),
    [
        # two calls one after the other, fenced and bare
        ("```json\n" + READ % "a" + "\n" + READ % "b" + "\n```", ["a", "b"], ""),
        (READ % "a" + "\n" + READ % "b", ["a", "b"], ""),
        # words behind a bare call
        (READ % "a" + "\n\nThat reads it.", ["a"], "That reads it."),
        # another language, a line break inside a string, braces that do not match
        ("```python\n" + READ % "a" + "\n```", ["a"], ""),
        ("```json\n" + READ % "a\nb" + "\n```", ["a\nb"], ""),
        ("```json\n" + READ[:-1] % "a" + "\n```", ["a"], ""),
        ("```json\n" + READ % "a" + "}\n```", ["a"], ""),
    ],
)
def test_habits_of_small_models(text: str, calls: list[str], rest: str) -> None:
    shown, found, _ = watch(text, [4] * 40)
    assert [(name, json.loads(arguments)["path"]) for name, arguments in found] == [
        ("read", path) for path in calls
    ]
    assert shown.strip() == rest


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (
            '```json\n{\n "name": "set RETRIES",\n "arguments": {"value": 5}\n}\n```',
            ("set RETRIES", '{"value": 5}'),
        ),
        ('```json\n{"name": "run_tests", "arguments": {"-q"}}\n```', ("run_tests", '{"-q"}')),
        ('```json\n{"name": "shell", "arguments": {"command": "cat <<E', ("shell", '{"command": "cat <<E')),
    ],
)
def test_an_answer_that_is_but_a_call_is_never_the_last_word(text: str, call: tuple[str, str]) -> None:
    """Unknown tools and broken arguments are for the dispatcher to refuse, so that the model hears of it."""
    shown, found, _ = watch(text, [4] * 40)
    assert (shown, found) == ("", [call])


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"name": "k3", "version": 1}\n```',
        '{"name": "k3", "arguments": {}, "main": "a.js"}',
        'Like so:\n```json\n{"name": "frob", "arguments": {}}\n```\nThat is the form.',
    ],
)
def test_json_about_other_things_stays(text: str) -> None:
    shown, found, _ = watch(text, [4] * 40)
    assert (shown, found) == (text, [])


def test_a_model_in_a_loop_is_one_call() -> None:
    text = '{"name": "frob", "arguments": {"x": 1}}\n' * 5 + '{"name": "frob", "argu'
    shown, found, _ = watch(text, [9] * 40)
    assert (shown, without_repeats(found)) == ("", [("frob", '{"x": 1}')])
    assert without_repeats([("a", "1"), ("b", "1"), ("a", "1"), ("a", "1")]) == [
        ("a", "1"),
        ("b", "1"),
        ("a", "1"),
    ]


def test_the_cut_one_of_several_calls_is_kept_as_it_is() -> None:
    text = READ % "a" + '\n{"name": "shell", "arguments": {"command": "ec'
    assert parse_json_calls(text, TOOLS) == [("read", '{"path": "a"}'), ("shell", '{"command": "ec')]

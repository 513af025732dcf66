"""The output parser: the round-trip law, streaming in pieces, and the damaged forms seen in the field."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.backend.chat.answers import SampledAnswers
from k3agent.backend.chat.parser import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    OutputParser,
    ReasoningDelta,
    ReasoningWasText,
    TextDelta,
)
from k3agent.backend.chat.template import render, render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer

MARKERS = ("open", "close", "sep", "end_of_msg")


def ids_of(tokenizer: Tokenizer, markup: str) -> list[int]:
    """Ids of markup in which [open], [close], [sep] and [end_of_msg] stand for the special tokens."""
    ids: list[int] = []
    rest = markup
    while rest:
        places = [(rest.find(f"[{name}]"), name) for name in MARKERS if f"[{name}]" in rest]
        if not places:
            return ids + tokenizer.encode(rest)
        place, name = min(places)
        ids += [*tokenizer.encode(rest[:place]), tokenizer.special(f"<|{name}|>")]
        rest = rest[place + len(name) + 2 :]
    return ids


def parse(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int] | None = None, **options: Any
) -> OutputParser:
    parser = OutputParser(tokenizer, **options)
    position = 0
    for size in sizes or []:
        parser.feed(ids[position : position + size])
        position += size
    parser.feed(ids[position:])
    parser.finish()
    return parser


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(TEXT, VALUE, max_size=4)
BROKEN = st.sampled_from(['{"a": ', "nothing", "{'x': 1}", '{"a": "b" "c"}'])
CALL = st.builds(
    lambda name, arguments: {
        "type": "function",
        "function": {
            "name": name,
            "arguments": arguments
            if isinstance(arguments, str)
            else json.dumps(arguments, ensure_ascii=False),
        },
    },
    TEXT.filter(bool),
    ARGUMENTS | BROKEN,
)
MESSAGE = st.fixed_dictionaries(
    {
        "reasoning_content": TEXT.map(lambda text: text if text.strip() else "").filter(
            lambda text: not text.startswith("<|open|>")
        ),
        "content": TEXT,
        "tool_calls": st.lists(CALL, max_size=3),
    }
)


def essence(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []
    ]
    return message["reasoning_content"], message["content"], calls


@settings(max_examples=150, deadline=None)
@given(message=MESSAGE, sizes=st.lists(st.integers(1, 9), max_size=40))
def test_parse_undoes_render(kimi: Tokenizer, message: dict[str, Any], sizes: list[int]) -> None:
    ids = render_assistant(kimi, message)
    parser = parse(kimi, ids, sizes)
    assert parser.is_ended
    assert parser.damage == []
    parsed = parser.message()
    assert essence(parsed) == essence(message)
    assert all(call.is_complete for call in parser.calls)
    assert render_assistant(kimi, parsed) == ids


@settings(max_examples=50, deadline=None)
@given(message=MESSAGE)
def test_events_joined_are_the_message(kimi: Tokenizer, message: dict[str, Any]) -> None:
    parser = OutputParser(kimi)
    events = [event for token_id in render_assistant(kimi, message) for event in parser.feed([token_id])]
    events += parser.finish()
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == parser.reasoning
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == parser.text
    for index, call in enumerate(parser.calls):
        joined = "".join(e.text for e in events if isinstance(e, ArgumentsDelta) and e.index == index)
        assert joined == call.arguments
    assert [e.index for e in events if isinstance(e, CallEnded)] == list(range(len(parser.calls)))
    order = [type(e) for e in events if not isinstance(e, ArgumentsDelta)]
    assert order == sorted(order, key=lambda t: {ReasoningDelta: 0, TextDelta: 1}.get(t, 2))


@settings(max_examples=200, deadline=None)
@given(
    data=st.lists(
        st.sampled_from(MARKERS)
        | st.sampled_from(
            [
                "think",
                "response",
                "tools",
                "call",
                ' tool="f"',
                "argument",
                ' key="k"',
                ' type="number"',
                "json",
                "1",
            ]
        ),
        max_size=40,
    )
)
def test_no_marker_ever_leaks(kimi: Tokenizer, data: list[str]) -> None:
    markup = "".join(f"[{item}]" if item in MARKERS else item for item in data)
    parser = parse(kimi, ids_of(kimi, markup))
    shown = json.dumps(parser.message())
    assert not any(f"<|{name}|>" in shown for name in MARKERS)
    for call in parser.calls:
        if call.is_complete and "json" not in data:
            assert isinstance(json.loads(call.arguments), dict)


CALL_MARKUP = (
    '[open]call tool="read" index="1"[sep][open]argument key="path" type="string"[sep]a.py'
    "[close]argument[sep][close]call[sep]"
)
READ = [("read", '{"path": "a.py"}')]


@pytest.mark.parametrize(
    ("markup", "reasoning", "content", "calls"),
    [
        pytest.param(
            "t[open]response[sep]r[close]message[sep][end_of_msg]", "t", "r", [], id="message-close"
        ),
        pytest.param(
            "t[open]tools[sep]" + CALL_MARKUP + "[close]tools[sep][close]message[sep][end_of_msg]",
            "t",
            None,
            READ,
            id="think-never-closed",
        ),
        pytest.param(
            "Hello.[close]response[sep][close]message[sep][end_of_msg]", "", "Hello.", [], id="bare-close"
        ),
        pytest.param("still thinking", "still thinking", None, [], id="cut-in-think"),
        pytest.param("[open]think[sep]t[close]think[sep]", "t", None, [], id="opener-again"),
        pytest.param("<|open|>think<|sep|>t[close]think[sep]", "t", None, [], id="opener-spelled"),
        pytest.param("t[close]think[sep][open]respo", "t", None, [], id="cut-in-marker"),
        pytest.param("t[close]think[sep]r[end_of_msg]", "t", "r", [], id="no-response-opener"),
        pytest.param(
            "t[close]think[sep]" + CALL_MARKUP.replace("[close]argument[sep]", "") + "[end_of_msg]",
            "t",
            None,
            READ,
            id="no-tools-element-no-argument-close",
        ),
        pytest.param(
            't[close]think[sep][open]tools[sep][open]call tool="f"[sep]'
            '[open]argument key="n" type="number"[sep]1,5'
            "[close]argument[sep][close]call[sep][close]tools[sep][end_of_msg]",
            "t",
            None,
            [("f", '{"n": "1,5"}')],
            id="undecodable-number",
        ),
        pytest.param(
            't[close]think[sep][open]tools[sep][open]call tool="a&amp;&quot;b"[sep][close]call[sep]',
            "t",
            None,
            [('a&"b', "{}")],
            id="escapes",
        ),
        pytest.param(
            "t[close]think[sep][open]response[sep]a[sep]b[close]foo[sep]c[end_of_msg]", "t", "abc", []
        ),
    ],
)
def test_damage(
    kimi: Tokenizer, markup: str, reasoning: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    parser = parse(kimi, ids_of(kimi, markup))
    assert (parser.reasoning, parser.message()["content"]) == (reasoning, content)
    assert [(call.name, call.arguments) for call in parser.calls] == calls


def test_a_bare_response_close_tells_the_stream(kimi: Tokenizer) -> None:
    parser = OutputParser(kimi)
    events = parser.feed(ids_of(kimi, "Hello.[close]response[sep]"))
    assert events[-1] == ReasoningWasText("Hello.")
    assert parser.num_reasoning_tokens == 0


def test_calls_without_declared_tools_are_dropped(kimi: Tokenizer) -> None:
    markup = "t[close]think[sep][open]response[sep]r[close]response[sep][open]tools[sep]" + CALL_MARKUP
    parser = parse(kimi, ids_of(kimi, markup), tools=())
    assert parser.message()["content"] == "r"
    assert parser.calls == []
    assert any("no tools are declared" in note for note in parser.damage)


@pytest.mark.parametrize("kind", ["string", "number"])
def test_a_cut_call_is_incomplete(kimi: Tokenizer, kind: str) -> None:
    cut = CALL_MARKUP.partition("[close]")[0].replace('"string"', f'"{kind}"')
    parser = parse(kimi, ids_of(kimi, "t[close]think[sep][open]tools[sep]" + cut))
    assert parser.is_call_open
    with pytest.raises(ValueError):
        json.loads(parser.calls[0].arguments)


def test_arguments_come_while_they_are_written(kimi: Tokenizer) -> None:
    parser = OutputParser(kimi)
    head = '[close]think[sep][open]tools[sep][open]call tool="w" index="1"[sep]'
    head += '[open]argument key="c" type="string"[sep]'
    started = parser.feed(ids_of(kimi, head))
    assert isinstance(started[0], CallStarted)
    assert parser.feed(kimi.encode('say "hi"')) == [ArgumentsDelta(0, 'say \\"hi\\"')]


def test_characters_are_never_cut(kimi: Tokenizer) -> None:
    parser = OutputParser(kimi, channel="response")
    ids = kimi.encode("🦀𓀀")
    assert len(ids) > 2
    pieces = [event.text for i in ids for event in parser.feed([i]) if isinstance(event, TextDelta)]
    assert "".join(pieces) == "🦀𓀀"
    assert "\ufffd" not in "".join(pieces)


def test_odd_tokens_come_back_as_sampled(kimi: Tokenizer) -> None:
    answers = SampledAnswers(kimi)
    question = {"role": "user", "content": "hi"}
    prompt = render(kimi, [question]).token_ids
    odd = [*(kimi.encode("h") + kimi.encode("ello")), *ids_of(kimi, "[close]think[sep][open]response[sep]ok")]
    odd += ids_of(kimi, "[close]response[sep][close]message[sep][end_of_msg]")
    message = parse(kimi, odd).message()
    answers.remember(prompt, message, odd)
    history = [question, message, {"role": "user", "content": "more"}]
    again = render(kimi, history, substitute=answers.substitute()).token_ids
    assert again[: len(prompt) + len(odd)] == prompt + odd
    elsewhere = [{"role": "user", "content": "other"}, *history[1:]]
    assert render(kimi, elsewhere, substitute=answers.substitute()) == render(kimi, elsewhere)


def test_kept_ids_are_bounded(kimi: Tokenizer) -> None:
    answers = SampledAnswers(kimi, max_ids=25)
    messages = [{"role": "assistant", "content": str(i), "reasoning_content": ""} for i in range(3)]
    for message in messages:
        answers.remember([1], message, [5] * 10)
    look_up = answers.substitute()
    found = [look_up([1], render_assistant(kimi, message)) for message in messages]
    assert found == [None, [5] * 10, [5] * 10]

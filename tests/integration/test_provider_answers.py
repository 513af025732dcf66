"""Answers of servers that go their own way: ids, arguments, markers and calls in the text."""

import json

import pytest
from support.talk import Talk, client_of

from k3agent.providers.scripted import ScriptedCall, ScriptedServer, Step
from k3agent.types import (
    Finish,
)


async def test_missing_and_doubled_ids_become_unique() -> None:
    twice = tuple(ScriptedCall(name="read", arguments={"path": name}, id="same") for name in "ab")
    script = [
        Step(calls=twice),
        Step(calls=(ScriptedCall(name="read", id="same"), ScriptedCall(name="read", id=None),
                    ScriptedCall(name="read", id=""))),
        Step(calls=twice, has_indexes=False),
        Step(text="done"),
    ]  # fmt: skip
    async with ScriptedServer(script) as server:
        talk = Talk(client_of(server))
        for number in range(3):
            message = await talk.ask("go" if number == 0 else None)
            assert all(call.name == "read" for call in message.calls)
            for call in message.calls:
                talk.answer(call, "ok")
        await talk.ask()
        body = server.requests[-1].json
    ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    assert len(ids) == 7
    assert len(set(ids)) == 7
    assert answered == ids
    assert all(ids)


async def test_broken_arguments_go_back_as_an_object() -> None:
    script = [Step(calls=(ScriptedCall(name="read", arguments='{"path": "a'),)), Step(text="ok")]
    async with ScriptedServer(script) as server:
        talk = Talk(client_of(server))
        call = (await talk.ask("go")).calls[0]
        assert call.arguments == '{"path": "a'
        talk.answer(call, "bad arguments for read", is_error=True)
        await talk.ask()
        messages = server.requests[1].json["messages"]
    sent = json.loads(messages[2]["tool_calls"][0]["function"]["arguments"])
    assert sent == {"invalid_arguments": '{"path": "a'}
    assert messages[3]["content"] == "Error: bad arguments for read"


async def test_arguments_cut_by_the_limit_are_no_tool_turn() -> None:
    cut = Step(calls=(ScriptedCall(name="read", arguments='{"path": "a'),), finish="length")
    odd = Step(calls=(ScriptedCall(name="read", arguments='{"path": "a"}'),), finish="unexpected_state")
    async with ScriptedServer([cut, odd]) as server:
        talk = Talk(client_of(server))
        await talk.ask("go")
        assert talk.finished.finish is Finish.LENGTH
        await talk.ask("go")
        assert talk.finished.finish is Finish.TOOL_CALLS


LEAKED = (
    '<|open|>tools<|sep|><|open|>call tool="read" index="1"<|sep|>'
    '<|open|>argument key="path" type="string"<|sep|>'
    "a.txt<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)


@pytest.mark.parametrize("channel", ["text", "reasoning"])
@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_leaked_markers_are_read_and_never_shown(channel: str, piece: int) -> None:
    step = Step(**{channel: f"I will look. {LEAKED}"}, piece=piece)
    async with ScriptedServer([step]) as server:
        talk = Talk(client_of(server))
        message = await talk.ask("go")
    assert [(call.name, json.loads(call.arguments)) for call in message.calls] == [
        ("read", {"path": "a.txt"})
    ]
    shown = message.text if channel == "text" else message.reasoning.text if message.reasoning else ""
    assert shown == "I will look. "
    assert talk.finished.finish is Finish.TOOL_CALLS
    assert "notice" in talk.finished.extra


async def test_unreadable_markers_are_asked_again_once() -> None:
    broken = Step(text='Now <|open|>tools<|sep|><|open|>call tool="read" index="1"<|sep|><|open|>argument')
    async with ScriptedServer([broken, Step(text="fine")]) as server:
        talk = Talk(client_of(server))
        assert (await talk.ask("go")).text == "fine"
        assert len(talk.retries) == 1
    async with ScriptedServer([broken, broken]) as server:
        talk = Talk(client_of(server))
        assert "<|" not in (await talk.ask("go")).text


@pytest.mark.parametrize(
    "text",
    [
        "The marker `<|open|>think<|sep|>` begins reasoning.",
        "Like this:\n```\n<|open|>tools<|sep|>\n```\nand so on.",
        'The format is "<|end_of_msg|>".',
        "a < b and <tool",
    ],
)
async def test_prose_about_markers_stays_as_it_is(text: str) -> None:
    async with ScriptedServer([Step(text=text, piece=3)]) as server:
        talk = Talk(client_of(server, dialect="open", model="qwen"))
        assert (await talk.ask("go")).text == text
    assert "notice" not in talk.finished.extra


INLINE = {
    "bare": '{"name": "read", "arguments": {"path": "a.txt"}}',
    "fence": 'I will read it.\n```json\n{"name": "read", "arguments": {"path": "a.txt"}}\n```\n',
    "tag": '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>',
}


@pytest.mark.parametrize("form", INLINE)
@pytest.mark.parametrize("piece", [2, 400])
async def test_calls_in_the_text_are_read_for_open_servers_only(form: str, piece: int) -> None:
    step = Step(text=INLINE[form], piece=piece)
    async with ScriptedServer([step, step]) as server:
        talk = Talk(client_of(server, dialect="open", model="qwen"), model="qwen")
        message = await talk.ask("go")
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == [
            ("read", {"path": "a.txt"})
        ]
        assert message.text.strip() == ("I will read it." if form == "fence" else "")
        assert "read from the text" in talk.finished.extra["notice"]
        assert "reasoning_effort" not in server.requests[0].json
        strict = await Talk(client_of(server)).ask("go")
        assert strict.text == step.text
        assert strict.calls == ()


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "other", "version": 1}',
        "[1, 2]",
        '```json\n{"a": 1}\n```\nThat is it.',
        "```\ncode\n```\n",
        "`x`",
    ],
)
async def test_other_json_and_code_stay_text(text: str) -> None:
    async with ScriptedServer([Step(text=text, piece=2)]) as server:
        message = await Talk(client_of(server, dialect="open", model="qwen")).ask("go")
    assert message.text == text
    assert message.calls == ()


async def test_an_answer_that_only_calls_an_unknown_tool_is_a_call() -> None:
    """The agent refuses it and names the tools; as text it would be the run's last word."""
    async with ScriptedServer([Step(text='{"name": "other", "arguments": {}}', piece=2)]) as server:
        message = await Talk(client_of(server, dialect="open", model="qwen")).ask("go")
    assert message.text == ""
    assert [(call.name, call.arguments) for call in message.calls] == [("other", "{}")]


async def test_an_answer_with_reasoning_only_is_asked_for_again_once() -> None:
    async with ScriptedServer([Step(reasoning="hm"), Step(reasoning="hm", text="yes")]) as server:
        talk = Talk(client_of(server))
        assert (await talk.ask("go")).text == "yes"
        assert len({recorded.body for recorded in server.requests}) == 1

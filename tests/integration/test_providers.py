"""The chat client against a real loopback server that follows a script, fault by fault."""

import asyncio
import json
import time
from datetime import UTC, datetime

import pytest

from k3agent.errors import ProviderError
from k3agent.errors import ProviderErrorKind as Kind
from k3agent.providers.base import ModelInfo
from k3agent.providers.chat import ChatClient, Endpoint, Timeouts
from k3agent.providers.dialects import DIALECTS, dialect_for
from k3agent.providers.retry import RetryPolicy
from k3agent.providers.scripted import FOREVER, Fault, Recorded, ScriptedCall, ScriptedServer, Step
from k3agent.types import (
    CallDelta,
    Delta,
    Effort,
    Finish,
    Finished,
    ImagePart,
    JsonObject,
    Message,
    MessageId,
    Origin,
    ReasoningDelta,
    ReasoningPart,
    Request,
    RetryDelta,
    Role,
    TextDelta,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)

KEY = "sk-test-0123456789abcdef"
READ = ToolSpec(
    name="read",
    description="Read a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
QUICK = RetryPolicy(max_retries=4, max_time_s=5.0)


def client_of(
    server: ScriptedServer, *, dialect: str = "moonshot", model: str = "kimi-k3", **options
) -> ChatClient:
    async def prepare() -> Endpoint:
        return Endpoint(base_url=server.url, api_key=KEY)

    info = ModelInfo(
        provider="test", model=model, base_url=server.url, context_window=262_144, max_output_tokens=32_000
    )
    options.setdefault("retry", QUICK)
    return ChatClient(info, DIALECTS.get(dialect) or dialect_for(server.url), prepare, **options)


class Talk:
    """A conversation as the agent keeps it: what was streamed becomes the next request's messages."""

    def __init__(self, client: ChatClient, **fields) -> None:
        self.client = client
        self.fields = {"model": "kimi-k3", "system": "Be brief.", "tools": (READ,), "effort": Effort.HIGH,
                       "cache_key": "s-1", **fields}  # fmt: skip
        self.messages: list[Message] = []
        self.deltas: list[Delta] = []

    def add(self, role: Role, *parts) -> Message:
        origin = {Role.USER: Origin.HUMAN, Role.TOOL: Origin.TOOL, Role.ASSISTANT: Origin.MODEL}[role]
        number = MessageId(f"m{len(self.messages)}")
        message = Message(
            id=number, parent=None, role=role, origin=origin, parts=tuple(parts), created_at=datetime.now(UTC)
        )
        self.messages.append(message)
        return message

    def request(self) -> Request:
        return Request(messages=tuple(self.messages), **self.fields)

    async def ask(self, text: str | None = None) -> Message:
        if text is not None:
            self.add(Role.USER, TextPart(text=text))
        self.deltas = [delta async for delta in self.client.stream(self.request())]
        return self.add(Role.ASSISTANT, *parts_of(self.deltas))

    def answer(self, call: ToolCall, text: str, *, is_error: bool = False) -> None:
        result = ToolResult(call_id=call.id, content=(TextPart(text=text),), is_error=is_error)
        self.add(Role.TOOL, result)

    @property
    def finished(self) -> Finished:
        assert isinstance(self.deltas[-1], Finished)
        return self.deltas[-1]

    @property
    def retries(self) -> list[RetryDelta]:
        return [delta for delta in self.deltas if isinstance(delta, RetryDelta)]


def parts_of(deltas: list[Delta]) -> list:
    last = max((i for i, delta in enumerate(deltas) if isinstance(delta, RetryDelta)), default=-1)
    deltas = deltas[last + 1 :]
    parts: list = []
    reasoning = [delta for delta in deltas if isinstance(delta, ReasoningDelta)]
    if reasoning:
        details = tuple(entry for delta in reasoning for entry in delta.details or ())
        parts.append(ReasoningPart(text="".join(delta.text for delta in reasoning), details=details or None))
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    if text:
        parts.append(TextPart(text=text))
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if isinstance(delta, CallDelta):
            old = calls.get(delta.index)
            calls[delta.index] = ToolCall(
                id=old.id if old else delta.id or "",
                name=old.name if old else delta.name or "",
                arguments=(old.arguments if old else "") + delta.arguments,
            )
    return parts + list(calls.values())


def messages_bytes(recorded: Recorded) -> bytes:
    start = recorded.body.index(b'"messages":[') + len(b'"messages":[')
    end = recorded.body.rindex(b'],"max_completion_tokens"')
    return recorded.body[start:end]


def check_k3(body: JsonObject) -> None:
    for name in ("temperature", "top_p", "n", "presence_penalty", "frequency_penalty", "max_tokens"):
        assert name not in body
    assert not ("reasoning_effort" in body and "thinking" in body)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_completion_tokens"] >= 16_000


TASK = [
    Step(
        reasoning="\n look at it 𝄞 ",
        calls=(ScriptedCall(name="read", arguments='{"path": "a.txt"}', id="read:0"),),
    ),
    Step(reasoning="", text="It has 12 lines."),
    Step(reasoning=" again ", text="Nothing else."),
]


async def test_conversation_keeps_bytes_reasoning_and_prefix() -> None:
    async with ScriptedServer(TASK) as server:
        talk = Talk(client_of(server))
        message = await talk.ask("How many lines?")
        assert talk.finished.finish is Finish.TOOL_CALLS
        assert message.reasoning is not None
        assert message.reasoning.text == "\n look at it 𝄞 "
        call = message.calls[0]
        assert (call.id, call.name, call.arguments) == ("read:0", "read", '{"path": "a.txt"}')
        talk.answer(call, "12 a.txt")
        await talk.ask()
        await talk.ask("And b?")
        bodies = [recorded.json for recorded in server.requests]
    for body in bodies:
        check_k3(body)
        assert body["prompt_cache_key"] == "s-1"
        assert body["reasoning_effort"] == "high"
    for earlier, later in zip(server.requests, server.requests[1:], strict=False):
        assert messages_bytes(later).startswith(messages_bytes(earlier))
        head = earlier.body[: earlier.body.index(b'"messages":[')]
        assert later.body.startswith(head)
    messages = bodies[2]["messages"]
    assert messages[2] == {
        "role": "assistant",
        "reasoning_content": "\n look at it 𝄞 ",
        "tool_calls": [
            {
                "id": "read_0",
                "type": "function",
                "function": {"name": "read", "arguments": '{"path": "a.txt"}'},
            }
        ],
    }
    assert messages[3] == {"role": "tool", "tool_call_id": "read_0", "content": "12 a.txt"}
    assert messages[4] == {"role": "assistant", "reasoning_content": "", "content": "It has 12 lines."}
    headers = server.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["user-agent"].startswith("k3agent/")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "reasoning_details", "both"])
async def test_reasoning_goes_back_in_the_field_it_came(field: str) -> None:
    learned: list[str] = []
    script = [Step(reasoning="first thought", text="one", reasoning_field=field), Step(text="two")]
    async with ScriptedServer(script) as server:
        talk = Talk(client_of(server, dialect="open", on_learned=learned.append))
        await talk.ask("hi")
        await talk.ask("more")
        sent = server.requests[1].json["messages"][2]
    if field == "reasoning_details":
        assert "".join(entry["text"] for entry in sent["reasoning_details"]) == "first thought"
        assert all(entry["format"] == "unknown" for entry in sent["reasoning_details"])
    else:
        name = "reasoning" if field == "both" else field
        assert sent[name] == "first thought"
        assert ("reasoning_content" if name == "reasoning" else "reasoning") not in sent
        assert learned == ([] if name == "reasoning_content" else ["reasoning"])


@pytest.mark.parametrize("place", ["extra", "choice", "top"])
async def test_usage_is_read_wherever_it_stands(place: str) -> None:
    async with ScriptedServer(
        [Step(text="x", usage_place=place), Step(text="y", usage_place=place)]
    ) as server:
        talk = Talk(client_of(server))
        await talk.ask("hi")
        first = talk.finished.usage
        await talk.ask("more")
        second = talk.finished.usage
    assert first.input_tokens == len(server.requests[0].body) // 4
    assert 0 < second.cached_tokens < second.input_tokens


async def test_usage_is_estimated_when_there_is_none() -> None:
    async with ScriptedServer([Step(text="x" * 70, usage_place="none")]) as server:
        talk = Talk(client_of(server))
        await talk.ask("hi")
    assert talk.finished.extra["usage"] == "estimated"
    assert talk.finished.usage.output_tokens == 20


RECOVERED = {
    "cut at 60 %": Fault(kind="cut"),
    "cut before anything": Fault(kind="cut", after=1),
    "no finish reason": Fault(kind="no_finish"),
    "garbage": Fault(kind="garbage"),
    "500 twice": Fault(kind="status", status=500, times=2),
    "502 as HTML": Fault(kind="status", status=502, body="<html><body><h1>Bad gateway</h1></body></html>"),
    "529": Fault(kind="status", status=529, body=""),
    "429 with Retry-After": Fault(kind="status", status=429, headers=(("Retry-After", "1"),)),
    "429 overloaded": Fault(
        kind="status", status=429, body='{"error":{"message":"busy","type":"engine_overloaded_error"}}'
    ),
    "error inside the stream": Fault(
        kind="error", body='{"error":{"message":"overloaded","type":"engine_overloaded_error"}}'
    ),
    "connection refused": Fault(kind="refuse"),
}


@pytest.mark.parametrize("name", RECOVERED)
async def test_fault_passes_and_the_same_bytes_are_sent_again(name: str) -> None:
    fault = RECOVERED[name]
    step = Step(
        reasoning="think", text="the whole answer, longer than one piece of the stream", faults=(fault,)
    )
    async with ScriptedServer([step]) as server:
        talk = Talk(client_of(server))
        started = time.monotonic()
        message = await talk.ask("hi")
        took = time.monotonic() - started
    assert message.text == step.text
    assert len(talk.retries) == fault.times
    assert len({recorded.body for recorded in server.requests}) == 1
    assert len(server.requests) == fault.times + 1
    if "Retry-After" in name:
        assert 1.0 <= took < 2.0
        assert talk.retries[0].delay_s == 1.0
    else:
        assert took < 1.5


FATAL = {
    "401": (401, '{"error":{"message":"bad key","type":"invalid_authentication_error"}}', Kind.AUTH),
    "403": (403, '{"error":{"message":"only for agents","type":"access_terminated_error"}}', Kind.AUTH),
    "402": (402, "", Kind.QUOTA),
    "404": (404, '{"error":{"message":"no such model","type":"resource_not_found_error"}}', Kind.NOT_FOUND),
    "400": (400, '{"error":{"message":"bad field"}}', Kind.BAD_REQUEST),
    "413": (413, "too large", Kind.TOO_LARGE),
    "filter": (400, '{"error":{"message":"high risk","type":"content_filter"}}', Kind.FILTER),
    "overflow": (400, '{"error":{"message":"Input token length too long"}}', Kind.OVERFLOW),
    "quota by type": (
        429, '{"error":{"message":"used up","type":"exceeded_current_quota_error"}}', Kind.QUOTA,
    ),
    "quota by text": (
        429, '{"error":{"message":"please check your account balance"}}', Kind.QUOTA,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FATAL)
async def test_fatal_answers_are_not_asked_again(name: str) -> None:
    status, body, kind = FATAL[name]
    trace = (("x-trace-id", "t-77"),)
    fault = Fault(kind="status", status=status, body=body, times=FOREVER, headers=trace)
    step = Step(text="never", faults=(fault,))
    async with ScriptedServer([step]) as server:
        talk = Talk(client_of(server))
        with pytest.raises(ProviderError) as caught:
            await talk.ask("hi")
    assert caught.value.kind is kind
    assert caught.value.status == status
    assert "t-77" in str(caught.value)
    assert len(server.requests) == 1


async def test_a_web_page_is_no_answer() -> None:
    page = "<html><body>Please log in</body></html>"
    step = Step(text="never", faults=(Fault(kind="status", status=200, body=page, times=FOREVER),))
    async with ScriptedServer([step]) as server:
        with pytest.raises(ProviderError, match=r"web page.*Please log in"):
            await Talk(client_of(server)).ask("hi")
    assert len(server.requests) == 1


async def test_endless_500_ends_within_the_stated_time() -> None:
    step = Step(text="never", faults=(Fault(kind="status", times=FOREVER),))
    async with ScriptedServer([step]) as server:
        talk = Talk(client_of(server, retry=RetryPolicy(max_time_s=1.5)))
        started = time.monotonic()
        with pytest.raises(ProviderError) as caught:
            await talk.ask("hi")
    assert time.monotonic() - started < 2.0
    assert caught.value.kind is Kind.SERVER
    assert len(server.requests) >= 3


async def test_a_very_long_retry_after_ends_the_call_and_is_told() -> None:
    fault = Fault(kind="status", status=429, headers=(("Retry-After", "7200"),), times=FOREVER)
    async with ScriptedServer([Step(faults=(fault,))]) as server:
        with pytest.raises(ProviderError) as caught:
            await Talk(client_of(server)).ask("hi")
    assert caught.value.retry_after_s == 7200


async def test_the_key_is_in_no_message() -> None:
    fault = Fault(
        kind="status", status=401, body=f'{{"error":{{"message":"key {KEY} is wrong"}}}}', times=FOREVER
    )
    async with ScriptedServer([Step(faults=(fault,))]) as server:
        with pytest.raises(ProviderError) as caught:
            await Talk(client_of(server)).ask("hi")
    assert KEY not in str(caught.value)
    assert KEY not in repr(Endpoint(base_url="x", api_key=KEY))


async def test_silence_counts_only_after_the_first_byte() -> None:
    patient = Step(text="slow to start", delay_s=0.8)
    silent = Step(text="then more than one piece of text for the stream", faults=(Fault(kind="silence"),))
    alive = Step(text="kept alive", keep_alive=True, piece=1, piece_delay_s=0.15)
    async with ScriptedServer([patient, silent, alive]) as server:
        talk = Talk(client_of(server, timeouts=Timeouts(idle_s=0.4)))
        assert (await talk.ask("a")).text == patient.text
        assert talk.retries == []
        assert (await talk.ask("b")).text == silent.text
        assert "sent nothing for 0.4 s" in talk.retries[0].reason
        assert (await talk.ask("c")).text == alive.text
        assert talk.retries == []


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
async def test_any_cutting_of_the_bytes_gives_the_same_answer(newline: str) -> None:
    text = "naïve 𝄞 日本\u2028line\u2029 end\x85."
    step = Step(text=text, reasoning=text, write_bytes=3, newline=newline, keep_alive=True)
    async with ScriptedServer([step]) as server:
        message = await Talk(client_of(server)).ask("hi")
    assert message.text == text
    assert message.reasoning is not None
    assert message.reasoning.text == text


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


async def test_window_efforts_and_server_kind_come_from_the_model_list() -> None:
    models = [
        {"id": "kimi-k3", "context_length": 300_000,
         "think_efforts": {"valid_efforts": ["low", "max"], "default_effort": "max"}},
    ]  # fmt: skip
    async with ScriptedServer([], models=models) as server:
        client = client_of(server)
        await client.connect()
        assert client.info.context_window == 300_000
        assert client.info.efforts == (Effort.LOW, Effort.MAX)
        fixed = client_of(server, has_fixed_window=True)
        await fixed.connect()
        assert fixed.info.context_window == 262_144
    async with ScriptedServer([], models=[{"id": "q", "owned_by": "vllm", "max_model_len": 8192}]) as server:
        client = client_of(server, dialect="open", model="")
        await client.connect()
        assert (client.info.model, client.info.context_window, client.dialect.name) == ("q", 8192, "vllm")


async def test_output_limit_fits_the_window_and_shrinks_when_told() -> None:
    too_long = '{"error":{"message":"Your request exceeded model token limit: 262144 (requested: 264144)"}}'
    step = Step(text="ok", faults=(Fault(kind="status", status=400, body=too_long),))
    async with ScriptedServer([step]) as server:
        talk = Talk(client_of(server))
        await talk.ask("x" * 100)
        limits = [recorded.json["max_completion_tokens"] for recorded in server.requests]
    assert limits == [32_000, 32_000 - 2000 - 256]
    async with ScriptedServer([Step(text="ok")]) as server:
        client = client_of(server)
        client._info = ModelInfo(
            provider="t", model="kimi-k3", base_url="", context_window=20_000, max_output_tokens=32_000
        )
        await Talk(client).ask("word " * 4000)
        assert server.requests[0].json["max_completion_tokens"] < 20_000 - 4000


async def test_images_are_left_out_after_a_413() -> None:
    step = Step(text="ok", faults=(Fault(kind="status", status=413, body="too large"),))
    async with ScriptedServer([step]) as server:
        talk = Talk(client_of(server))
        talk.add(Role.USER, TextPart(text="see"), ImagePart(mime="image/png", data=b"\x89PNG"))
        await talk.ask()
        first, second = (recorded.json["messages"][1]["content"] for recorded in server.requests)
    assert first[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert "an image stood here" in second


async def test_cancelling_closes_the_connection() -> None:
    async with ScriptedServer([Step(text="x" * 1000, piece=1, piece_delay_s=0.05)]) as server:
        client = client_of(server)
        talk = Talk(client)
        task = asyncio.create_task(talk.ask("go"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(client.aclose(), 1)


async def test_one_connection_serves_many_turns() -> None:
    async with ScriptedServer([Step(text=str(number)) for number in range(5)]) as server:
        accepted = 0
        serve = server._serve

        async def counted(reader, writer) -> None:
            nonlocal accepted
            accepted += 1
            await serve(reader, writer)

        server._serve = counted  # type: ignore[method-assign]
        await server.stop()
        await server.start()
        talk = Talk(client_of(server))
        for _ in range(5):
            await talk.ask("go")
    assert accepted == 1

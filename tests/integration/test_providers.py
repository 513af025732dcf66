"""The chat client against a real loopback server that follows a script, fault by fault."""

import asyncio
import json
import time

import pytest
from support.talk import KEY, Talk, check_k3, client_of, messages_bytes

from k3agent.errors import ProviderError
from k3agent.errors import ProviderErrorKind as Kind
from k3agent.providers.base import ModelInfo, Profile
from k3agent.providers.chat import Endpoint, Timeouts
from k3agent.providers.retry import RetryPolicy
from k3agent.providers.scripted import FOREVER, Fault, ScriptedCall, ScriptedServer, Step
from k3agent.types import (
    Effort,
    Finish,
    ImagePart,
    ProgressDelta,
    Role,
    TextPart,
)

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
    waited = sum(retry.delay_s for retry in talk.retries)
    assert message.text == step.text
    assert len(talk.retries) == fault.times
    assert len({recorded.body for recorded in server.requests}) == 1
    assert len(server.requests) == fault.times + 1
    if "Retry-After" in name:
        assert waited == talk.retries[0].delay_s == 1.0 <= took
    else:
        assert waited < 1.5


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
        with pytest.raises(ProviderError) as caught:
            await talk.ask("hi")
    assert sum(retry.delay_s for retry in talk.retries) <= 1.5
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


async def test_our_own_server_tells_which_weights_want_the_compact_profile() -> None:
    served = {"id": "nano", "owned_by": "k3agent", "context_length": 16384}
    for own, profile, most in [
        ({"profile": "compact", "instructions": False}, Profile.COMPACT, 2048),
        (None, Profile.FULL, 32_000),
    ]:
        models = [served if own is None else {**served, "k3agent": own}]
        async with ScriptedServer([], models=models) as server:
            client = client_of(server, dialect="open", model="")
            await client.connect()
            info = client.info
        assert client.dialect.name == "bundled" and info.model == "nano"
        assert (info.profile, info.max_output_tokens) == (profile, most)
        assert info.reads_instructions is (profile is Profile.FULL)
        assert (info.efforts == (Effort.LOW,)) is (profile is Profile.COMPACT)


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


async def test_llama_cpp_is_asked_how_far_it_has_read_and_is_not_hurried() -> None:
    def told(done: int) -> bytes:
        progress = {"total": 30_000, "cache": 0, "processed": done, "time_ms": 5}
        chunk = {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "prompt_progress": progress}
        return f"data: {json.dumps(chunk)}\n\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        asked.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(told(12_000))
        await writer.drain()
        await asyncio.sleep(0.6)
        end = {"choices": [{"index": 0, "delta": {"content": "Hi."}, "finish_reason": "stop"}]}
        writer.write(told(30_000) + f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
        await writer.drain()
        writer.close()

    asked: list[dict] = []
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    named = ScriptedServer([])
    named.url = f"http://127.0.0.1:{port}/v1"
    talk = Talk(client_of(named, dialect="llamacpp", timeouts=Timeouts(idle_s=0.2)))
    await talk.ask("hi")
    progress = [(delta.done, delta.total) for delta in talk.deltas if isinstance(delta, ProgressDelta)]
    assert progress == [(12_000, 30_000), (30_000, 30_000)]
    assert asked[0]["return_progress"] is True
    server.close()

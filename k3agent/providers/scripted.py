"""A model that follows a script, faults included: for tests and demonstrations.

`ScriptedServer` speaks HTTP and server-sent events on loopback, so that the real chat client is what is
tested;
`ScriptedClient` plays the same script in the process. `python -m k3agent.providers.scripted FILE` serves a
script from a JSON file: a list of objects with the fields of `Step`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from k3agent.errors import ProviderError
from k3agent.providers.answer import AnswerReader
from k3agent.providers.base import ModelInfo
from k3agent.providers.callreader import CallReader
from k3agent.providers.dialects import OPEN
from k3agent.providers.encoding import RequestEncoder
from k3agent.providers.failures import provider_error, read_error_body
from k3agent.types import Delta, JsonObject, Request, RetryDelta, TextDelta

FOREVER = -1
DEFAULT_MODEL = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """`arguments` is a string to send as it is, or an object; `id` None leaves the id out, "" sends an
    empty one.
    """

    name: str
    arguments: str | JsonObject = "{}"
    id: str | None = "auto"

    @property
    def text(self) -> str:
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong `times` times (`FOREVER`) before the step answers.

    `kind`: `status` (an HTTP error with `status`, `body`, `headers`), `cut` (the connection breaks after
    `after` of the answer: a share below 1, else bytes), `no_finish` (ends in order without a finish
    reason), `garbage` (a chunk that is no JSON), `error` (an error object inside the stream, `body`),
    `silence` (nothing more after `after`),
    `refuse` (the connection is closed without an answer).
    """

    kind: str
    times: int = 1
    status: int = 500
    body: str = '{"error":{"message":"scripted fault","type":"server_error"}}'
    headers: tuple[tuple[str, str], ...] = ()
    after: float = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One answer of the model. `finish` "auto" follows from the calls; None sends no finish reason.

    `reasoning_field`: reasoning_content, reasoning, reasoning_details, or both (the first with null beside
    it).
    `usage_place`: extra, choice, top, none. `piece` is the number of characters in one delta;
    `write_bytes` cuts the stream into pieces of that size, through UTF-8 sequences and lines; `newline`
    ends the lines.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish: str | None = "auto"
    model: str | None = None
    reasoning_field: str = "reasoning_content"
    usage_place: str = "extra"
    has_done: bool = True
    has_indexes: bool = True
    piece: int = 24
    write_bytes: int = 0
    newline: str = "\n"
    delay_s: float = 0.0
    piece_delay_s: float = 0.0
    keep_alive: bool = False
    faults: tuple[Fault, ...] = ()


Script = Sequence[Step | Callable[[JsonObject], Step]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request that arrived, byte for byte."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        return json.loads(self.body)


def steps_from_json(data: Any) -> list[Step]:
    """A script from decoded JSON; calls and faults are objects with the fields of their classes."""
    steps = []
    for entry in data:
        calls = tuple(ScriptedCall(**call) for call in entry.get("calls", ()))
        faults = tuple(
            Fault(**{**fault, "headers": tuple(map(tuple, fault.get("headers", ())))})
            for fault in entry.get("faults", ())
        )
        steps.append(Step(**{**entry, "calls": calls, "faults": faults}))
    return steps


class Player:
    """Where a script stands: gives the next step, or the fault that comes before it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._at = 0
        self._step: Step | None = None
        self._left: list[Fault] = []
        self._last_body = b""

    def next(self, body: bytes) -> tuple[int, Step, Fault | None] | None:
        """(number, step, fault) for a request; None when the script is over."""
        if self._step is None:
            if self._at >= len(self._script):
                return None
            entry = self._script[self._at]
            self._step = entry(json.loads(body)) if callable(entry) else entry
            self._left = list(self._step.faults)
        step = self._step
        if self._left:
            fault = self._left[0]
            if fault.times != FOREVER:
                self._left[:1] = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
            return self._at, step, fault
        self._step = None
        self._at += 1
        return self._at - 1, step, None

    def usage(self, step: Step, body: bytes) -> JsonObject:
        """Four bytes a token; cached is what the request shares with the one before."""
        pairs = zip(self._last_body, body, strict=False)
        shared = next((at for at, (old, new) in enumerate(pairs) if old != new), len(self._last_body))
        self._last_body = body
        made = len(step.text) + sum(len(call.text) for call in step.calls)
        return {
            "prompt_tokens": len(body) // 4,
            "completion_tokens": (made + len(step.reasoning)) // 4 + 1,
            "cached_tokens": shared // 4,
            "completion_tokens_details": {"reasoning_tokens": len(step.reasoning) // 4},
        }


def chunks_of(step: Step, number: int, usage: JsonObject) -> list[JsonObject]:
    """The chunks of a whole answer, as a server would stream them."""
    chunks = [_chunk(step, number, {"role": "assistant", "content": ""})]
    chunks += [_chunk(step, number, _reasoning(step, piece)) for piece in _pieces(step.reasoning, step.piece)]
    chunks += [_chunk(step, number, {"content": piece}) for piece in _pieces(step.text, step.piece)]
    for index, call in enumerate(step.calls):
        head: JsonObject = {"type": "function", "function": {"name": call.name, "arguments": ""}}
        if call.id is not None:
            head["id"] = f"call_{number}_{index}" if call.id == "auto" else call.id
        place = {"index": index} if step.has_indexes else {}
        chunks.append(_chunk(step, number, {"tool_calls": [{**place, **head}]}))
        for piece in _pieces(call.text, step.piece):
            chunks.append(_chunk(step, number, {"tool_calls": [{**place, "function": {"arguments": piece}}]}))
    if step.finish is not None:
        reason = ("tool_calls" if step.calls else "stop") if step.finish == "auto" else step.finish
        last = _chunk(step, number, {}, reason)
        if step.usage_place == "choice":
            last["choices"][0]["usage"] = usage
        elif step.usage_place == "top":
            last["usage"] = usage
        chunks.append(last)
    if step.usage_place == "extra":
        chunks.append({**_chunk(step, number, {}), "choices": [], "usage": usage})
    return chunks


def _chunk(step: Step, number: int, delta: JsonObject, finish: str | None = None) -> JsonObject:
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "model": step.model or DEFAULT_MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _reasoning(step: Step, piece: str) -> JsonObject:
    if step.reasoning_field == "reasoning_details":
        entry = {"type": "reasoning.text", "text": piece, "format": "unknown", "index": 0}
        return {"reasoning_details": [entry], "reasoning": piece}
    if step.reasoning_field == "both":
        return {"reasoning": piece, "reasoning_content": None}
    return {step.reasoning_field: piece}


class ScriptedServer:
    """The script behind a loopback port. `requests` are all chat requests as they came, `gets` the other
    paths.
    """

    def __init__(
        self, script: Script, *, models: Sequence[JsonObject] | None = None, api_key: str = ""
    ) -> None:
        self._player = Player(script)
        self._models = [{"id": DEFAULT_MODEL, "context_length": 262_144}] if models is None else list(models)
        self._api_key = api_key
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.requests: list[Recorded] = []
        self.gets: list[str] = []
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def __aenter__(self) -> ScriptedServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            # The client left: that is its right.
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False when the connection is to be closed."""
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (raw := (await reader.readline()).strip()) != b"":
            name, _, value = raw.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if method == "GET":
            self.gets.append(path)
            is_models = path.endswith("/models")
            answer = json.dumps({"object": "list", "data": self._models} if is_models else {})
            return await _plain(writer, 200 if is_models else 404, answer)
        if self._api_key and headers.get("authorization") != f"Bearer {self._api_key}":
            text = '{"error":{"message":"The API Key is invalid","type":"invalid_authentication_error"}}'
            return await _plain(writer, 401, text)
        self.requests.append(Recorded(path=path, headers=headers, body=body))
        return await self._answer(reader, writer, body)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bool:
        turn = self._player.next(body)
        if turn is None:
            return await _plain(
                writer, 400, '{"error":{"message":"the script is over","type":"script_over"}}'
            )
        number, step, fault = turn
        step = replace(step, model=step.model or json.loads(body).get("model"))
        await asyncio.sleep(step.delay_s)
        if fault is not None and fault.kind == "refuse":
            return False
        if fault is not None and fault.kind == "status":
            return await _plain(writer, fault.status, fault.body, fault.headers)
        raw = _stream_bytes(step, number, self._player.usage(step, body), fault)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-trace-id: scripted-%d\r\n"
            b"transfer-encoding: chunked\r\n\r\n" % number
        )
        limit = len(raw)
        if fault is not None and fault.kind in {"cut", "silence"}:
            limit = int(fault.after * limit) if fault.after < 1 else int(fault.after)
        for piece in _wire_pieces(raw[:limit], step):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            if step.piece_delay_s:
                await asyncio.sleep(step.piece_delay_s)
        if fault is not None and fault.kind == "silence":
            # Until the client has had enough.
            await reader.read()
        if limit < len(raw):
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _stream_bytes(step: Step, number: int, usage: JsonObject, fault: Fault | None) -> bytes:
    """The whole stream of an answer, with the faults that are part of its text."""
    kind = fault.kind if fault is not None else ""
    if kind == "no_finish":
        step = replace(step, finish=None)
    lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}" for chunk in chunks_of(step, number, usage)]
    if step.keep_alive:
        lines = [part for line in lines for part in (": keep-alive", line)]
    middle = max(1, len(lines) // 2)
    if kind == "garbage":
        lines.insert(middle, 'data: {"choices": [{"delta": <garbage')
    if kind == "error" and fault is not None:
        lines[middle:] = [f"data: {fault.body}"]
    if step.has_done and kind not in {"cut"}:
        lines.append("data: [DONE]")
    return "".join(line + step.newline * 2 for line in lines).encode()


def _wire_pieces(raw: bytes, step: Step) -> list[bytes]:
    if step.write_bytes:
        return [raw[at : at + step.write_bytes] for at in range(0, len(raw), step.write_bytes)]
    end = (step.newline * 2).encode()
    pieces = [piece + end for piece in raw.split(end)]
    pieces[-1] = pieces[-1].removesuffix(end)
    return [piece for piece in pieces if piece]


async def _plain(
    writer: asyncio.StreamWriter, status: int, body: str, headers: tuple[tuple[str, str], ...] = ()
) -> bool:
    raw = body.encode()
    kind = "text/html" if body.lstrip().startswith("<") else "application/json"
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n{extra}\r\n"
    writer.write(head.encode() + raw)
    await writer.drain()
    return True


@contextmanager
def serving(script: Script, **options: Any) -> Iterator[ScriptedServer]:
    """A server in a thread of its own, for callers that are not asynchronous."""
    loop = asyncio.new_event_loop()
    server = ScriptedServer(script, **options)
    thread = threading.Thread(target=loop.run_forever, daemon=True, name="scripted-server")
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(server: ScriptedServer) -> None:
    await server.stop()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_INFO = ModelInfo(
    provider="scripted",
    model=DEFAULT_MODEL,
    base_url="scripted:",
    context_window=262_144,
    max_output_tokens=32_000,
    why="the script was given",
)


@dataclass(slots=True)
class ScriptedClient:
    """The script as a `ModelClient` without a network. `requests` are the requests as they came."""

    script: Script
    info: ModelInfo = _INFO
    requests: list[Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    _player: Player | None = None
    _encoder: RequestEncoder | None = None

    async def connect(self) -> None:
        self._player = Player(self.script)
        self._encoder = RequestEncoder(OPEN)

    async def aclose(self) -> None:
        return None

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        if self._player is None or self._encoder is None:
            await self.connect()
        assert self._player is not None
        assert self._encoder is not None
        body = self._encoder.body(request, self.info.context_window, self.info.max_output_tokens)
        self.requests.append(request)
        self.bodies.append(body)
        attempt = 0
        while True:
            turn = self._player.next(body)
            if turn is None:
                raise provider_error(400, "the script is over", base_url=self.info.base_url)
            number, step, fault = turn
            await asyncio.sleep(step.delay_s)
            chunks = chunks_of(step, number, self._player.usage(step, body))
            if fault is None:
                for delta in self._play(request, body, step, chunks):
                    await asyncio.sleep(step.piece_delay_s)
                    yield delta
                return
            error = _failure(fault)
            if not error.is_retryable or fault.times == FOREVER:
                raise error
            if fault.kind in {"cut", "no_finish", "garbage", "silence"}:
                for delta in self._play(request, body, step, chunks[: len(chunks) // 2])[:-1]:
                    yield delta
            attempt += 1
            yield RetryDelta(attempt=attempt, delay_s=error.retry_after_s or 0.0, reason=str(error))

    @staticmethod
    def _play(request: Request, body: bytes, step: Step, chunks: list[JsonObject]) -> list[Delta]:
        taken = {call.id for message in request.messages for call in message.calls}
        tools = frozenset(tool.name for tool in request.tools)
        reader = AnswerReader(calls=CallReader(taken, str), tools=tools, is_lenient=True)
        out = [delta for chunk in chunks for delta in reader.feed(chunk)]
        reader.close()
        out.extend(reader.rest)
        if reader.leak is not None and reader.leak.text:
            out.append(TextDelta(text=reader.leak.text))
        return [*out, reader.finished(step.model or DEFAULT_MODEL, len(body))]


def _failure(fault: Fault) -> ProviderError:
    status = fault.status if fault.kind == "status" else 502
    message, error_type = read_error_body(fault.body)
    return provider_error(status, message, error_type, base_url="scripted:", headers=dict(fault.headers))


async def _serve_file(script: Script, port: int) -> None:
    server = ScriptedServer(script)
    await server.start(port)
    print(server.url, flush=True)
    await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="k3agent.providers.scripted", description="Serve a script on loopback."
    )
    parser.add_argument("script", type=Path, help="JSON file: a list of steps")
    parser.add_argument("--port", type=int, default=0, help="port; 0 picks one")
    options = parser.parse_args(argv)
    try:
        script = steps_from_json(json.loads(options.script.read_text(encoding="utf-8")))
        asyncio.run(_serve_file(script, options.port))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Server-sent events of an answer, and a client that leaves.

Silence is filled with comments, so that proxies keep the connection; the progress of a long prompt is told
in the same way. When the client is gone, or does not read, the generator is closed at once, which aborts the
generation and frees its memory.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from k3agent.backend.chat.parser import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    ReasoningWasText,
    TextDelta,
)
from k3agent.backend.chat.template import Json
from k3agent.backend.errors import BackendError
from k3agent.backend.server.answer import Prepared
from k3agent.backend.server.assembly import AnswerEvent, Done, Progress
from k3agent.backend.server.errors import error_body
from k3agent.backend.server.logprobs import Scored, chunk_body

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 10.0
STALL_S = 30.0
MAX_PENDING_BYTES = 1 << 20
ABORT_KEY = "k3agent.abort"
"""Where a connection leaves the function that cuts it without waiting for its buffers."""


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Chunks:
    """Makes the chunks of one streamed answer."""

    def __init__(self, prepared: Prepared, created: int, also_reasoning: bool = False) -> None:
        self._prepared = prepared
        self._also_reasoning = also_reasoning
        self._base = {
            "id": f"chatcmpl-{prepared.add.request_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": prepared.request.model,
        }

    def first(self) -> str:
        return self._chunk({"role": "assistant", "content": ""})

    def of(self, event: AnswerEvent) -> str:
        """The text to send for an event; may be empty."""
        match event:
            case Progress(num_computed=done, num_prompt=total, num_cached=cached):
                return f": prefill {done}/{total} cached {cached}\n\n"
            case Scored(event=inner):
                return self._chunk(self._text_delta(inner), chunk_body(event))
            case ReasoningDelta() | TextDelta() | ReasoningWasText():
                return self._chunk(self._text_delta(event))
            case CallStarted(index, call_id, name):
                function = {"name": name, "arguments": ""}
                return self._call({"index": index, "id": call_id, "type": "function", "function": function})
            case ArgumentsDelta(index, text):
                return self._call({"index": index, "function": {"arguments": text}})
            case CallEnded():
                return ""
            case Done():
                return self._last(event)

    def _last(self, done: Done) -> str:
        choice = {"index": 0, "delta": {}, "finish_reason": done.finish_reason, "usage": done.usage}
        text = _data({**self._base, "choices": [choice], "usage": done.usage})
        if self._prepared.request.include_usage:
            text += _data({**self._base, "choices": [], "usage": done.usage})
        return text + "data: [DONE]\n\n"

    def _call(self, call: Json) -> str:
        return self._chunk({"tool_calls": [call]})

    def _text_delta(self, event: ReasoningDelta | TextDelta | ReasoningWasText) -> Json:
        if not isinstance(event, ReasoningDelta):
            return {"content": event.text}
        both = {"reasoning": event.text} if self._also_reasoning else {}
        return {"reasoning_content": event.text, **both}

    def _chunk(self, delta: Json, logprobs: Json | None = None) -> str:
        choice: Json = {"index": 0, "delta": delta, "finish_reason": None}
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return _data({**self._base, "choices": [choice]})


def _data(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"


class SlowReaderError(BackendError):
    """The client does not take what it asked for."""


class Outbox:
    """Texts on their way to one reader, bounded: generation does not wait for readers, it drops them."""

    def __init__(self, max_bytes: int = MAX_PENDING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self._size += len(data)
        if self._size > self._max_bytes:
            raise SlowReaderError(f"more than {self._max_bytes} bytes wait for a client that does not read")
        self._pieces.append(data)
        self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    async def take(self) -> bytes:
        """All that waits, at least something; empty at the end."""
        while not self._pieces and not self._is_closed:
            self._changed.clear()
            await self._changed.wait()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return data


class EventStream(Response):
    """Sends the texts of `events`; closes it when the client leaves, or does not read for `stall_s`.

    `on_end` is told whether the client was dropped.
    """

    def __init__(
        self,
        events: AsyncGenerator[str, None],
        headers: dict[str, str],
        stall_s: float = STALL_S,
        on_end: Callable[[bool], None] | None = None,
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self._events = events
        self._stall_s = stall_s
        self._on_end = on_end
        self._outbox = Outbox()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        producer = asyncio.create_task(self._produce())
        writer = asyncio.create_task(self._write(send))
        watcher = asyncio.create_task(until_gone(receive))
        waiting = {producer, writer, watcher}
        is_dropped = False
        try:
            while not (writer.done() or watcher.done()):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if producer.done():
                    producer.result()
            if writer.done():
                writer.result()
        except (SlowReaderError, TimeoutError) as error:
            is_dropped = True
            log.warning("a stream was dropped: %s", str(error) or f"nothing was read for {self._stall_s:g} s")
            scope.get(ABORT_KEY, _nothing)()
        finally:
            for task in (watcher, writer, producer):
                task.cancel()
            # the generator is closed before the request counts as over
            await asyncio.wait({writer, producer})
            if self._on_end is not None:
                self._on_end(is_dropped)

    async def _produce(self) -> None:
        try:
            async with aclosing(with_keep_alive(self._events)) as texts:
                async for text in texts:
                    self._outbox.put(text)
        finally:
            self._outbox.close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while data := await self._outbox.take():
            # the server's `send` returns when its own buffer has room again
            async with asyncio.timeout(self._stall_s):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _nothing() -> None:
    pass


async def begun(events: AsyncGenerator[AnswerEvent, None]) -> AsyncGenerator[AnswerEvent, None]:
    """The same events, after the first of them is known or has been waited for long enough.

    What the engine refuses at once is then raised here, while an answer with a status can still be given.
    """
    first = asyncio.ensure_future(anext(events, None))
    try:
        await asyncio.wait({first}, timeout=KEEP_ALIVE_S)
        if first.done():
            first.result()
    except BaseException:
        first.cancel()
        await asyncio.wait({first})
        await events.aclose()
        raise
    return _after(first, events)


async def _after(
    first: "asyncio.Future[AnswerEvent | None]", events: AsyncGenerator[AnswerEvent, None]
) -> AsyncGenerator[AnswerEvent, None]:
    try:
        event = await first
        if event is not None:
            yield event
            async for event in events:
                yield event
    finally:
        if not first.done():
            first.cancel()
            await asyncio.wait({first})
        await events.aclose()


async def answer_texts(
    chunks: Chunks, events: AsyncGenerator[AnswerEvent, None]
) -> AsyncGenerator[str, None]:
    """The whole stream of an answer; an error after its beginning is an event of its own, and the end."""
    yield chunks.first()
    async with aclosing(events) as answer:
        try:
            async for event in answer:
                text = chunks.of(event)
                if text:
                    yield text
        except Exception as error:
            # the status is sent already: whatever went wrong, the client learns of it in the stream
            is_expected = isinstance(error, BackendError)
            log.warning("an answer broke off: %s", error, exc_info=None if is_expected else error)
            yield _data(error_body(error))


async def with_keep_alive(
    texts: AsyncGenerator[str, None], interval_s: float | None = None
) -> AsyncGenerator[str, None]:
    """Pass texts on; after each interval without one, a comment."""
    interval_s = KEEP_ALIVE_S if interval_s is None else interval_s
    async with aclosing(texts) as source:
        following: asyncio.Future[str | None] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(source, None))
                while not (await asyncio.wait({following}, timeout=interval_s))[0]:
                    yield ": keep-alive\n\n"
                text = following.result()
                if text is None:
                    return
                yield text
        finally:
            if following is not None and not following.done():
                following.cancel()
                await asyncio.wait({following})

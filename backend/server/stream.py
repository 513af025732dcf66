"""Server-sent events of an answer, and a client that leaves.

Silence is filled with comments, so that proxies keep the connection; the progress of a long prompt is told
in the same way. When the client is gone, the generator is closed at once, which aborts the generation.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
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
from k3agent.backend.server.answer import AnswerEvent, Done, Prepared, Progress
from k3agent.backend.server.errors import error_body

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 10.0


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
            case ReasoningDelta(text):
                delta: Json = {"reasoning_content": text}
                if self._also_reasoning:
                    delta["reasoning"] = text
                return self._chunk(delta)
            case TextDelta(text) | ReasoningWasText(text):
                return self._chunk({"content": text})
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

    def _chunk(self, delta: Json) -> str:
        return _data({**self._base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def _data(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"


class EventStream(Response):
    """Sends the texts of `events`; closes it when the client leaves."""

    def __init__(self, events: AsyncGenerator[str, None], headers: dict[str, str]) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.create_task(self._write(send))
        watcher = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watcher.cancel()
            if not writer.done():
                writer.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await writer

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(with_keep_alive(self._events)) as texts:
            async for text in texts:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
        except BackendError as error:
            log.warning("an answer broke off: %s", error)
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

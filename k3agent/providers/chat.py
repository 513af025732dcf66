"""A model behind an OpenAI-style chat endpoint, over server-sent events.

One call of `stream` is one answer: attempts that fail in a way that passes are made again with the same
bytes, announced by `RetryDelta`. Half an answer is never taken as a whole one. Rules: kimi-api.md section
6.1.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from k3agent import __version__
from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.providers.answer import AnswerReader
from k3agent.providers.base import ModelInfo
from k3agent.providers.callreader import CallReader
from k3agent.providers.catalog import read_catalog
from k3agent.providers.dialects import BUNDLED, Dialect
from k3agent.providers.encoding import RequestEncoder
from k3agent.providers.failures import (
    is_refused,
    nobody_listens,
    overflow_by,
    provider_error,
    read_error_body,
    read_error_object,
    scrub,
    unreachable,
)
from k3agent.providers.retry import RetryPolicy, RetryState
from k3agent.providers.sse import SseDecoder, SseError, SseEvent
from k3agent.providers.transport import httpx, make_client
from k3agent.types import (
    Delta,
    ImagePart,
    JsonObject,
    ProgressDelta,
    Request,
    RetryDelta,
    TextDelta,
    ToolResult,
)

log = logging.getLogger(__name__)

_PREFILL = re.compile(r"prefill (\d+)/(\d+)\b")
_MAX_ERROR_BYTES = 64 * 1024
_ERROR_BODY_S = 10.0
_DRAIN_S = 0.05
_MAX_REASKS = 1
_MAX_CUTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to ask and with which key; looked up before every attempt because both may change."""

    base_url: str
    api_key: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """`idle_s` is the longest silence after the first byte; before it there is no limit."""

    connect_s: float = 10.0
    idle_s: float = 180.0
    catalog_s: float = 5.0


class ChatClient:
    """`ModelClient` over HTTP.

    `prepare` gives the endpoint of the next attempt (the bundled client restarts its server there).
    `reasoning_field` is what was learned of this endpoint before; `on_learned` is told when it shows another.
    `has_fixed_window`: the user set the window, the endpoint's word does not count.
    """

    def __init__(
        self,
        info: ModelInfo,
        dialect: Dialect,
        prepare: Callable[[], Awaitable[Endpoint]],
        *,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        reasoning_field: str | None = None,
        on_learned: Callable[[str], None] | None = None,
        has_fixed_window: bool = False,
    ) -> None:
        self._info = info
        self._prepare = prepare
        self._retry = retry or RetryPolicy()
        self._timeouts = timeouts or Timeouts()
        self._on_learned = on_learned
        self._has_fixed_window = has_fixed_window
        self._encoder = RequestEncoder(dialect, reasoning_field)
        self._http: httpx.AsyncClient | None = None
        self._seen_models: set[str] = set()
        # A server that has answered once and is gone may be restarting; one that never did is not there.
        self._has_answered = False

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def dialect(self) -> Dialect:
        return self._encoder.dialect

    async def endpoint(self) -> Endpoint:
        """Where the next request goes."""
        return await self._prepare()

    async def connect(self) -> None:
        """Read the model list: the window, the efforts, the kind of server; its absence is no failure."""
        endpoint = await self._prepare()
        http = self._client(endpoint)
        base = endpoint.base_url.rstrip("/")
        data = await self._get_json(http, f"{base}/models", endpoint)
        props = None
        if data is not None and '"llamacpp"' in json.dumps(data):
            props = await self._get_json(http, f"{base.removesuffix('/v1')}/props", endpoint)
        info, dialect = read_catalog(self._info, self.dialect, data, props, self._has_fixed_window)
        self._info = replace(info, base_url=endpoint.base_url)
        self._encoder.dialect = dialect
        if not self._info.model:
            raise ProviderError(
                f"No model is named and {base}/models lists none. Name one with --model.",
                kind=ProviderErrorKind.NOT_FOUND,
            )

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        state = RetryState(self._retry)
        cut_tokens = num_cuts = num_reasks = 0
        body = b""
        while True:
            body = body or self._body(request, cut_tokens)
            reader = self._reader(request)
            failure: ProviderError | None = None
            try:
                async with aclosing(self._attempt(body, reader)) as deltas:
                    async for delta in deltas:
                        yield delta
            except ProviderError as error:
                failure = error
            if failure is None:
                again = self._why_again(reader, num_reasks)
                if again is None:
                    for delta in self._closing(reader, request, body):
                        yield delta
                    return
                num_reasks += 1
                yield RetryDelta(attempt=num_reasks, delay_s=0.0, reason=again)
                continue
            too_many = overflow_by(str(failure)) if failure.kind is ProviderErrorKind.OVERFLOW else None
            if too_many is not None and num_cuts < _MAX_CUTS and self._can_cut(body, too_many):
                cut_tokens, num_cuts, body = cut_tokens + too_many + 256, num_cuts + 1, b""
                continue
            if failure.kind is ProviderErrorKind.TOO_LARGE and self._drop_images(request):
                body = b""
                yield RetryDelta(
                    attempt=1, delay_s=0.0, reason="the request was too large; images are left out"
                )
                continue
            delay_s = state.next_delay_s(failure)
            if delay_s is None:
                log.warning("model call failed: %s", failure)
                raise failure
            log.info("model call is retried in %.1f s: %s", delay_s, failure)
            yield RetryDelta(attempt=state.failures, delay_s=round(delay_s, 3), reason=str(failure))
            await asyncio.sleep(delay_s)

    # --- one attempt ---

    async def _attempt(self, body: bytes, reader: AnswerReader) -> AsyncGenerator[Delta, None]:
        endpoint = await self._prepare()
        http = self._client(endpoint)
        url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        started = time.monotonic()
        try:
            sent = http.build_request("POST", url, content=body, headers=_headers(endpoint))
            response = await http.send(sent, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(endpoint, error) from error
        self._has_answered = True
        try:
            if response.status_code != 200:
                raise await self._failed(response, endpoint)
            kind = response.headers.get("content-type", "")
            if "html" in kind:
                raise await self._failed(response, endpoint)
            if "json" in kind:
                deltas = self._whole(response, reader, endpoint)
            else:
                deltas = self._events(response, reader, endpoint)
            async with aclosing(deltas):
                async for delta in deltas:
                    yield delta
        finally:
            await response.aclose()
        log.info(
            "model call: %d bytes sent, %.2f s, finish %s",
            len(body),
            time.monotonic() - started,
            reader.finish_reason,
        )

    async def _events(
        self, response: httpx.Response, reader: AnswerReader, endpoint: Endpoint
    ) -> AsyncGenerator[Delta, None]:
        decoder = SseDecoder()
        is_done = False
        try:
            async with aclosing(self._chunks(response, reader)) as chunks:
                async for chunk in chunks:
                    events = decoder.feed(chunk) if chunk else _last_events(decoder)
                    for event in events:
                        if event.data.strip() == "[DONE]":
                            is_done = True
                            break
                        for delta in self._event(event, reader, response, endpoint):
                            yield delta
                    if is_done:
                        await _drain(chunks)
                        break
        except (httpx.HTTPError, httpx.StreamError, TimeoutError, SseError) as error:
            # What the endpoint closed with a finish reason is whole, however the connection ended.
            if not reader.is_whole:
                raise self._cut(response, endpoint, error) from error
        if not reader.is_whole:
            raise self._cut(response, endpoint, None)

    def _event(
        self, event: SseEvent, reader: AnswerReader, response: httpx.Response, endpoint: Endpoint
    ) -> list[Delta]:
        if event.comment is None:
            chunk = _decode(event.data, response, endpoint)
            progress = _progress(chunk.get("prompt_progress"))
            reader.is_still_reading = progress is not None and progress.done < progress.total
            return [*([progress] if progress else []), *reader.feed(chunk)]
        # Our own server tells in comments how far it has read the prompt; other comments only keep the
        # line alive.
        match = _PREFILL.match(event.comment)
        if match is None:
            return []
        done, total = int(match.group(1)), int(match.group(2))
        reader.is_still_reading = done < total
        return [ProgressDelta(done=done, total=total)]

    async def _chunks(self, response: httpx.Response, reader: AnswerReader) -> AsyncGenerator[bytes, None]:
        """The body's bytes, then one empty chunk; silence after the first byte ends in `TimeoutError`, unless
        the server is still reading the prompt: a piece of that may take minutes.
        """
        source = response.aiter_bytes()
        limit_s: float | None = None
        try:
            while True:
                try:
                    async with asyncio.timeout(limit_s):
                        chunk = await anext(source)
                except StopAsyncIteration:
                    break
                if chunk:
                    yield chunk
                    limit_s = None if reader.is_still_reading else self._timeouts.idle_s
            yield b""
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    async def _whole(
        self, response: httpx.Response, reader: AnswerReader, endpoint: Endpoint
    ) -> AsyncGenerator[Delta, None]:
        """A server that ignores `stream` answers with one JSON object."""
        try:
            raw = await response.aread()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._cut(response, endpoint, error) from error
        for delta in reader.feed(_decode(raw.decode("utf-8", errors="replace"), response, endpoint)):
            yield delta
        if not reader.is_whole:
            raise self._cut(response, endpoint, None)

    async def _failed(self, response: httpx.Response, endpoint: Endpoint) -> ProviderError:
        raw = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_S):
                async for chunk in response.aiter_bytes():
                    raw += chunk
                    if len(raw) >= _MAX_ERROR_BYTES:
                        break
        except (httpx.HTTPError, httpx.StreamError, TimeoutError):
            log.info("the body of an error answer was cut")
        message, error_type = read_error_body(raw[:_MAX_ERROR_BYTES].decode("utf-8", errors="replace"))
        if 300 <= response.status_code < 400:
            message = (
                f"a redirect to {response.headers.get('location', 'nowhere')}; redirects are not followed"
            )
        if response.status_code == 200:
            return ProviderError(
                f"{endpoint.base_url} answered with a web page, not with a chat answer: {message[:200]!r}. "
                "Is --base-url right, up to and with /v1?",
                kind=ProviderErrorKind.BAD_REQUEST,
                status=200,
            )
        return provider_error(
            response.status_code, message, error_type,
            base_url=endpoint.base_url, headers=response.headers, secrets=(endpoint.api_key,),
        )  # fmt: skip

    def _cut(self, response: httpx.Response, endpoint: Endpoint, error: Exception | None) -> ProviderError:
        if isinstance(error, TimeoutError):
            what = f"sent nothing for {self._timeouts.idle_s:g} s in the middle of its answer"
        elif error is not None:
            what = f"broke off its answer ({scrub(str(error) or type(error).__name__, endpoint.api_key)})"
        else:
            what = "ended its answer without a finish reason"
        trace_id = response.headers.get("x-trace-id")
        suffix = f" (trace id {trace_id})" if trace_id else ""
        return ProviderError(
            f"{endpoint.base_url} {what}{suffix}", kind=ProviderErrorKind.CONNECTION, trace_id=trace_id
        )

    # --- around the attempts ---

    def _body(self, request: Request, cut_tokens: int) -> bytes:
        return self._encoder.body(
            request, self._info.context_window, self._info.max_output_tokens, cut_tokens
        )

    def _reader(self, request: Request) -> AnswerReader:
        taken = {call.id for message in request.messages for call in message.calls}
        tools = frozenset(self._encoder.names.wire(tool.name) for tool in request.tools)
        calls = CallReader(taken, self._encoder.names.raw)
        return AnswerReader(calls=calls, tools=tools, is_lenient=self.dialect.is_lenient)

    def _why_again(self, reader: AnswerReader, num_reasks: int) -> str | None:
        """A whole answer that is still no answer is asked for again, once."""
        reader.close()
        if num_reasks >= _MAX_REASKS or reader.finish_reason in {"length", "content_filter"}:
            return None
        if reader.leak is not None and not reader.calls.calls:
            return "the answer held control markers of the model that could not be read"
        if reader.is_empty and reader.leak is None:
            return "the answer held neither text nor a tool call"
        return None

    def _closing(self, reader: AnswerReader, request: Request, body: bytes) -> list[Delta]:
        out = list(reader.rest)
        if reader.leak is not None:
            reader.notices.append(
                "Control markers of the model that could not be read were removed from the answer."
            )
            if reader.leak.text:
                out.append(TextDelta(text=reader.leak.text))
        if reader.model and reader.model != request.model and reader.model not in self._seen_models:
            self._seen_models.add(reader.model)
            reader.notices.append(
                f"Asked for model {request.model}, the endpoint answered as {reader.model}."
            )
        finished = reader.finished(request.model, len(body))
        if "usage" not in finished.extra:
            self._encoder.measured(body, finished.usage.input_tokens)
        if reader.reasoning_field and reader.reasoning_field != self._encoder.reasoning_field:
            self._encoder.reasoning_field = reader.reasoning_field
            if self._on_learned is not None:
                self._on_learned(reader.reasoning_field)
        return [*out, finished]

    @staticmethod
    def _can_cut(body: bytes, too_many: int) -> bool:
        match = re.search(rb'"max_completion_tokens":(\d+)', body[-4096:])
        return match is not None and int(match.group(1)) - too_many - 256 >= 1024

    def _drop_images(self, request: Request) -> bool:
        """Leave images out from now on; False when there are none, or they are out already."""
        parts = [part for message in request.messages for part in message.parts]
        parts += [part for part in parts if isinstance(part, ToolResult) for part in part.content]
        has_images = any(isinstance(part, ImagePart) for part in parts)
        return has_images and self._encoder.leave_images_out()

    def _client(self, endpoint: Endpoint) -> httpx.AsyncClient:
        if self._http is None:
            self._http = make_client(endpoint.base_url, self._timeouts.connect_s)
        return self._http

    def _unreachable(self, endpoint: Endpoint, error: Exception) -> ProviderError:
        said = str(error) or type(error).__name__
        is_restarted = self.dialect is BUNDLED
        if is_refused(endpoint.base_url, error) and not self._has_answered and not is_restarted:
            return nobody_listens(endpoint.base_url)
        is_our_fault = isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol)
        return unreachable(endpoint.base_url, scrub(said, endpoint.api_key), is_our_fault=is_our_fault)

    async def _get_json(self, http: httpx.AsyncClient, url: str, endpoint: Endpoint) -> JsonObject | None:
        try:
            async with asyncio.timeout(self._timeouts.catalog_s):
                response = await http.get(url, headers=_headers(endpoint))
            self._has_answered = True
            data = response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
            if is_refused(endpoint.base_url, error):
                raise self._unreachable(endpoint, error) from error
            log.info("%s could not be read: %s", url, scrub(str(error), endpoint.api_key))
            return None
        return data if isinstance(data, dict) else None


def _headers(endpoint: Endpoint) -> dict[str, str]:
    headers = {
        "User-Agent": f"k3agent/{__version__}",
        "Content-Type": "application/json",
        "Accept": "text/event-stream, application/json",
        **dict(endpoint.headers),
    }
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    if not all(value.isascii() for value in headers.values()):
        raise ProviderError(
            f"The API key or a header for {endpoint.base_url} holds characters outside ASCII. Copy it again.",
            kind=ProviderErrorKind.AUTH,
        )
    return headers


def _progress(said: object) -> ProgressDelta | None:
    """How far llama.cpp has read the prompt; `processed` counts what it had in its cache."""
    if not isinstance(said, dict):
        return None
    done, total = said.get("processed"), said.get("total")
    return ProgressDelta(done=done, total=total) if isinstance(done, int) and isinstance(total, int) else None


def _last_events(decoder: SseDecoder) -> list[SseEvent]:
    """What the end of the stream left open, if it is whole; a piece of a chunk only says that it was cut."""
    events = decoder.flush()
    return [
        event
        for event in events
        if event.comment is None and (event.data == "[DONE]" or _is_json(event.data))
    ]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read what stands behind `[DONE]`, briefly, so that the connection can be used again."""
    with suppress(TimeoutError, httpx.HTTPError, httpx.StreamError):
        async with asyncio.timeout(_DRAIN_S):
            await anext(chunks, b"")


def _decode(data: str, response: httpx.Response, endpoint: Endpoint) -> JsonObject:
    """One chunk; an error object inside the stream is raised as what it is."""
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProviderError(
            f"{endpoint.base_url} sent a chunk that is no JSON: {scrub(data[:120], endpoint.api_key)!r}",
            kind=ProviderErrorKind.PROTOCOL,
        ) from error
    if not isinstance(chunk, dict):
        raise ProviderError(
            f"{endpoint.base_url} sent a chunk that is no object: {data[:120]!r}",
            kind=ProviderErrorKind.PROTOCOL,
        )
    if chunk.get("error"):
        message, error_type = read_error_object(chunk)
        code = chunk["error"].get("code") if isinstance(chunk["error"], dict) else None
        raise provider_error(
            code if isinstance(code, int) and 400 <= code < 600 else None, message, error_type,
            base_url=endpoint.base_url, headers=response.headers, secrets=(endpoint.api_key,),
        )  # fmt: skip
    return chunk

"""Streamable HTTP: each message is a POST; answers come as JSON or as a stream of events.

A stream that breaks before its answer is gone on with (`Last-Event-ID`) where the server can do that. What
goes wrong with a request becomes an error answer to it, so that nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from k3agent.errors import K3AgentError
from k3agent.tools.mcp.server import LOGIN_CODE
from k3agent.tools.mcp.transport import MAX_MESSAGE_BYTES
from k3agent.types import JsonObject, ServerSpec

log = logging.getLogger(__name__)

HTTP_CODE = -32400
MAX_RESUMES = 5
MAX_WAIT_S = 30.0
CONNECT_S = 10.0
PLAIN = {"accept-encoding": "identity"}
# A carriage return at the very end may be the first half of an end.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class Authority(Protocol):
    """Who signs requests in (oauth.py)."""

    async def header(self) -> str | None: ...

    async def renew(self) -> bool:
        """After a refusal: whether there is another token to try."""
        ...


@dataclass(slots=True)
class StreamState:
    """What a stream has said of going on, and the kind of the event that is being given."""

    kind: str = ""
    last_id: str = ""
    retry_s: float = 1.0


class HttpTransport:
    """`authority` None: the configured headers are all there is."""

    def __init__(
        self,
        spec: ServerSpec,
        on_message: Callable[[Any], None],
        on_end: Callable[[str], None],
        authority: Authority | None,
    ) -> None:
        import httpx  # lazy: 0.15 s, only for servers with an address

        self._httpx = httpx
        self._spec = spec
        self._on_message, self._on_end = on_message, on_end
        self._authority = authority
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_S, write=60.0),
            headers=PLAIN,
            event_hooks=refuse_packed(),
        )
        # where messages go
        self._address = spec.url
        self._session = ""
        self._version = ""
        self._queue: asyncio.Queue[JsonObject] = asyncio.Queue()
        self._requests: dict[Any, asyncio.Task[None]] = {}
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._sender = asyncio.create_task(self._send_all())

    def agreed(self, version: str) -> None:
        """The protocol's version is known from now on."""
        self._version = version

    def send(self, message: JsonObject) -> None:
        self._queue.put_nowait(message)

    async def _send_all(self) -> None:
        while True:
            message = await self._queue.get()
            if "id" in message and "method" in message:
                task = asyncio.create_task(self._guarded(message))
                self._requests[message["id"]] = task
                task.add_done_callback(lambda _, number=message["id"]: self._requests.pop(number, None))
                continue
            # In order: the server must know of it before the next request.
            await self._guarded(message)
            if message.get("method") == "notifications/cancelled":
                task = self._requests.get(message["params"].get("requestId"))
                if task is not None:
                    task.cancel()
            if message.get("method") == "notifications/initialized":
                self._listener = asyncio.create_task(self._listen())

    async def _guarded(self, message: JsonObject) -> None:
        """One POST; its failure is the answer."""
        try:
            limit_s = None if "id" in message and "method" in message else 30.0
            async with asyncio.timeout(limit_s):
                await self._post(message)
        except (self._httpx.HTTPError, TimeoutError) as error:
            self._fail(message, HTTP_CODE, f"{self._spec.url} cannot be reached: {words(error)}")
        except (self._httpx.InvalidURL, ValueError) as error:
            # A header with characters that no header can have, for one.
            self._fail(message, HTTP_CODE, f"no request to {self._spec.url} can be made: {words(error)}")
        except K3AgentError as error:
            self._fail(message, HTTP_CODE, f"the login at {self._spec.url} cannot be kept: {error}")

    def _fail(self, message: JsonObject, code: int, text: str) -> None:
        if "id" in message and "method" in message:
            error = {"code": code, "message": text}
            self._on_message({"jsonrpc": "2.0", "id": message["id"], "error": error})
        else:
            log.info("MCP server %s did not take %s: %s", self._spec.name, message.get("method"), text)

    async def _headers(self) -> dict[str, str]:
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "user-agent": "k3agent",
            **{name.lower(): value for name, value in self._spec.headers.items()},
        }
        if self._session:
            headers["mcp-session-id"] = self._session
        if self._version:
            headers["mcp-protocol-version"] = self._version
        token = await self._authority.header() if self._authority is not None else None
        if token is not None:
            headers["authorization"] = token
        return headers

    async def _post(self, message: JsonObject, *, is_again: bool = False) -> None:
        body = json.dumps(message, separators=(",", ":")).encode()
        request = self._client.build_request(
            "POST", self._address, content=body, headers=await self._headers()
        )
        response = await self._client.send(request, stream=True)
        try:
            if response.status_code in (401, 403):
                if not is_again and self._authority is not None and await self._authority.renew():
                    await self._post(message, is_again=True)
                    return
                self._fail(message, LOGIN_CODE, f"HTTP {response.status_code}: it wants a login")
                return
            if response.status_code == 404 and self._session:
                self._fail(message, HTTP_CODE, "the server has forgotten the session")
                self._on_end("the server has forgotten the session")
                return
            if response.is_redirect:
                place = response.headers.get("location", "")[:200]
                text = f"it leads to {place}, which is not followed; name that as the server's url"
                self._fail(message, HTTP_CODE, f"HTTP {response.status_code}: {text}")
                return
            if response.status_code >= 300:
                said = (await bounded(response, 2000)).decode("utf-8", "replace")
                self._fail(message, HTTP_CODE, f"HTTP {response.status_code} {' '.join(said.split())[:300]}")
                return
            session = response.headers.get("mcp-session-id")
            if message.get("method") == "initialize" and session and session.isascii():
                self._session = session
            await self._answered(message, response)
        finally:
            await response.aclose()

    async def _answered(self, message: JsonObject, response: Any) -> None:
        is_request = "id" in message and "method" in message
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            await self._stream(message, response)
        elif kind.startswith("application/json"):
            data = await bounded(response, MAX_MESSAGE_BYTES)
            try:
                said = json.loads(data)
            except (ValueError, RecursionError):
                self._fail(message, HTTP_CODE, "the answer is no JSON, or too long")
                return
            self._on_message(said)
            if is_request and not _answers(said, message["id"]):
                self._fail(message, HTTP_CODE, "the answer is none to this request")
        elif is_request:
            self._fail(message, HTTP_CODE, f"the answer is {kind[:60] or 'of no type'}, not JSON or events")

    async def _stream(self, message: JsonObject, response: Any) -> None:
        """Events until the answer; a stream that ends before is gone on with."""
        state = StreamState()
        number = message.get("id")
        if await self._read(response, state, number):
            return
        for _ in range(MAX_RESUMES if state.last_id else 0):
            await asyncio.sleep(min(state.retry_s, MAX_WAIT_S))
            headers = {**await self._headers(), "last-event-id": state.last_id}
            async with self._client.stream("GET", self._spec.url, headers=headers) as again:
                if again.status_code != 200:
                    break
                if await self._read(again, state, number):
                    return
        self._fail(message, HTTP_CODE, "the connection was cut before the answer")

    async def _read(self, response: Any, state: StreamState, number: Any) -> bool:
        """Hand on every message; whether the answer to request `number` was among them."""
        try:
            async for data in events(response, state):
                try:
                    message = json.loads(data)
                except (ValueError, RecursionError):
                    log.info("MCP server %s sent an event that is no JSON", self._spec.name)
                    continue
                self._on_message(message)
                if _answers(message, number):
                    return True
        except self._httpx.TransportError as error:
            log.info("MCP server %s: a stream broke: %s", self._spec.name, words(error))
        return False

    async def _listen(self) -> None:
        """The server's own stream, for changes of its tools. Many servers have none."""
        state = StreamState()
        wait_s = 1.0
        while True:
            try:
                headers = await self._headers()
                if state.last_id:
                    headers["last-event-id"] = state.last_id
                async with self._client.stream("GET", self._spec.url, headers=headers) as response:
                    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
                    if response.status_code != 200 or not is_stream:
                        return
                    wait_s = 1.0
                    await self._read(response, state, object())
            except self._httpx.HTTPError as error:
                log.debug("MCP server %s: no stream: %s", self._spec.name, words(error))
                wait_s = min(wait_s * 2, MAX_WAIT_S)
            await asyncio.sleep(max(wait_s, min(state.retry_s, MAX_WAIT_S)))

    async def aclose(self) -> None:
        tasks = [task for task in (self._sender, self._listener, *self._requests.values()) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session:
            try:
                async with asyncio.timeout(2.0):
                    await self._client.delete(self._spec.url, headers=await self._headers())
            except (self._httpx.HTTPError, TimeoutError) as error:
                log.debug("MCP server %s: its session stays: %s", self._spec.name, words(error))
        await self._client.aclose()


def _answers(said: Any, number: Any) -> bool:
    """Whether a message, or one of a batch, is the answer to request `number`."""
    messages = said if isinstance(said, list) else [said]
    return any(isinstance(one, dict) and "method" not in one and one.get("id") == number for one in messages)


def refuse_packed() -> dict[str, list[Callable[..., Any]]]:
    """Hooks of a client that takes no compressed answer: a few bytes of it may unpack to gigabytes."""
    import httpx  # lazy: as above

    async def check(response: Any) -> None:
        packing = response.headers.get("content-encoding", "")
        if packing.strip().lower() not in ("", "identity"):
            text = f"its answer is compressed ({packing[:60]}), which nobody asked for"
            raise httpx.DecodingError(text, request=response.request)

    return {"response": [check]}


async def bounded(response: Any, limit: int) -> bytes:
    """The body, and no more of it than a byte over the limit."""
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > limit:
            break
    return bytes(data[: limit + 1])


async def events(response: Any, state: StreamState) -> AsyncIterator[str]:
    """The data of each event; its kind, id and retry are kept in `state`."""
    lines: list[str] = []
    kind = ""
    size = 0
    async for line in _lines(response):
        if line == "":
            state.kind = kind
            if lines and (data := "\n".join(lines)):
                yield data
            lines, size, kind = [], 0, ""
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            # An empty line of data takes its place, too.
            size += len(value) + 1
            if size > MAX_MESSAGE_BYTES:
                return
            lines.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            state.last_id = value
        elif name == "retry" and value.isdecimal() and len(value) < 9:
            state.retry_s = int(value) / 1000


async def _lines(response: Any) -> AsyncIterator[str]:
    """Lines as this format ends them. The HTTP client's own also end at U+2028 and the like, which JSON may
    hold as they are.
    """
    parts: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        if parts and parts[-1].endswith(b"\r") and not piece.startswith(b"\n"):
            # The end of a line by itself: what follows shows that it is no half of one.
            parts.append(b"\n")
        parts.append(piece)
        size += len(piece)
        if b"\n" not in piece and b"\r" not in piece:
            if size > MAX_MESSAGE_BYTES:
                return
            continue
        *lines, rest = _LINE_END.split(b"".join(parts))
        parts, size = [rest] if rest else [], len(rest)
        for line in lines:
            yield line.decode("utf-8", "replace")
    if parts:
        yield b"".join(parts).rstrip(b"\r").decode("utf-8", "replace")


def words(error: BaseException) -> str:
    return str(error) or type(error).__name__

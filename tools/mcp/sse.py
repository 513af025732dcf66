"""The transport with an address from before 2025-03-26 (`"type": "sse"`): one stream of events brings all
messages of the server, its first event names the address for ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

from k3agent.errors import K3AgentError
from k3agent.jsonrpc import RpcError
from k3agent.tools.mcp.http import HTTP_CODE, Authority, HttpTransport, StreamState, events, words
from k3agent.tools.mcp.server import LOGIN_CODE
from k3agent.types import JsonObject, ServerSpec

log = logging.getLogger(__name__)


class SseTransport(HttpTransport):
    """`authority` as for the newer transport."""

    def __init__(
        self,
        spec: ServerSpec,
        on_message: Callable[[Any], None],
        on_end: Callable[[str], None],
        authority: Authority | None,
    ) -> None:
        super().__init__(spec, on_message, on_end, authority)
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._hearing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises RpcError where the stream cannot be had."""
        self._hearing = self._listener = asyncio.create_task(self._hear())
        self._address = await self._endpoint
        await super().start()

    async def _listen(self) -> None:
        """There is one stream, and it is heard already: it ends with who listens."""
        if self._hearing is not None:
            await self._hearing

    async def _answered(self, message: JsonObject, response: Any) -> None:
        """The answer comes with the stream."""

    async def _hear(self) -> None:
        try:
            code, reason = await self._heard()
        except (self._httpx.HTTPError, self._httpx.InvalidURL, ValueError, K3AgentError) as error:
            code, reason = HTTP_CODE, f"{self._spec.url} cannot be reached: {words(error)}"
        if self._endpoint.done():
            self._on_end(reason)
        else:
            self._endpoint.set_exception(RpcError(code, reason))

    async def _heard(self, *, is_again: bool = False) -> tuple[int, str]:
        """The stream to its end: code and reason of that."""
        headers = {**await self._headers(), "accept": "text/event-stream"}
        async with self._client.stream("GET", self._spec.url, headers=headers) as response:
            if response.status_code in (401, 403):
                if not is_again and self._authority is not None and await self._authority.renew():
                    return await self._heard(is_again=True)
                return LOGIN_CODE, f"HTTP {response.status_code}: it wants a login"
            kind = response.headers.get("content-type", "")
            if response.status_code != 200 or not kind.startswith("text/event-stream"):
                said = f"HTTP {response.status_code}, {kind[:60] or 'no type'}"
                return HTTP_CODE, f"{self._spec.url} gives no stream of events ({said}); is its type http?"
            state = StreamState()
            async for data in events(response, state):
                if problem := self._take(state.kind, data):
                    return HTTP_CODE, problem
        return HTTP_CODE, "the server has closed its stream"

    def _take(self, kind: str, data: str) -> str:
        """Act on one event; why nothing more can come of the stream, or ''."""
        if kind == "endpoint":
            address = urljoin(self._spec.url, data.strip())
            if _origin(address) != _origin(self._spec.url):
                # Keys and tokens go there.
                return f"it wants messages at another server, {address[:200]}"
            if not self._endpoint.done():
                self._endpoint.set_result(address)
            return ""
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            log.info("MCP server %s sent an event that is no JSON", self._spec.name)
            return ""
        self._on_message(message)
        return ""


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)

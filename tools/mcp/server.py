"""One server of foreign tools: connects in the background, lists its tools, runs calls, comes back.

Its state is always one word and a reason: starting, ready, failed (also: too slow), login (it wants the user
to sign in), off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from k3agent import __version__
from k3agent.errors import ToolError
from k3agent.jsonrpc import METHOD_NOT_FOUND, Peer, RpcClosed, RpcError
from k3agent.safety.visible import clean
from k3agent.tools.mcp.catalog import MAX_TOOLS, Listed, listed
from k3agent.tools.mcp.transport import ProgramTransport, Transport
from k3agent.tools.support.processes import SessionLog
from k3agent.types import JsonObject, ServerSpec

log = logging.getLogger(__name__)

PROTOCOL_VERSION = "2025-11-25"
KNOWN_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MAX_PAGES = 50
# The code of the answer that a transport gives in the name of a server that wants a login.
LOGIN_CODE = -32401
# A server that failed is tried again by a call, but not by each.
RETRY_S = 5.0
# Changes of the list of tools, and reports of progress, that come faster are taken together.
LIST_AGAIN_S = 1.0
REPORT_S = 0.1
MAX_SAID_CHARS = 2_000


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    LOGIN = "login"
    OFF = "off"


class Server:
    """`on_change` is called after each change of `state` or `tools`. `open_http` makes the transport for
    addresses.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        environ: Mapping[str, str],
        cwd: Path,
        open_http: Callable[[ServerSpec, Callable[[Any], None], Callable[[str], None]], Transport],
        processes: SessionLog,
        on_change: Callable[[Server], None] = lambda server: None,
    ) -> None:
        self._processes = processes
        self.spec = spec
        self.state = State.OFF
        self.detail = ""
        self.tools: tuple[Listed, ...] = ()
        #: as the server sent them, to be remembered
        self.raw_tools: list[Any] = []
        self.info = ""
        self._environ, self._cwd = environ, cwd
        self._open_http = open_http
        self._on_change = on_change
        self._peer: Peer | None = None
        self._transport: Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._is_list_old = False
        self._progress: dict[str, Callable[[str], None]] = {}
        self._num_calls = 0
        self._failed_at = 0.0
        self._is_closed = False

    # --- its life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect in the background."""
        if self.spec.problem:
            self._set(State.FAILED, self.spec.problem)
        elif not self.spec.is_enabled:
            self._set(State.OFF, "switched off in its configuration")
        elif self._connecting is None or self._connecting.done():
            self._set(State.STARTING, "")
            self._connecting = asyncio.create_task(self._connect())

    async def ready(self) -> None:
        """Wait until the server can be used; a failed one is tried again. Raises ToolError."""
        is_stale = asyncio.get_running_loop().time() - self._failed_at > RETRY_S
        may_try = self.state in (State.LOGIN, State.OFF) or (self.state is State.FAILED and is_stale)
        if may_try and not self.spec.problem:
            self.start()
        if self._connecting is not None and self.state is State.STARTING:
            await asyncio.shield(self._connecting)
        if self.state is not State.READY:
            raise ToolError(f"the MCP server {self.spec.name} cannot be used: {self.explained}")

    @property
    def explained(self) -> str:
        """The state in words."""
        if self.state is State.LOGIN:
            return f"it wants a login: run `k3agent mcp login {self.spec.name}` in a terminal"
        return f"{self.state.value}: {self.detail}" if self.detail else self.state.value

    def _set(self, state: State, detail: str) -> None:
        detail = _said(detail)
        self.state, self.detail = state, detail
        if state is State.FAILED:
            self._failed_at = asyncio.get_running_loop().time()
            log.warning("MCP server %s failed: %s", self.spec.name, detail)
        if not self._is_closed:
            self._on_change(self)

    async def _connect(self) -> None:
        limit_s = self.spec.start_timeout_s
        await self._drop()
        try:
            async with asyncio.timeout(limit_s):
                await self._open()
                await self._list()
        except TimeoutError:
            await self._drop()
            self._set(State.FAILED, f"no answer within {limit_s:.0f} s")
        except (ToolError, RpcError, RpcClosed) as error:
            await self._drop()
            if isinstance(error, RpcError) and error.code == LOGIN_CODE:
                self._set(State.LOGIN, str(error))
            elif self.state is not State.FAILED:
                self._set(State.FAILED, str(error))
        else:
            self._set(State.READY, "")

    async def _open(self) -> None:
        peer: Peer | None = None

        def receive(message: Any) -> None:
            if peer is not None:
                peer.receive(message)

        if self.spec.url:
            transport = self._open_http(self.spec, receive, self._ended)
        else:
            transport = ProgramTransport(
                self.spec, self._environ, self._cwd, receive, self._ended, self._processes
            )
        peer = Peer(
            transport.send,
            on_request=self._asked,
            on_notification=self._told,
            cancels=lambda number: ("notifications/cancelled", {"requestId": number}),
        )
        self._transport, self._peer = transport, peer
        await transport.start()
        params: JsonObject = {
            "protocolVersion": PROTOCOL_VERSION,
            "capabilities": {"roots": {}},
            "clientInfo": {"name": "k3agent", "version": __version__},
        }
        answer = _object(await peer.request("initialize", params))
        version = answer.get("protocolVersion")
        if version not in KNOWN_VERSIONS:
            raise ToolError(
                f"it speaks the protocol version {version!r:.40}; known are {', '.join(KNOWN_VERSIONS)}"
            )
        info = _object(answer.get("serverInfo"))
        self.info = _said(f"{info.get('name', '')} {info.get('version', '')}".strip()[:80])
        transport.agreed(version)
        peer.notify("notifications/initialized", {})

    async def _list(self) -> None:
        peer = self._peer
        assert peer is not None
        tools: list[Any] = []
        cursor: Any = None
        for _ in range(MAX_PAGES):
            page = _object(await peer.request("tools/list", {} if cursor is None else {"cursor": cursor}))
            found = page.get("tools")
            tools += found if isinstance(found, list) else []
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or len(tools) >= MAX_TOOLS:
                break
        self.raw_tools = tools[:MAX_TOOLS]
        self.tools = listed(self.spec.name, self.raw_tools)

    def _ended(self, reason: str) -> None:
        """The transport has ended by itself."""
        if self._peer is not None:
            self._peer.close(reason)
        if self.state is not State.FAILED:
            was_ready = self.state is State.READY
            self._set(State.FAILED, reason)
            if was_ready:
                # It has worked: the next call may start it at once.
                self._failed_at = -RETRY_S

    async def _drop(self) -> None:
        transport, self._transport = self._transport, None
        if self._peer is not None:
            self._peer.close("the connection was closed")
            self._peer = None
        if transport is not None:
            await transport.aclose()

    async def aclose(self) -> None:
        self._is_closed = True
        for task in (self._connecting, self._listing):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._drop()

    # --- what the server says -----------------------------------------------------------------------------

    async def _asked(self, method: str, params: JsonObject) -> Any:
        if method == "ping":
            return {}
        if method == "roots/list":
            return {"roots": [{"uri": self._cwd.as_uri(), "name": self._cwd.name}]}
        raise RpcError(METHOD_NOT_FOUND, f"k3agent does not serve {method!r:.80}")

    def _told(self, method: str, params: JsonObject) -> None:
        match method:
            case "notifications/tools/list_changed":
                self._is_list_old = True
                if self.state is State.READY and (self._listing is None or self._listing.done()):
                    self._listing = asyncio.create_task(self._list_again())
            case "notifications/progress":
                report = self._progress.get(str(params.get("progressToken")))
                if report is not None:
                    report(_progress_line(params))
            case "notifications/message":
                log.info("MCP server %s: %.500s", self.spec.name, params.get("data"))
            case _:
                log.debug("MCP server %s: %s", self.spec.name, method)

    async def _list_again(self) -> None:
        # A change that is told of while the list is on its way may not be in it.
        while self._is_list_old:
            await asyncio.sleep(LIST_AGAIN_S)
            if self.state is not State.READY or self._peer is None:
                return
            self._is_list_old = False
            try:
                async with asyncio.timeout(self.spec.start_timeout_s):
                    await self._list()
            except (RpcError, RpcClosed, TimeoutError) as error:
                log.warning("MCP server %s: its tools cannot be listed again: %r", self.spec.name, error)
                return
            self._on_change(self)

    # --- calls --------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: JsonObject, report: Callable[[str], None]) -> JsonObject:
        """The result of `tools/call`. Raises ToolError; whether a lost call had effects is not known."""
        await self.ready()
        peer = self._peer
        assert peer is not None
        self._num_calls += 1
        token = f"call-{self._num_calls}"
        self._progress[token] = _sparing(report)
        params: JsonObject = {"name": tool, "arguments": arguments, "_meta": {"progressToken": token}}
        limit_s = self.spec.call_timeout_s
        try:
            return _object(await peer.request("tools/call", params, timeout_s=limit_s))
        except TimeoutError as error:
            raise ToolError(
                f"{tool} of {self.spec.name} gave no answer within {limit_s:.0f} s and was cancelled;"
                " it may have had effects"
            ) from error
        except RpcClosed as error:
            raise ToolError(
                f"{tool} of {self.spec.name} was cut off: {error}. It may have had effects"
            ) from error
        except RpcError as error:
            if error.code == LOGIN_CODE:
                self._set(State.LOGIN, str(error))
                raise ToolError(f"{tool} of {self.spec.name}: {self.explained}") from error
            said = _said(str(error))
            raise ToolError(f"{tool} of {self.spec.name} failed: {said} (code {error.code})") from error
        finally:
            del self._progress[token]


def _object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _said(text: str) -> str:
    """A server's words for people: bounded, and nothing that a terminal obeys."""
    text = clean(text[:MAX_SAID_CHARS])
    return text.encode("utf-8", "replace").decode()


def _sparing(report: Callable[[str], None]) -> Callable[[str], None]:
    last = -REPORT_S

    def sparing(text: str) -> None:
        nonlocal last
        now = asyncio.get_running_loop().time()
        if now - last >= REPORT_S:
            last = now
            report(text)

    return sparing


def _progress_line(params: JsonObject) -> str:
    total = params.get("total")
    done = f"{params.get('progress')} of {total}" if total is not None else f"{params.get('progress')}"
    message = params.get("message")
    said = f": {message}" if isinstance(message, str) else ""
    return _said(f"{done}{said}"[:500]) + "\n"

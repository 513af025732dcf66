"""All servers of a session: started in the background, told of once, closed together."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from k3agent.errors import ToolError
from k3agent.prompts.loader import load
from k3agent.tools.base import Tool, ToolContext
from k3agent.tools.mcp.bridge import BRIDGE, BridgeTool, ForeignTool, GoneTool, bridge_spec, listing
from k3agent.tools.mcp.catalog import PREFIX, Listed, remember, remembered
from k3agent.tools.mcp.http import HttpTransport
from k3agent.tools.mcp.oauth import StoredLogin, TokenStore
from k3agent.tools.mcp.server import Server, State
from k3agent.tools.mcp.sse import SseTransport
from k3agent.tools.mcp.transport import Transport
from k3agent.tools.support.processes import SessionLog, reap_orphans
from k3agent.types import JsonObject, ServerSpec, ToolSpec

# What tools of servers may take of each request when a session starts, in characters of JSON.
MAX_SPEC_CHARS = 60_000
MAX_LATE_CHARS = 30_000
# Which programs run, in a folder of `home`.
PROCESSES = "servers"


def frozen_specs(
    servers: Sequence[ServerSpec], home: Path, max_chars: int = MAX_SPEC_CHARS
) -> list[ToolSpec]:
    """What a new session's list gets: the bridge, and the tools that servers had when they were last there,
    as far as there is room.
    """
    active = [server for server in servers if server.is_enabled]
    if not active:
        return []
    specs = [bridge_spec([server.name for server in active])]
    left = max_chars
    for server in active:
        for item in remembered(home, server) or ():
            left -= _size(item.spec)
            if left >= 0:
                specs.append(item.spec)
    return specs


def _size(spec: ToolSpec) -> int:
    import json  # lazy: loaded by now

    return len(spec.name) + len(spec.description) + len(json.dumps(spec.parameters))


class Fleet:
    """The servers. `notify` is told of failures, by level and text; `tokens` gives the store of a server's
    logins; `home` is where the lists of tools are read, and written if `keeps_lists`.
    """

    def __init__(
        self,
        servers: Sequence[ServerSpec],
        *,
        environ: Mapping[str, str],
        cwd: Path,
        home: Path,
        tokens: Callable[[str], TokenStore],
        notify: Callable[[str, str], object] = lambda level, text: None,
        with_disabled: bool = False,
        keeps_lists: bool = True,
    ) -> None:
        self._home = home
        self._keeps_lists = keeps_lists
        self._tokens = tokens
        self.notify = notify
        self._told: set[tuple[str, str]] = set()
        self._is_started = False
        processes = SessionLog(home / PROCESSES, f"-{secrets.token_hex(4)}")
        self.servers = {
            spec.name: Server(
                spec,
                environ=environ,
                cwd=cwd,
                open_http=self._open_http,
                processes=processes,
                on_change=self._changed,
            )
            for spec in servers
            if spec.is_enabled or with_disabled
        }

    def start(self) -> None:
        """All servers, in the background, once."""
        if self._is_started:
            return
        self._is_started = True
        # Those of an agent that was killed.
        reap_orphans(self._home / PROCESSES)
        for server in self.servers.values():
            server.start()

    def _open_http(
        self, spec: ServerSpec, on_message: Callable[[Any], None], on_end: Callable[[str], None]
    ) -> Transport:
        has_own = any(name.lower() == "authorization" for name in spec.headers)
        authority = None if has_own else StoredLogin(spec, self._tokens(spec.name))
        transport = SseTransport if spec.is_sse else HttpTransport
        return transport(spec, on_message, on_end, authority)

    def _changed(self, server: Server) -> None:
        name = server.spec.name
        if server.state is State.READY:
            if self._keeps_lists:
                remember(self._home, server.spec, server.raw_tools)
        elif server.state in (State.FAILED, State.LOGIN):
            words = f"The MCP server {name} cannot be used: {server.explained}"
            if (name, words) not in self._told:
                self._told.add((name, words))
                self.notify("warning", f"{words}. `k3agent mcp test {name}` tries it.")

    async def aclose(self) -> None:
        await asyncio.gather(*(server.aclose() for server in self.servers.values()), return_exceptions=True)

    # --- for the session ----------------------------------------------------------------------------------

    def states(self) -> list[JsonObject]:
        """{name, status, detail, tools} of each."""
        return [
            {
                "name": server.spec.name,
                "status": server.state.value,
                "detail": server.detail,
                "tools": len(server.tools),
            }
            for server in self.servers.values()
        ]

    def tools_for(self, specs: Sequence[ToolSpec]) -> dict[str, Tool[Any]]:
        """The tools of a session's list that are not built in."""
        known = {
            item.spec.name: item
            for server in self.servers.values()
            for item in (*(remembered(self._home, server.spec) or ()), *server.tools)
        }
        found: dict[str, Tool[Any]] = {}
        for spec in specs:
            if spec.name == BRIDGE:
                found[BRIDGE] = BridgeTool(self)
            elif spec.name in known:
                found[spec.name] = ForeignTool(known[spec.name], self)
            elif spec.name.startswith(PREFIX):
                found[spec.name] = GoneTool(spec.name)
        return found

    def late(self, specs: Sequence[ToolSpec], said: Collection[str]) -> list[str]:
        """Texts for the model: tools of servers that are ready and not in the session's list. `said`: the
        texts that it has read already.
        """
        if not any(spec.name == BRIDGE for spec in specs):
            return []
        fixed = {spec.name: spec for spec in specs}
        texts: list[str] = []
        for server in self.servers.values():
            if server.state is not State.READY:
                continue
            news = tuple(item for item in server.tools if fixed.get(item.spec.name) != item.spec)
            if news:
                text = _late_text(server.spec.name, news)
                if text not in said:
                    texts.append(text)
        return texts

    # --- for the tools ------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return list(self.servers)

    async def tools_of(self, server: str) -> tuple[Listed, ...]:
        found = self._find(server)
        await found.ready()
        return found.tools

    async def call(self, server: str, tool: str, arguments: JsonObject, ctx: ToolContext) -> JsonObject:
        return await self._find(server).call(tool, arguments, ctx.emit)

    def _find(self, name: str) -> Server:
        server = self.servers.get(name)
        if server is None:
            raise ToolError(f"there is no MCP server {name!r:.80}. Configured: {', '.join(self.servers)}.")
        return server


def _late_text(server: str, tools: tuple[Listed, ...]) -> str:
    head = load("mcp/late").strip().replace("{server}", server)
    text = listing(tools)
    if len(text) > MAX_LATE_CHARS:
        names = ", ".join(item.tool for item in tools)
        text = f"{names[:MAX_LATE_CHARS]}\nCall it with an empty `tool` to see what they take."
    return f"{head}\n\n{text}"

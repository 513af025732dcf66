"""Agent Client Protocol, the agent's side: methods of the editor to sessions.

One process serves any number of sessions of one editor. Each reads the settings of its own folder.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3agent import __version__
from k3agent.acp.conversation import Abilities, Conversation
from k3agent.acp.fields import (
    existing_folder,
    folder_of,
    invalid,
    list_of,
    object_of,
    optional_text,
    text_of,
)
from k3agent.acp.prompts import read_blocks
from k3agent.errors import ConfigError, K3AgentError
from k3agent.jsonrpc import METHOD_NOT_FOUND, Peer, RpcError
from k3agent.types import JsonObject

if TYPE_CHECKING:
    from k3agent.agent.options import SessionOptions
    from k3agent.config.settings import Settings

log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
PAGE = 50
RESOURCE_NOT_FOUND = -32002


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the server is started. `flags` are settings given on the command line, by key."""

    environ: Mapping[str, str]
    home: Path
    flags: Mapping[str, Any]
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Server:
    """`peer` is set before the first message comes."""

    peer: Peer

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._abilities = Abilities()
        self._open: dict[str, Conversation] = {}
        self._methods: dict[str, Callable[[JsonObject], Awaitable[JsonObject]]] = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/fork": self._fork,
            "session/list": self._list,
            "session/prompt": self._prompt,
            "session/set_mode": self._set_mode,
            "session/close": self._close,
        }

    async def request(self, method: str, params: JsonObject) -> Any:
        handler = self._methods.get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method!r}")
        return await handler(params)

    def notification(self, method: str, params: JsonObject) -> None:
        match method:
            case "session/cancel":
                conversation = self._open.get(str(params.get("sessionId")))
                if conversation is not None:
                    # After the prompt that came just before it, whose task has not begun.
                    asyncio.get_running_loop().call_soon(conversation.cancel)
            case "$/cancel_request":
                self.peer.cancel(params.get("requestId"))
            case _:
                log.info("unknown notification %s", method)

    async def aclose(self) -> None:
        """Close all sessions; those that cannot be closed do not keep the others."""
        while self._open:
            session_id, conversation = self._open.popitem()
            try:
                await conversation.aclose()
            except (K3AgentError, OSError) as error:
                log.warning("session %s was not closed in order: %s", session_id, error)
        await asyncio.to_thread(self._prune)

    def _prune(self) -> None:
        """Editors open sessions that nobody writes to."""
        from k3agent.store.sessions import SessionStore  # lazy: sqlite

        try:
            store = SessionStore(self._options.home)
            try:
                store.prune_unused()
            finally:
                store.close()
        except (K3AgentError, OSError) as error:
            log.warning("sessions without a prompt were not removed: %s", error)

    # --- the connection -----------------------------------------------------------------------------------

    async def _initialize(self, params: JsonObject) -> JsonObject:
        if not isinstance(params.get("protocolVersion"), int):
            raise invalid(f"protocolVersion must be a number, not {params.get('protocolVersion')!r:.40}")
        offered = object_of(params, "clientCapabilities")
        files = object_of(offered, "fs")
        self._abilities = Abilities(
            reads_files=files.get("readTextFile") is True,
            writes_files=files.get("writeTextFile") is True,
            draws_terminals=object_of(offered, "_meta").get("terminal_output") is True,
            has_forms=isinstance(object_of(offered, "elicitation").get("form"), dict),
        )
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": True},
                "sessionCapabilities": {
                    "list": {},
                    "resume": {},
                    "fork": {},
                    "close": {},
                    "additionalDirectories": {},
                },
            },
            "agentInfo": {"name": "k3agent", "title": "k3agent", "version": __version__},
            "authMethods": [],
        }

    async def _authenticate(self, params: JsonObject) -> JsonObject:
        raise invalid(
            f"no way to sign in is called {params.get('methodId')!r:.80}: run `k3agent login` in a terminal"
        )

    # --- sessions -----------------------------------------------------------------------------------------

    async def _new(self, params: JsonObject) -> JsonObject:
        conversation = await self._start(params, "new")
        conversation.listen()
        return {"sessionId": conversation.session.id, "modes": conversation.modes}

    async def _load(self, params: JsonObject) -> JsonObject:
        conversation = await self._start(params, "resume")
        conversation.replay()
        conversation.listen()
        return {"modes": conversation.modes}

    async def _resume(self, params: JsonObject) -> JsonObject:
        conversation = await self._start(params, "resume")
        conversation.listen()
        return {"modes": conversation.modes}

    async def _fork(self, params: JsonObject) -> JsonObject:
        conversation = await self._start(params, "fork")
        conversation.listen()
        return {"sessionId": conversation.session.id, "modes": conversation.modes}

    async def _start(self, params: JsonObject, how: str) -> Conversation:
        """Open a session and keep it; `how`: new, resume or fork."""
        from k3agent.acp.editor import Editor  # lazy: the agent with its tools, 0.3 s
        from k3agent.acp.servers import merged, read_servers
        from k3agent.agent.live import Broadcast
        from k3agent.agent.session import Session

        cwd = folder_of(params, "cwd").resolve()
        extra = tuple(
            existing_folder(str(folder), "additionalDirectories")
            for folder in list_of(params, "additionalDirectories")
        )
        known = text_of(params, "sessionId") if how != "new" else ""
        if how == "resume" and known in self._open:
            await self._open.pop(known).aclose()
        abilities = self._abilities
        editor = Editor(self.peer, can_read=abilities.reads_files, can_write=abilities.writes_files)
        options = self._session_options(cwd, extra, editor.wrap)
        handed = read_servers(list_of(params, "mcpServers"), self._options.environ)
        options = dataclasses.replace(options, servers=merged(options.servers, handed))
        try:
            if how == "new":
                session = await Session.create(options)
            elif how == "fork":
                session = await Session.fork(known, options)
            else:
                session = await Session.resume(known, options)
        except BaseException:
            await options.client.aclose()
            raise
        editor.session_id = session.id
        broadcast = Broadcast(session, self._options.home)
        await broadcast.start()
        conversation = Conversation(session, cwd, options.client, broadcast, self.peer, abilities)
        self._open[session.id] = conversation
        return conversation

    def _session_options(
        self, cwd: Path, extra: tuple[Path, ...], adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> SessionOptions:
        from k3agent.agent.options import SessionOptions  # lazy: as above
        from k3agent.config.settings import load_settings
        from k3agent.providers.registry import choose_client

        options = self._options
        settings: Settings = load_settings(options.environ, cwd, options.flags)
        if settings.untrusted is not None:
            log.warning("%s is not obeyed: trust it with `k3agent config trust`", settings.untrusted)
        client = choose_client(settings, options.environ, options.home, log.info)
        told = SessionOptions.from_settings(
            settings,
            cwd=cwd,
            client=client,
            home=options.home,
            environ=options.environ,
            default_mode="default",
            extra_dirs=extra,
        )
        return dataclasses.replace(
            told,
            allow=(*settings.allow, *options.allow),
            deny=(*settings.deny, *options.deny),
            is_interactive=True,
            adapt_tools=adapt,
        )

    async def _list(self, params: JsonObject) -> JsonObject:
        from k3agent.store.sessions import SessionStore  # lazy: sqlite

        cwd = optional_text(params, "cwd")
        start = _offset(optional_text(params, "cursor"))
        store = SessionStore(self._options.home)
        try:
            rows = store.shown_sessions(cwd)
        finally:
            store.close()
        found: JsonObject = {
            "sessions": [
                {
                    "sessionId": row.id,
                    "cwd": row.cwd,
                    "title": " ".join(row.title.split()) or None,
                    "updatedAt": row.updated_at.isoformat(),
                }
                for row in rows[start : start + PAGE]
            ]
        }
        if start + PAGE < len(rows):
            found["nextCursor"] = str(start + PAGE)
        return found

    async def _prompt(self, params: JsonObject) -> JsonObject:
        conversation = self._conversation(params)
        text, images = read_blocks(list_of(params, "prompt"), conversation.cwd)
        return await conversation.prompt(text, images)

    async def _set_mode(self, params: JsonObject) -> JsonObject:
        conversation = self._conversation(params)
        try:
            conversation.set_mode(text_of(params, "modeId"))
        except ConfigError as error:
            raise invalid(str(error)) from error
        return {}

    async def _close(self, params: JsonObject) -> JsonObject:
        conversation = self._conversation(params)
        del self._open[conversation.session.id]
        await conversation.aclose()
        return {}

    def _conversation(self, params: JsonObject) -> Conversation:
        session_id = text_of(params, "sessionId")
        conversation = self._open.get(session_id)
        if conversation is None:
            raise RpcError(RESOURCE_NOT_FOUND, f"session {session_id!r} is not open: load it first")
        return conversation


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isdecimal() or len(cursor) > 9:
        raise invalid(f"cursor {cursor!r:.40} is none of ours")
    return int(cursor)

"""A running session, open to other processes of the same user: its events out, words and interrupts in.

A Unix socket in the data folder, one JSON object a line; only this user may reach it. Who reads slowly loses
passing events first, then the connection: the session never waits for a watcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

from k3agent import codec
from k3agent.agent.sockets import is_private, peer_uid, socket_path
from k3agent.errors import K3AgentError
from k3agent.events import AnyEvent, Decision, DurableEvent
from k3agent.providers.base import ModelInfo
from k3agent.types import JsonObject, SessionId

log = logging.getLogger(__name__)

FORMAT = 1
MAX_LINE_BYTES = 1 << 26
# Behind this, a watcher gets only what is stored; behind the second, nothing more.
SLOW_BYTES = 1 << 20
LOST_BYTES = 1 << 26
_DURABLE = get_args(DurableEvent)


class Guard(Protocol):
    @property
    def status(self) -> str: ...


class Heard(Protocol):
    """A session as its watchers have it. `standing_events`: what one who comes now has to be told first."""

    id: SessionId
    info: ModelInfo
    permission_mode: str

    @property
    def is_running(self) -> bool: ...
    @property
    def compacts_at(self) -> int | None: ...
    @property
    def sandbox(self) -> Guard: ...
    @property
    def standing_events(self) -> Sequence[AnyEvent]: ...
    def subscribe(self, reader: Callable[[AnyEvent], None], *, is_shown: bool = True) -> None: ...
    def interrupt(self, reason: str) -> None: ...
    def steer(self, text: str) -> None: ...
    def answer(
        self, call_id: str, decision: Decision, *, arguments: str | None = None, reason: str = ""
    ) -> None: ...
    def reply(self, call_id: str, text: str) -> None: ...
    def allow_rule(self, rule: str) -> None: ...


class Broadcast:
    """Lets a session be watched, from `start` to `aclose`."""

    def __init__(self, session: Heard, home: Path) -> None:
        self._session = session
        self._path = socket_path(home, session.id)
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._watchers: set[asyncio.StreamWriter] = set()

    async def start(self) -> bool:
        """Whether it can be watched: a session works as well where no socket can be made."""
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_private(folder):
                raise PermissionError(f"{folder} is open to other users")
            # The session's lock is held: what lies here was left by a process that is gone.
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=MAX_LINE_BYTES)
            self._inode = self._path.stat().st_ino
        except OSError as error:
            log.warning("session %s cannot be watched: %s", self._session.id, error)
            return False
        self._session.subscribe(self._event, is_shown=False)
        return True

    def go_over(self, session: Heard) -> None:
        """From now on it is this one that is watched, under the same id."""
        self._session = session
        if self._server is not None:
            session.subscribe(self._event, is_shown=False)

    async def aclose(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        with contextlib.suppress(OSError):
            # The lock may be free already, and the socket that of the next process.
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        server.close()
        for writer in list(self._watchers):
            writer.close()

    def _event(self, event: AnyEvent) -> None:
        if not self._watchers:
            return
        line = _line(event)
        for writer in list(self._watchers):
            behind = writer.transport.get_write_buffer_size()
            if behind > LOST_BYTES:
                self._watchers.discard(writer)
                writer.transport.abort()
            elif behind <= SLOW_BYTES or isinstance(event, _DURABLE):
                writer.write(line)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if peer_uid(writer.get_extra_info("socket")) not in (os.getuid(), 0):
            writer.close()
            return
        writer.write(json.dumps(self._hello()).encode() + b"\n")
        for event in self._session.standing_events:
            writer.write(_line(event))
        self._watchers.add(writer)
        try:
            while line := await reader.readline():
                problem = self._obey(line)
                if problem:
                    writer.write(json.dumps({"problem": problem}).encode() + b"\n")
        except (ConnectionError, ValueError):
            # ValueError: a line that never ends.
            pass
        finally:
            self._watchers.discard(writer)
            writer.close()

    def _hello(self) -> JsonObject:
        session = self._session
        info = session.info
        return {
            "hello": FORMAT,
            "pid": os.getpid(),
            "session": session.id,
            "is_running": session.is_running,
            "model": info.model,
            "provider": info.provider,
            "base_url": info.base_url,
            "context_window": info.context_window,
            "max_output_tokens": info.max_output_tokens,
            "profile": info.profile.value,
            "permission_mode": session.permission_mode,
            "sandbox": session.sandbox.status,
            "compacts_at": session.compacts_at,
        }

    def _obey(self, line: bytes) -> str:
        """Do what a watcher says; what stands against it, or ''."""
        session = self._session
        try:
            said: Any = json.loads(line)
            match said:
                case {"steer": str(text)} if text.strip():
                    if not session.is_running:
                        return "no turn is running"
                    session.steer(text)
                case {"interrupt": str(reason)}:
                    session.interrupt(reason)
                case {"answer": str(call_id), "decision": decision}:
                    session.answer(
                        call_id,
                        Decision(decision),
                        arguments=said.get("arguments"),
                        reason=str(said.get("reason") or ""),
                    )
                case {"reply": str(call_id), "text": str(text)}:
                    session.reply(call_id, text)
                case {"allow": str(rule)}:
                    session.allow_rule(rule)
                case _:
                    return "not understood"
        except (ValueError, RecursionError, K3AgentError) as error:
            return str(error)
        return ""


def _line(event: AnyEvent) -> bytes:
    return codec.event_to_json(event).encode() + b"\n"


async def connect(home: Path, session_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """To the process that runs the session; None if there is none that can be heard."""
    path = socket_path(home, session_id)
    if not is_private(path.parent):
        return None
    with contextlib.suppress(OSError):
        return await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)
    return None

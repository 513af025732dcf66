"""A session that another process runs, with the face of a session: seen as it goes, spoken to, never written.

What was said before comes from the store, what happens now over the socket (live.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from k3agent import codec
from k3agent.agent import live
from k3agent.agent.options import Receipt
from k3agent.agent.tasks import load_todo
from k3agent.agent.undo import Undo
from k3agent.errors import ConfigError, K3AgentError, StoreError, ToolError
from k3agent.events import AnyEvent, CallEnded, Decision, MessageAdded, Noticed, TurnEnded, TurnStarted
from k3agent.providers.base import ModelInfo, Profile
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, Message, MessageId, SessionId

log = logging.getLogger(__name__)

HELLO_S = 5.0


class Guard(NamedTuple):
    """What guards the commands of the process that runs the session."""

    status: str


class WatchedSession:
    """Made by `open`. `on_over` is called once, when the other process lets go of the session."""

    def __init__(self, home: Path, hello: JsonObject, writer: asyncio.StreamWriter) -> None:
        self.id = SessionId(str(hello["session"]))
        self.pid = int(hello["pid"])
        self.is_running = bool(hello["is_running"])
        self.permission_mode = str(hello["permission_mode"])
        self.compacts_at: int | None = hello.get("compacts_at")
        self.sandbox = Guard(str(hello["sandbox"]))
        self.info = ModelInfo(
            provider=str(hello["provider"]),
            model=str(hello["model"]),
            base_url=str(hello["base_url"]),
            context_window=int(hello["context_window"]),
            max_output_tokens=int(hello["max_output_tokens"]),
            profile=Profile(hello["profile"]),
            why=f"run by process {hello['pid']}",
        )
        self.receipt = Receipt()
        self.jobs: tuple[Any, ...] = ()
        self.draft: str | None = None
        self.has_open_turn = False
        self.on_over: Callable[[], None] = lambda: None
        self._writer = writer
        self._store = SessionStore(home)
        self._readers: list[Callable[[AnyEvent], None]] = []
        self._early: list[AnyEvent] = []
        self._listening: asyncio.Task[None] | None = None
        self.messages: list[Message] = []

    @classmethod
    async def open(cls, home: Path, session_id: str) -> WatchedSession | None:
        """None where no process lets this session be watched."""
        found = await live.connect(home, session_id)
        if found is None:
            return None
        reader, writer = found
        try:
            async with asyncio.timeout(HELLO_S):
                hello = json.loads(await reader.readline() or b"{}")
            if hello.get("hello") != live.FORMAT or hello.get("session") != session_id:
                raise ValueError(f"it speaks another language: {str(hello)[:80]}")
            session = cls(home, hello, writer)
        except (OSError, ValueError, KeyError, TypeError, TimeoutError) as error:
            writer.close()
            log.warning("session %s cannot be watched: %s", session_id, error)
            return None
        session._listening = asyncio.create_task(session._listen(reader))
        # After the socket: a message that is stored meanwhile comes twice, and is told by its id.
        session.messages = session._store.messages(session.id)
        return session

    @property
    def todo(self) -> Sequence[dict[str, Any]]:
        try:
            return tuple(load_todo(self._store, self.id))
        except StoreError:
            return ()

    def subscribe(self, reader: Callable[[AnyEvent], None]) -> None:
        """From the beginning of the running turn on, as far as it is not in `messages`."""
        self._readers.append(reader)
        if self.is_running:
            reader(TurnStarted(session=self.id, seq=0, at=datetime.now(UTC), prompt=""))
        early, self._early = self._early, []
        for event in early:
            reader(event)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._hear(json.loads(line))
        except (OSError, ValueError) as error:
            log.warning("watching session %s ends: %s", self.id, error)
        if self.is_running:
            self._warn(f"process {self.pid} is gone in the middle of a turn")
        self.is_running = False
        self.on_over()

    def _hear(self, said: JsonObject) -> None:
        if "problem" in said:
            self._warn(f"process {self.pid} did not do that: {said['problem']}")
            return
        event = codec.event_from_dict(said)
        match event:
            case TurnStarted():
                self.is_running = True
            case TurnEnded():
                self.is_running = False
            case CallEnded():
                self.receipt.add_files(event.files)
            case MessageAdded():
                if any(message.id == event.message.id for message in self.messages[-50:]):
                    return
                self.messages.append(event.message)
            case _:
                pass
        self._hand_out(event)

    def _warn(self, text: str) -> None:
        self._hand_out(Noticed(session=self.id, seq=0, at=datetime.now(UTC), level="warning", text=text))

    def _hand_out(self, event: AnyEvent) -> None:
        if not self._readers:
            self._early.append(event)
        for reader in self._readers:
            reader(event)

    # --- what is said to it -------------------------------------------------------------------------------

    def _say(self, **said: Any) -> None:
        self._writer.write(json.dumps(said).encode() + b"\n")

    def steer(self, text: str) -> None:
        self._say(steer=text)

    def interrupt(self, reason: str) -> None:
        self._say(interrupt=reason)

    def answer(
        self, call_id: str, decision: Decision, *, arguments: str | None = None, reason: str = ""
    ) -> None:
        self._say(answer=call_id, decision=decision.value, arguments=arguments, reason=reason)

    def reply(self, call_id: str, text: str) -> None:
        self._say(reply=call_id, text=text)

    def allow_rule(self, rule: str) -> None:
        self._say(allow=rule)

    def take_back_steering(self) -> list[str]:
        return []

    # --- what only its own process may do -----------------------------------------------------------------

    def set_permission_mode(self, mode: str) -> None:
        if mode != self.permission_mode:
            raise ConfigError(f"process {self.pid} keeps its permission mode, {self.permission_mode}")

    @property
    def undo(self) -> Undo:
        raise K3AgentError(f"process {self.pid} runs this session: interrupt it, then undo")

    def rewind(self, message_id: MessageId) -> str:
        raise K3AgentError(f"process {self.pid} runs this session: interrupt it, or fork the session")

    async def kill_job(self, job_id: str) -> None:
        raise ToolError(f"{job_id} belongs to process {self.pid}")

    async def aclose(self) -> None:
        """Stop watching; the other process goes on."""
        if self._listening is not None:
            self.on_over = lambda: None
            self._listening.cancel()
        self._writer.close()
        self._store.close()

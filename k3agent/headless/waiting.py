"""A run that begins later, while it waits: its session can be listed, watched and cancelled as others can."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from k3agent.agent.building import title_of
from k3agent.agent.emitter import Emitter
from k3agent.agent.live import Broadcast
from k3agent.agent.transcript import new_session_id
from k3agent.errors import K3AgentError
from k3agent.events import AnyEvent, Decision, Noticed
from k3agent.headless.runoptions import RunOptions
from k3agent.providers.base import ModelInfo
from k3agent.store.database import SessionLock
from k3agent.store.records import StoredSession
from k3agent.store.sessions import SessionStore, newest_session
from k3agent.types import SessionId

Cancel = Callable[[str], None]

NOT_YET = "it has not begun: wait for it, or interrupt it to cancel it"


class _Unknown(NamedTuple):
    """The sandbox of a session that is not there yet."""

    status: str = "chosen when it begins"


class WaitingSession:
    """What watchers see of it. `cancel` is called with the reason when one of them interrupts it."""

    is_running = True
    compacts_at = None
    sandbox = _Unknown()

    def __init__(
        self,
        session_id: SessionId,
        info: ModelInfo,
        mode: str,
        start: datetime,
        cancel: Callable[[str], None],
    ) -> None:
        self.id = session_id
        self.info = info
        self.permission_mode = mode
        self.start = start
        self._emitter = Emitter(session_id)
        self._cancel = cancel

    @property
    def standing_events(self) -> Sequence[AnyEvent]:
        text = f"This run waits until {self.start:%Y-%m-%d %H:%M}. To interrupt it now cancels it."
        return (self._emitter.emit(Noticed, level="info", text=text),)

    def subscribe(self, reader: Callable[[AnyEvent], None], *, is_shown: bool = True) -> None:
        """Nothing happens while it waits: who begins to watch is told of it at once."""

    def interrupt(self, reason: str) -> None:
        self._cancel(reason)

    def steer(self, text: str) -> None:
        raise K3AgentError(NOT_YET)

    def answer(
        self, call_id: str, decision: Decision, *, arguments: str | None = None, reason: str = ""
    ) -> None:
        raise K3AgentError(NOT_YET)

    def reply(self, call_id: str, text: str) -> None:
        raise K3AgentError(NOT_YET)

    def allow_rule(self, rule: str) -> None:
        raise K3AgentError(NOT_YET)


class Waiting:
    """Holds the session until the work begins. `lock` then goes over to the session itself, and so does
    `broadcast`; `give_up` takes back what was put into the store for one that never began.
    """

    def __init__(self, options: RunOptions, session: WaitingSession) -> None:
        """Raises StoreError where somebody else has the session."""
        self._home = options.home
        self._id = session.id
        self.lock = SessionLock(options.home, session.id)
        self.broadcast = Broadcast(session, options.home)
        stored = StoredSession(
            id=session.id,
            cwd=str(options.cwd.resolve()),
            provider=session.info.provider,
            title=title_of(options.prompt or next(iter(options.goals), "")),
        )
        with self._store() as store:
            store.begin_waiting(stored, session.start)

    def end(self) -> None:
        """The work begins."""
        with self._store() as store:
            store.end_waiting(self._id)

    def give_up(self) -> None:
        self.end()
        self.lock.release()

    def _store(self) -> contextlib.closing[SessionStore]:
        return contextlib.closing(SessionStore(self._home))


async def announce(
    options: RunOptions, info: ModelInfo, mode: str, start: datetime, cancel: Cancel
) -> tuple[RunOptions, Waiting]:
    """The options with the session named that waits from now on. Raises StoreError."""
    if options.forks or not (options.resume_id or options.continues_newest):
        session_id = SessionId(options.session_id or new_session_id())
        named = dataclasses.replace(options, session_id=session_id)
    else:
        if options.continues_newest:
            session_id = newest_session(options.home, options.cwd)
        else:
            with contextlib.closing(SessionStore(options.home)) as store:
                session_id = store.resolve(options.resume_id or "")
        # The one that is the newest now, not that of the time when it begins.
        named = dataclasses.replace(options, resume_id=session_id, continues_newest=False)
    waiting = Waiting(named, WaitingSession(session_id, info, mode, start, cancel))
    await waiting.broadcast.start()
    return named, waiting

"""Stands in for `kill -9`: a process that dies at a chosen commit, and what the kernel then does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from k3agent.agent.session import Session
from k3agent.store import database
from k3agent.store import journal as journal_module
from k3agent.store import sessions as sessions_module
from k3agent.store import snapshotrows as snapshots_module
from k3agent.store import turnrows as turns_module


class Killed(BaseException):
    """The process is gone."""


class Killer:
    """Stands in for `kill -9` at a commit: `at` counts half commits: even dies before one, odd after."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.count = 0
        self.is_dead = False
        self.num_deaths = 0

    def arm(self, at: int | None) -> None:
        self.left, self.is_dead, self.count = at, False, 0

    @contextlib.contextmanager
    def transaction(self, connection: Any) -> Iterator[Any]:
        if self.is_dead:
            raise Killed
        dies = self.left is not None and self.count == self.left // 2
        self.count += 1
        with database.transaction(connection) as db:
            yield db
            if dies and self.left is not None and self.left % 2 == 0:
                self.is_dead = True
                raise Killed
        if dies:
            self.is_dead = True
            raise Killed

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on every commit goes through here."""
        monkeypatch.setattr(journal_module, "transaction", self.transaction)
        monkeypatch.setattr(sessions_module, "transaction", self.transaction)
        monkeypatch.setattr(snapshots_module, "transaction", self.transaction)
        monkeypatch.setattr(turns_module, "transaction", self.transaction)


async def abandon(session: Session) -> None:
    """What the kernel does for a dead process."""
    task = session._turns._task
    if task is not None and not task.done():
        task.cancel()
        with contextlib.suppress(BaseException):
            await task
    await session._jobs.aclose()
    session._lock.release()
    session._store.close()

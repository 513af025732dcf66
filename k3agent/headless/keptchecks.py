"""The checks of a run are kept with its session: who finishes the run later has them made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from k3agent.store.sessions import SessionStore
from k3agent.types import SessionId

KIND = "check"


def keep_checks(home: Path, session_id: SessionId, checks: Sequence[str]) -> None:
    """In place of those of an earlier run."""
    store = SessionStore(home)
    try:
        store.set_tasks(session_id, KIND, [(command, "") for command in checks])
    finally:
        store.close()


def kept_checks(home: Path, session_id: str) -> tuple[str, ...]:
    """Raises StoreError for an unknown session."""
    store = SessionStore(home)
    try:
        return tuple(command for command, _ in store.tasks(store.resolve(session_id), KIND))
    finally:
        store.close()

"""The session's list of steps (`todo`), kept in the store: it survives a crash, a resume and a compaction."""

from __future__ import annotations

from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, SessionId

KIND = "todo"
PINNED = "pinned"


def load_todo(store: SessionStore, session_id: SessionId) -> list[JsonObject]:
    """The items as the todo tool has them: {text, status}."""
    return [{"text": text, "status": state} for text, state in store.tasks(session_id, KIND)]


def save_todo(store: SessionStore, session_id: SessionId, items: list[JsonObject]) -> None:
    store.set_tasks(session_id, KIND, [(str(item["text"]), str(item["status"])) for item in items])


def load_pinned(store: SessionStore, session_id: SessionId) -> list[str]:
    """Facts that the user pinned: each compaction carries them word by word."""
    return [text for text, _ in store.tasks(session_id, PINNED)]


def pin(store: SessionStore, session_id: SessionId, text: str) -> None:
    store.set_tasks(session_id, PINNED, [(item, "") for item in (*load_pinned(store, session_id), text)])

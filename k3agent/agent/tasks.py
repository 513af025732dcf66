"""What a session keeps of its work: the list of steps (`todo`), pinned facts, and the graph of tasks.

All of it lies in the store and survives a crash, a resume and a compaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, SessionId, TaskBrief

KIND = "todo"
PINNED = "pinned"
SUBAGENT = "subagent"


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


class TaskState(StrEnum):
    """`running` in the store of a process that is gone means: killed while it ran."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in (TaskState.DONE, TaskState.FAILED)


@dataclass(slots=True, kw_only=True)
class TaskNode:
    """A task of the graph and the subagent that does it. `child` is that subagent's session, named before it
    is started; `after` are numbers of nodes. `base` and `place` belong to a worktree: the commit it started
    from, and its folder. `evidence` is what shows the result: {message, files, command, exit_code}.
    """

    number: int
    call_id: str
    child: SessionId
    brief: TaskBrief
    after: tuple[int, ...] = ()
    state: TaskState = TaskState.WAITING
    detail: str = ""
    answer: str = ""
    base: str = ""
    place: str = ""
    budget: JsonObject = field(default_factory=dict)
    evidence: JsonObject = field(default_factory=dict)
    num_turns: int = 0
    num_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def title(self) -> str:
        return self.brief.title

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.evidence.get("files", ()))


_OWN = ("call_id", "child", "detail", "answer", "base", "place", "budget", "evidence")
_FIGURES = ("num_turns", "num_tokens", "cost_usd")
_BRIEF = ("brief", "folder", "is_writing", "has_worktree", "max_turns", "max_usd")


class TaskGraph:
    """The nodes of one session, in the order in which they were made."""

    def __init__(self, store: SessionStore, session_id: SessionId) -> None:
        self._store = store
        self._session_id = session_id

    def nodes(self, call_id: str | None = None) -> list[TaskNode]:
        """All, or those that one call made."""
        rows = self._store.task_rows(self._session_id, SUBAGENT)
        found = [_node(*row) for row in rows]
        return [node for node in found if call_id is None or node.call_id == call_id]

    def save(self, *nodes: TaskNode) -> None:
        """All of them in one commit."""
        self._store.put_tasks(self._session_id, SUBAGENT, [_row(node) for node in nodes])


def _row(node: TaskNode) -> tuple[int, str, str, JsonObject]:
    data: JsonObject = {name: getattr(node, name) for name in (*_OWN, *_FIGURES)}
    data.update({f"brief_{name}": getattr(node.brief, name) for name in _BRIEF})
    data["after"] = list(node.after)
    return node.number, node.title, node.state.value, data


def _node(number: int, title: str, state: str, data: JsonObject) -> TaskNode:
    brief = TaskBrief(title=title, **{name: data[f"brief_{name}"] for name in _BRIEF})
    return TaskNode(
        number=number,
        brief=brief,
        after=tuple(data["after"]),
        state=TaskState(state),
        **{name: data[name] for name in (*_OWN, *_FIGURES)},
    )

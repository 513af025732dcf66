"""What a session keeps of its work: the list of steps (`todo`), pinned facts, and the graph of tasks.

All of it lies in the store and survives a crash, a resume and a compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, SessionId, TaskBrief

KIND = "todo"
PINNED = "pinned"
SUBAGENT = "subagent"
GOAL = "goal"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """A step of the session's own plan. `since`: how many calls the session had made when it began;
    `evidence`: the calls that show that it is done, {call_id, tool, what}.
    """

    text: str
    status: str
    after: tuple[int, ...] = ()
    since: int = 0
    evidence: tuple[JsonObject, ...] = ()


def load_steps(store: SessionStore, session_id: SessionId) -> list[PlanStep]:
    return [
        PlanStep(
            text=text,
            status=state,
            after=tuple(data.get("after", ())),
            since=int(data.get("since", 0)),
            evidence=tuple(data.get("evidence", ())),
        )
        for _, text, state, data in store.task_rows(session_id, KIND)
    ]


def save_steps(store: SessionStore, session_id: SessionId, steps: Sequence[PlanStep]) -> None:
    rows = [
        (
            step.text,
            step.status,
            {"after": list(step.after), "since": step.since, "evidence": list(step.evidence)},
        )
        for step in steps
    ]
    store.set_tasks(session_id, KIND, rows)


def load_todo(store: SessionStore, session_id: SessionId) -> list[JsonObject]:
    """The items as the todo tool has them: {text, status}, and {after} where a step has it."""
    return [
        {"text": step.text, "status": step.status, **({"after": list(step.after)} if step.after else {})}
        for step in load_steps(store, session_id)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the user asked for, word by word, and beside it what the model made of it. `history`: earlier
    wordings, {goal, criteria, changed_by}.
    """

    number: int
    ask: str
    message_id: str
    goal: str
    criteria: tuple[str, ...]
    history: tuple[JsonObject, ...] = ()


def load_goals(store: SessionStore, session_id: SessionId) -> list[Goal]:
    return [
        Goal(
            number=number,
            ask=ask,
            message_id=str(data["message_id"]),
            goal=str(data["goal"]),
            criteria=tuple(data["criteria"]),
            history=tuple(data["history"]),
        )
        for number, ask, _, data in store.task_rows(session_id, GOAL)
    ]


def save_goal(store: SessionStore, session_id: SessionId, goal: Goal) -> None:
    data: JsonObject = {
        "message_id": goal.message_id,
        "goal": goal.goal,
        "criteria": list(goal.criteria),
        "history": list(goal.history),
    }
    store.put_tasks(session_id, GOAL, [(goal.number, goal.ask, "stated", data)])


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
    from, and its folder. `evidence` is what shows the result: {message, files, command}. `num_asked`: how
    many briefs the subagent gets, `words` being the last of several.
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
    words: str = ""
    num_asked: int = 1

    @property
    def title(self) -> str:
        return self.brief.title

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.evidence.get("files", ()))


_OWN = ("call_id", "child", "detail", "answer", "base", "place", "budget", "evidence")
_FIGURES = ("num_turns", "num_tokens", "cost_usd")
# Later than the first graphs that were stored.
_LATER = ("words", "num_asked")
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
    data: JsonObject = {name: getattr(node, name) for name in (*_OWN, *_FIGURES, *_LATER)}
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
        **{name: data[name] for name in _LATER if name in data},
    )

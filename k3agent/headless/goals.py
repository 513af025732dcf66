"""Goals: prompts that count as reached when the checks pass, one after the other until a budget ends.

The queue lies in the store beside the session: a run that was killed or came to a limit goes on with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from k3agent.agent.options import Limits, Receipt, SessionOptions
from k3agent.agent.session import Session
from k3agent.config.settings import DEFAULT, Settings
from k3agent.events import TurnEnded, TurnOutcome
from k3agent.headless.inputs import UsageError
from k3agent.store.records import TurnRow
from k3agent.store.sessions import SessionStore
from k3agent.types import Message, SessionId

QUEUE = "queue"
OPEN, ACTIVE, REACHED, GIVEN_UP = "open", "active", "reached", "given up"
STUCK = (TurnOutcome.EXECUTION, TurnOutcome.CHECKS_FAILED)
# Where nothing else is said: a goal is worked for until it is reached, but not for ever.
MAX_TURNS = 300
CHECK_RETRIES = 50
# How often a turn that went in circles is followed by another one.
MAX_FRESH_STARTS = 2
HOW = "This is reached when these commands pass; k3agent runs them when you say that you are done:"
FRESH_START = (
    "The goal is not reached yet. What you tried went in circles: {detail}\nLook again at what is there, and"
    " try another way.\n\nThe goal: {goal}"
)


@dataclass(slots=True, kw_only=True)
class Goal:
    """`after`: the session's last turn when work for it began; a later one with its text is its own."""

    text: str
    state: str = OPEN
    after: int = 0


def read_goals(texts: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Those of the command line, then those of the file: one a line, `#` begins a comment."""
    found = [text.strip() for text in texts]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--goals {file} cannot be read: {error}") from error
        found += [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise UsageError(f"--goals {file} names no goal: write one a line")
    if any(not text for text in found):
        raise UsageError("--goal is empty: say what is to be reached")
    return tuple(found)


def require_checks(checks: Sequence[str]) -> Sequence[str]:
    """Goals need something that says when they are reached."""
    if not checks:
        raise UsageError(
            "a goal needs at least one check that says when it is reached: --check CMD, or checks.commands or"
            " checks.agents in the configuration"
        )
    return checks


def for_goals(options: SessionOptions, settings: Settings) -> SessionOptions:
    """Goals are worked for until the checks pass, and need an end where no limit is given."""
    require_checks(options.checks)
    limits = options.limits if options.limits != Limits() else Limits(max_turns=MAX_TURNS)
    is_default = settings.origin("checks.retries") == DEFAULT
    return replace(
        options, limits=limits, check_retries=CHECK_RETRIES if is_default else options.check_retries
    )


def has_open_goals(home: Path, session_id: str) -> bool:
    """Whether an earlier run left some. Raises StoreError for an unknown session."""
    store = SessionStore(home)
    try:
        rows = store.tasks(store.resolve(session_id), QUEUE)
    finally:
        store.close()
    return any(state in (OPEN, ACTIVE) for _, state in rows)


class GoalQueue:
    """The goals of one session, kept in the store of `home`."""

    def __init__(self, home: Path, receipt: Receipt, session_id: SessionId) -> None:
        self._home = home
        self._receipt = receipt
        self._id = session_id
        self.goals: list[Goal] = []
        self._fresh_starts = 0

    def load(self) -> None:
        """What an earlier run left."""
        store = SessionStore(self._home)
        try:
            rows = store.task_rows(self._id, QUEUE)
        finally:
            store.close()
        self.goals = [
            Goal(text=text, state=state, after=int(data.get("after", 0))) for _, text, state, data in rows
        ]
        self._tell()

    def last_turn(self) -> TurnRow | None:
        store = SessionStore(self._home)
        try:
            return store.last_turn(self._id)
        finally:
            store.close()

    def add(self, texts: Sequence[str]) -> None:
        self.goals += [Goal(text=text) for text in texts]
        self._save()

    def next(self) -> Goal | None:
        """The first goal that is still to be reached."""
        return next((goal for goal in self.goals if goal.state in (OPEN, ACTIVE)), None)

    def note(self, goal: Goal, state: str) -> None:
        goal.state = state
        self._fresh_starts = 0
        self._save()

    def fresh_start(self, goal: Goal, detail: str) -> str | None:
        """The prompt after a turn that went in circles; None when that was tried often enough."""
        self._fresh_starts += 1
        if self._fresh_starts > MAX_FRESH_STARTS:
            return None
        return FRESH_START.format(detail=detail.rstrip("."), goal=goal.text)

    def prompt(self, goal: Goal, checks: Sequence[str]) -> str:
        commands = "\n".join(f"- `{command}`" for command in checks)
        return f"{goal.text}\n\n{HOW}\n{commands}"

    def _save(self) -> None:
        store = SessionStore(self._home)
        try:
            rows = [(goal.text, goal.state, {"after": goal.after}) for goal in self.goals]
            store.set_tasks(self._id, QUEUE, rows)
        finally:
            store.close()
        self._tell()

    def _tell(self) -> None:
        self._receipt.goals = [{"goal": goal.text, "state": goal.state} for goal in self.goals]


async def reach_all(
    queue: GoalQueue,
    session: Session,
    turn: Callable[[str | None], Awaitable[TurnEnded]],
    checks: Sequence[str],
    say: Callable[[str], None],
) -> TurnEnded | None:
    """Work for one goal after the other. `turn` submits a prompt, or goes on with an unfinished turn (None).

    Ends with the first goal that is not reached: by a limit, an error, or after too many fresh starts.
    """
    ended: TurnEnded | None = None
    while (goal := queue.next()) is not None:
        say(f"goal {queue.goals.index(goal) + 1} of {len(queue.goals)}: {goal.text}")
        last = queue.last_turn()
        is_begun = goal.state == ACTIVE and last is not None and _is_for(goal, last, session.messages)
        if is_begun and last is not None and last.outcome == TurnOutcome.SUCCESS:
            queue.note(goal, REACHED)
            continue
        if not is_begun:
            goal.after = 0 if last is None else last.seq
            queue.note(goal, ACTIVE)
        ended = await turn(None if is_begun else queue.prompt(goal, checks))
        while ended.outcome in STUCK and session.error is None:
            prompt = queue.fresh_start(goal, ended.detail)
            if prompt is None:
                break
            say("the goal is not reached: a fresh start")
            ended = await turn(prompt)
        if ended.outcome is not TurnOutcome.SUCCESS:
            if ended.outcome in STUCK:
                queue.note(goal, GIVEN_UP)
            return ended
        queue.note(goal, REACHED)
    return ended


def _is_for(goal: Goal, turn: TurnRow, messages: Sequence[Message]) -> bool:
    """Whether the turn worked for this goal: another's, or a prompt in between, says nothing of it."""
    asked = next((message.text for message in messages if message.id == turn.message_id), "")
    is_named = asked.startswith(f"{goal.text}\n\n{HOW}") or asked.endswith(f"The goal: {goal.text}")
    return turn.seq > goal.after and is_named

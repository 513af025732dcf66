"""What happens in a session, as frozen dataclasses. Front ends read this one stream and nothing else.

Durable events mirror rows of the store. Passing events may be dropped by a slow reader. Readers use
`match` and close with `assert_never`, so that a new event fails type checking wherever it is not handled yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from k3agent.types import JsonObject, Message, SessionId, ToolResult, Usage


class Decision(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class TurnOutcome(StrEnum):
    """How a turn ended. The values are those of `subtype` in the result line of `k3agent run`."""

    SUCCESS = "success"
    CHECKS_FAILED = "checks_failed"
    MAX_TURNS = "error_max_turns"
    MAX_TOKENS = "error_max_tokens"
    MAX_BUDGET = "error_max_budget_usd"
    MAX_TIME = "error_max_time"
    MAX_DISK = "error_max_disk"
    CONTEXT = "error_context"
    THRASH = "error_context_thrash"
    PROVIDER = "error_provider"
    PERMISSION = "error_permission"
    EXECUTION = "error_during_execution"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`seq` counts up within a session's run; `at` is timezone-aware UTC."""

    session: SessionId
    seq: int
    at: datetime


# --- durable ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(Event):
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAdded(Event):
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class CallProposed(Event):
    """A finished call of the model, before permission. `summary` is one line for people."""

    call_id: str
    tool: str
    arguments: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(Event):
    """`rules` are permission rules that would allow this call from now on; none for protected places. For
    the tool `ask`, `summary` is the question and `reason` its choices, one a line. `preview`: the difference
    that the call would make to files, by the files as they are now.
    """

    call_id: str
    tool: str
    summary: str
    reason: str
    rules: tuple[str, ...] = ()
    preview: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered(Event):
    call_id: str
    decision: Decision
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted(Event):
    call_id: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded(Event):
    """`files` are the workspace paths that the call changed; `is_invalid` marks arguments that could not
    be used, `is_interrupted` a call that did not run or not to its end. `exit_code`: that of a command, where
    one ended.
    """

    call_id: str
    tool: str
    result: ToolResult
    duration_s: float
    files: tuple[str, ...] = ()
    is_invalid: bool = False
    is_denied: bool = False
    is_interrupted: bool = False
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Event):
    """Requests now begin with a summary. `trigger`: threshold, ahead, overflow or manual; `method`: model, or
    why the summary was made without one. `num_kept` and `num_dropped` count messages.
    """

    trigger: str
    tokens_before: int
    tokens_after: int
    num_kept: int = 0
    num_dropped: int = 0
    method: str = "model"
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEnded(Event):
    command: str
    exit_code: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChanged(Event):
    """Where a task of the call `call_id` stands: waiting, running, done, failed, paused or interrupted.
    `child` is the subagent's session; the figures are its own so far.
    """

    call_id: str
    task: int
    title: str
    state: str
    child: SessionId
    detail: str = ""
    num_turns: int = 0
    num_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessageAdded(Event):
    """A message of a subagent's own conversation."""

    call_id: str
    task: int
    child: SessionId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(Event):
    """`detail` says in words what ended the turn when it was not the model."""

    outcome: TurnOutcome
    detail: str = ""


# --- passing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStreamed(Event):
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(Event):
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsStreamed(Event):
    index: int
    tool: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallProgressed(Event):
    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillProgressed(Event):
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying(Event):
    """The model call starts again: what was streamed since the step began is void."""

    attempt: int
    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageChanged(Event):
    """Sent after each model call: that call's usage and the session's sum."""

    step: Usage
    total: Usage
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed(Event):
    """Something a person should know. `level` is info or warning; `data` is machine-readable detail."""

    level: str
    text: str
    data: JsonObject | None = None


DurableEvent = (
    TurnStarted
    | MessageAdded
    | CallProposed
    | ApprovalAsked
    | ApprovalAnswered
    | CallStarted
    | CallEnded
    | Compacted
    | CheckEnded
    | TaskChanged
    | TaskMessageAdded
    | TurnEnded
)
PassingEvent = (
    ReasoningStreamed
    | TextStreamed
    | ArgumentsStreamed
    | CallProgressed
    | PrefillProgressed
    | Retrying
    | UsageChanged
    | Noticed
)
AnyEvent = DurableEvent | PassingEvent

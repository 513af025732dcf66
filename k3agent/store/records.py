"""What the store gives back: one frozen dataclass for each kind of row."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from k3agent.types import JsonObject, Message, MessageId, SessionId, ToolResult, ToolSpec, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A line of the list of sessions."""

    id: SessionId
    cwd: str
    title: str
    model: str
    created_at: datetime
    updated_at: datetime
    num_messages: int
    parent_id: SessionId | None = None
    # The session whose subagent this is, or ''.
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """What is fixed when a session starts. `warnings`: what could not be read and was replaced by a
    default.
    """

    id: SessionId
    cwd: str
    provider: str = ""
    model: str = ""
    profile: str = "full"
    effort: str = ""
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    title: str = ""
    meta: JsonObject = field(default_factory=dict)
    parent_id: SessionId | None = None
    fork_message_id: MessageId | None = None
    warnings: tuple[str, ...] = ()


class CallState(StrEnum):
    """`started` without an end is what a killed process leaves behind."""

    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    INVALID = "invalid"
    DENIED = "denied"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """`hashes`: file to SHA-256 before the call ('' where there was none); `digest`: of the result as it
    was.
    """

    turn: int
    message_id: MessageId
    call_id: str
    tool: str
    arguments: str
    state: CallState
    access: JsonObject = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    result: ToolResult | None = None
    digest: str = ""
    files: tuple[str, ...] = ()
    seen: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """`restarts`: how often it was gone on with after a kill or an end without success."""

    seq: int
    message_id: MessageId
    outcome: str | None
    detail: str
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One model call. `outcome`: ok, compaction, warm (only read), interrupted, or why its answer was thrown
    away. `usage` and `cost_usd` are None where the endpoint did not say: the answer did not get to its end.
    """

    turn: int
    outcome: str
    started_at: datetime
    duration_s: float
    message_id: MessageId | None = None
    model: str = ""
    usage: Usage | None = None
    cost_usd: float | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRow:
    """Requests begin with `message` in place of all up to `last_dropped`, as long as `leaf`, the newest
    message of that time, is on the conversation's path. `cause`: threshold, ahead, overflow or manual;
    `method`: model, or why the summary was made mechanically. `summary` is also a part of `message`.
    """

    cause: str
    message: Message
    summary: str
    method: str
    last_dropped: MessageId
    leaf: MessageId
    num_dropped: int
    num_kept: int
    tokens_before: int
    tokens_after: int
    cost_usd: float = 0.0
    is_undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """Why a call was allowed, asked about or denied. `by`: rule, mode, protection or user."""

    call_id: str
    tool: str
    subject: str
    action: str
    reason: str
    by: str


@dataclass(slots=True, kw_only=True)
class JournalBatch:
    """Rows that go into the store in one commit."""

    starts: list[CallRow] = field(default_factory=list)
    ends: list[CallRow] = field(default_factory=list)
    decisions: list[DecisionRow] = field(default_factory=list)

"""The data every part shares: messages and their parts, requests, deltas, usage.

Plain frozen dataclasses so that importing them costs nothing. A `Message` is written once and never edited:
`ToolCall.arguments` and `ReasoningPart.text` keep the model's own bytes because they go back into the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

MessageId = NewType("MessageId", str)
SessionId = NewType("SessionId", str)
JsonObject = dict[str, Any]


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Origin(StrEnum):
    """Who wrote a message: `harness` is k3agent itself (reminders, failing checks)."""

    HUMAN = "human"
    MODEL = "model"
    TOOL = "tool"
    HARNESS = "harness"


class Finish(StrEnum):
    """Why a model's answer ended. `interrupted` is ours: the turn was cut by the user, a signal or an
    error.
    """

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    INTERRUPTED = "interrupted"


class Effort(StrEnum):
    LOW = "low"
    HIGH = "high"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningPart:
    """Reasoning as it was streamed, byte for byte. `details` is an endpoint's own form, replayed
    unmodified.
    """

    text: str
    details: tuple[JsonObject, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    mime: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """`arguments` is the model's JSON string: parsed to be used, never rewritten."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave. `content` is never empty; an error's text is without the `Error: ` prefix of the
    wire.
    """

    call_id: str
    content: tuple[TextPart | ImagePart, ...]
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


Part = TextPart | ReasoningPart | ImagePart | ToolCall | ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model call. `cached_tokens` is a part of `input_tokens`, `reasoning_tokens` of
    `output_tokens`.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            cached_tokens=self.cached_tokens - other.cached_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of the transcript tree; `parent` is the message before it. A tool message holds one or more
    `ToolResult` parts, in call order."""

    id: MessageId
    parent: MessageId | None
    role: Role
    origin: Origin
    parts: tuple[Part, ...]
    created_at: datetime
    model: str | None = None
    finish: Finish | None = None
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The visible text: all text parts joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def reasoning(self) -> ReasoningPart | None:
        return next((part for part in self.parts if isinstance(part, ReasoningPart)), None)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolResult))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model is told of it. `parameters` is a JSON schema with an object root."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model call. Byte stability: `system`, `tools` and the first messages equal those of the request
    before.
    """

    model: str
    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    effort: Effort
    cache_key: str
    max_output_tokens: int | None = None
    response_schema: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBrief:
    """What a subagent is told and given. `folder`: where it works and may write, relative to the workspace;
    `after`: places in the same list, from 1, of the tasks that must be done first; limits of None are the
    settings' own. `continues`: the number of an earlier task that goes on; then title, folder and mode are
    those that it has.
    """

    title: str
    brief: str
    folder: str = "."
    is_writing: bool = False
    has_worktree: bool = False
    after: tuple[int, ...] = ()
    max_turns: int | None = None
    max_usd: float | None = None
    continues: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A server of foreign tools (MCP): a program (`command`), or an address (`url`), of the older kind with
    `is_sse`. `origin`: where it is configured; `problem`: why it cannot be used as it stands there.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    url: str = ""
    is_sse: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    client_id: str = ""
    scope: str = ""
    start_timeout_s: float = 30.0
    call_timeout_s: float = 300.0
    is_enabled: bool = True
    origin: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What became of a task: its number in the session's graph, how it ended, what its subagent said last.
    `detail` says in words what ended it when it was not the subagent; `files` are relative to the workspace.
    """

    number: int
    title: str
    is_done: bool
    answer: str
    detail: str = ""
    session_id: str = ""
    files: tuple[str, ...] = ()
    num_turns: int = 0
    num_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    text: str
    details: tuple[JsonObject, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A piece of a call. `index` tells calls of one answer apart; `id` and `name` come with the first
    piece.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDelta:
    """The attempt failed and another starts after `delay_s`: everything streamed so far in this call is
    void.
    """

    attempt: int
    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressDelta:
    """The engine is still reading the prompt: `done` of `total` tokens."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Always the last delta. `model` is what the endpoint says it used."""

    finish: Finish
    usage: Usage
    model: str
    extra: Mapping[str, str] = field(default_factory=dict)


Delta = ReasoningDelta | TextDelta | CallDelta | RetryDelta | ProgressDelta | Finished

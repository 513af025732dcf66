"""What a headless run prints: text, one JSON object, or JSON lines.

The JSON is a contract for scripts (`docs/guide`): fields are added, never changed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from k3agent import __version__
from k3agent.agent.arguments import is_deep
from k3agent.agent.options import Receipt
from k3agent.events import (
    AnyEvent,
    ArgumentsStreamed,
    CheckEnded,
    Compacted,
    MessageAdded,
    Noticed,
    PrefillProgressed,
    ReasoningStreamed,
    Retrying,
    TaskChanged,
    TaskMessageAdded,
    TextStreamed,
    TurnOutcome,
)
from k3agent.safety.visible import clean
from k3agent.types import ImagePart, JsonObject, Message, ReasoningPart, Role, TextPart, ToolCall, ToolResult

LAST_WORDS = "The model's last words, which nothing confirms:"

_READ_EVERY_S = 2.0

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The facts of the `init` line."""

    session_id: str
    cwd: str
    model: str
    provider: str
    base_url: str
    tools: tuple[str, ...]
    permission_mode: str
    sandbox: str
    context_window: int
    mcp_servers: tuple[JsonObject, ...] = ()


@dataclass(slots=True, kw_only=True)
class End:
    """How the run ended; becomes the `result` line. `answer` is only there after a good end; of a bad one
    k3agent says what happened (`report`), and the model's `last_words` are no more than that.
    """

    outcome: TurnOutcome
    exit_code: int
    session_id: str = ""
    answer: str = ""
    report: str = ""
    last_words: str = ""
    structured_output: Any = None
    duration_s: float = 0.0
    receipt: Receipt = field(default_factory=Receipt)
    errors: list[str] = field(default_factory=list)

    @property
    def said(self) -> str:
        """The last words as what they are, or ''."""
        words = self.last_words.strip()
        return f"{LAST_WORDS}\n{words}" if words else ""

    @property
    def line(self) -> JsonObject:
        receipt, usage = self.receipt, self.receipt.usage
        share = usage.cached_tokens / usage.input_tokens if usage.input_tokens else 0.0
        return {
            "type": "result",
            "subtype": self.outcome.value,
            "is_error": self.exit_code != 0,
            "result": self.answer or "\n\n".join(part for part in (self.report, self.said) if part),
            "structured_output": self.structured_output,
            "session_id": self.session_id,
            "num_turns": receipt.num_turns,
            "num_turns_without_usage": receipt.num_unmeasured,
            "duration_ms": round(self.duration_s * 1000),
            "duration_api_ms": round(receipt.duration_api_s * 1000),
            "total_cost_usd": round(receipt.cost_usd, 8),
            "usage": {
                "input_tokens": usage.input_tokens,
                "cached_input_tokens": usage.cached_tokens,
                "output_tokens": usage.output_tokens,
                "reasoning_tokens": usage.reasoning_tokens,
            },
            "cache_hit_rate": round(share, 4),
            "checks": receipt.checks,
            "compactions": receipt.compactions,
            "permission_denials": receipt.denials,
            "questions": receipt.questions,
            "goals": receipt.goals,
            "files_changed": receipt.files_changed,
            "files_note": receipt.files_note,
            "last_command": receipt.last_command,
            "last_test_run": receipt.last_test_run,
            "remarks": receipt.remarks,
            "tools": {"calls": receipt.calls, "invalid": receipt.invalid, "failed": receipt.failed},
            "errors": self.errors,
            "exit_code": self.exit_code,
            "uuid": str(uuid.uuid4()),
        }


class Format(Protocol):
    """One way to print a run. `started` and `event` may print nothing; `ended` is called exactly once."""

    def started(self, start: Start) -> None: ...

    def event(self, event: AnyEvent) -> None: ...

    def ended(self, end: End) -> None: ...


class TextFormat:
    """The final answer and nothing else; for a terminal without what a terminal would obey."""

    def __init__(self, write: Write, *, is_terminal: bool = False) -> None:
        self._write = write
        self._is_terminal = is_terminal

    def started(self, start: Start) -> None:
        return None

    def event(self, event: AnyEvent) -> None:
        return None

    def ended(self, end: End) -> None:
        answer = clean(end.answer) if self._is_terminal else end.answer
        if answer:
            self._write(answer if answer.endswith("\n") else f"{answer}\n")


class JsonFormat:
    """One `result` object."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def started(self, start: Start) -> None:
        return None

    def event(self, event: AnyEvent) -> None:
        return None

    def ended(self, end: End) -> None:
        self._write(_dumps(end.line))


class StreamJsonFormat:
    """One JSON object a line. With `is_partial` also what is still being streamed."""

    def __init__(self, write: Write, *, is_partial: bool) -> None:
        self._write = write
        self._is_partial = is_partial
        self._session_id = ""
        self._is_over = False
        self._read_at = -_READ_EVERY_S

    def started(self, start: Start) -> None:
        self._session_id = start.session_id
        self._line(
            "system",
            subtype="init",
            cwd=start.cwd,
            model=start.model,
            provider=start.provider,
            base_url=start.base_url,
            tools=list(start.tools),
            mcp_servers=list(start.mcp_servers),
            permission_mode=start.permission_mode,
            sandbox=start.sandbox,
            k3agent_version=__version__,
            context_window=start.context_window,
        )

    def event(self, event: AnyEvent) -> None:
        if self._is_over:
            # What still happens while all is closed, a server of tools that ends, comes after the last line.
            return
        match event:
            case MessageAdded(message=message):
                self._message(message)
            case TaskMessageAdded():
                self._message(event.message, parent=event.call_id, task=event.task, child=event.child)
            case TaskChanged():
                self._task(event)
            case Retrying():
                self._line(
                    "system",
                    subtype="retry",
                    attempt=event.attempt,
                    delay_s=event.delay_s,
                    reason=event.reason,
                )
            case Compacted():
                self._line(
                    "system",
                    subtype="compact_boundary",
                    trigger=event.trigger,
                    tokens_before=event.tokens_before,
                    tokens_after=event.tokens_after,
                    kept=event.num_kept,
                    dropped=event.num_dropped,
                    method=event.method,
                    cost_usd=round(event.cost_usd, 8),
                )
            case PrefillProgressed():
                # The engine tells of every chunk; a script wants to know that it goes on.
                if time.monotonic() - self._read_at >= _READ_EVERY_S:
                    self._read_at = time.monotonic()
                    self._line("system", subtype="prefill", done=event.done, total=event.total)
            case Noticed():
                self._line("system", subtype="notice", level=event.level, text=event.text, data=event.data)
            case CheckEnded():
                self._line(
                    "system",
                    subtype="check",
                    command=event.command,
                    exit_code=event.exit_code,
                    passed=event.exit_code == 0,
                )
            case ReasoningStreamed() | TextStreamed() | ArgumentsStreamed() if self._is_partial:
                self._line("stream_event", event=_partial(event), parent_tool_use_id=None)
            case _:
                # What remains is told by the messages themselves, or is for people only.
                return

    def ended(self, end: End) -> None:
        self._write(_dumps(end.line))
        self._is_over = True

    def _task(self, event: TaskChanged) -> None:
        self._line(
            "system",
            subtype="task",
            task=event.task,
            title=event.title,
            state=event.state,
            detail=event.detail,
            parent_tool_use_id=event.call_id,
            task_session_id=event.child,
            num_turns=event.num_turns,
            num_tokens=event.num_tokens,
            cost_usd=round(event.cost_usd, 8),
        )

    def _message(self, message: Message, parent: str | None = None, **task: Any) -> None:
        """`parent`: the call whose subagent's message it is, `task` and `child` which one."""
        if parent is not None:
            task = {"task": task["task"], "task_session_id": task["child"]}
        if message.role is Role.ASSISTANT:
            body: JsonObject = {
                "id": message.id,
                "role": "assistant",
                "model": message.model,
                "content": [_block(part) for part in message.parts],
                "stop_reason": message.finish.value if message.finish else None,
            }
            if message.usage is not None:
                body["usage"] = {
                    "input_tokens": message.usage.input_tokens,
                    "cached_input_tokens": message.usage.cached_tokens,
                    "output_tokens": message.usage.output_tokens,
                    "reasoning_tokens": message.usage.reasoning_tokens,
                }
            self._line("assistant", message=body, parent_tool_use_id=parent, **task)
        elif message.role in {Role.USER, Role.TOOL}:
            content = [_block(part) for part in message.parts]
            body = {"id": message.id, "role": "user", "content": content}
            self._line("user", message=body, origin=message.origin.value, parent_tool_use_id=parent, **task)

    def _line(self, kind: str, **fields: Any) -> None:
        head = {"type": kind, **fields, "session_id": self._session_id, "uuid": str(uuid.uuid4())}
        self._write(_dumps(head))


def _partial(event: ReasoningStreamed | TextStreamed | ArgumentsStreamed) -> JsonObject:
    match event:
        case ReasoningStreamed():
            delta: JsonObject = {"type": "thinking_delta", "thinking": event.text}
        case TextStreamed():
            delta = {"type": "text_delta", "text": event.text}
        case ArgumentsStreamed():
            delta = {"type": "input_json_delta", "partial_json": event.text}
            return {"type": "content_block_delta", "index": event.index, "tool": event.tool, "delta": delta}
    return {"type": "content_block_delta", "delta": delta}


def _block(part: Any) -> JsonObject:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ReasoningPart():
            return {"type": "thinking", "thinking": part.text}
        case ImagePart():
            return {"type": "image", "media_type": part.mime, "size_bytes": len(part.data)}
        case ToolCall():
            block: JsonObject = {"type": "tool_use", "id": part.id, "name": part.name}
            try:
                value = json.loads(part.arguments or "{}")
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict) and not is_deep(value):
                return {**block, "input": value}
            return {**block, "input": {}, "raw_arguments": part.arguments}
        case ToolResult():
            return {
                "type": "tool_result",
                "tool_use_id": part.call_id,
                "content": part.text,
                "is_error": part.is_error,
            }
    raise AssertionError(f"unknown part {part!r}")


def _dumps(value: JsonObject) -> str:
    # Line separators of Unicode would be line ends for some readers; escaped they are safe everywhere.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085") + "\n"

"""Events of a session as `session/update` messages of the protocol: the one file that knows both.

Streamed text is gathered for a moment, so that a fast model does not become thousands of messages. Whole
conversations are told in the same words when an editor loads an earlier session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import assert_never

from k3agent.acp import toolcalls
from k3agent.acp.drafts import Drafts
from k3agent.events import (
    AnyEvent,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsStreamed,
    CallEnded,
    CallProgressed,
    CallProposed,
    CallStarted,
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
    TurnEnded,
    TurnOutcome,
    TurnStarted,
    UsageChanged,
)
from k3agent.types import (
    ImagePart,
    JsonObject,
    Message,
    Origin,
    ReasoningPart,
    Role,
    TextPart,
    ToolCall,
    ToolResult,
)

GATHER_S = 0.03
PROGRESS_S = 0.2
MAX_PROGRESS_CHARS = 8_000

Send = Callable[[JsonObject], None]


class Updates:
    """`send` takes one update. `draws_terminals`: the editor shows the output of commands as a terminal's."""

    def __init__(self, send: Send, cwd: Path, window: int, *, draws_terminals: bool = False) -> None:
        self._send = send
        self._cwd = cwd
        self._window = window
        self._draws_terminals = draws_terminals
        self._text: list[str] = []
        self._text_kind = ""
        self._timer: asyncio.TimerHandle | None = None
        self._progress: dict[str, str] = {}
        self._progress_at: dict[str, float] = {}
        self._tasks: dict[str, dict[int, str]] = {}
        self._has_streamed = False
        self._drafts = Drafts(self.send)
        #: what is known of calls that are not over, by id: a question about one shows it again
        self.calls: dict[str, JsonObject] = {}

    # --- events -------------------------------------------------------------------------------------------

    def event(self, event: AnyEvent) -> None:
        match event:
            case ReasoningStreamed():
                self._gather("agent_thought_chunk", event.text)
            case TextStreamed():
                self._gather("agent_message_chunk", event.text)
            case MessageAdded():
                self._added(event.message)
            case (
                CallProposed() | CallStarted() | CallProgressed() | CallEnded() | TaskChanged() | CheckEnded()
            ):
                self._call_event(event)
            case Retrying() | Compacted() | Noticed() | UsageChanged():
                self._aside(event)
            case TurnEnded():
                self._drafts.forget()
                self.flush()
                self._progress.clear()
                self.calls.clear()
            case ArgumentsStreamed():
                self._drafts.streamed(event.index, event.tool, event.text)
            case PrefillProgressed() | TaskMessageAdded():
                pass
            case TurnStarted() | ApprovalAsked() | ApprovalAnswered():
                pass
            case _:
                assert_never(event)

    def _call_event(
        self,
        event: CallProposed | CallStarted | CallProgressed | CallEnded | TaskChanged | CheckEnded,
    ) -> None:
        match event:
            case CallProposed():
                self._propose(event.call_id, event.tool, event.arguments, event.summary)
            case CallStarted():
                self._change(event.call_id, status="in_progress")
            case CallProgressed():
                self._progressed(event)
            case CallEnded():
                self._ended(event)
            case TaskChanged():
                self._task(event)
            case CheckEnded():
                self._check(event)
            case _:
                assert_never(event)

    def _aside(self, event: Retrying | Compacted | Noticed | UsageChanged) -> None:
        match event:
            case Retrying():
                self._drafts.drop()
                self.note(f"The model call starts again in {event.delay_s:.0f} s: {event.reason}")
            case Compacted():
                short = f"{event.tokens_before:,} to {event.tokens_after:,} tokens"
                self.note(f"The conversation was made short for the model: {short}.")
            case Noticed():
                if event.level != "info":
                    self.note(event.text)
            case UsageChanged():
                self._usage(event)
            case _:
                assert_never(event)

    def note(self, text: str) -> None:
        """Something that the harness says."""
        self._gather("agent_thought_chunk", f"\n[k3agent: {text}]\n")
        self.flush()

    def say(self, text: str) -> None:
        """Something that the user must see, as a paragraph of the answer."""
        self._gather("agent_message_chunk", f"\n\n{text}\n")
        self.flush()

    def todo(self, todo: Sequence[JsonObject]) -> None:
        self.send({"sessionUpdate": "plan", "entries": toolcalls.plan_entries(todo)})

    def send(self, update: JsonObject) -> None:
        """`update` after all that was streamed before it."""
        self.flush()
        self._send(update)

    # --- streamed text ------------------------------------------------------------------------------------

    def _gather(self, kind: str, text: str) -> None:
        if kind != self._text_kind:
            self.flush()
            self._text_kind = kind
        self._text.append(text)
        self._has_streamed = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._text:
            text, self._text = "".join(self._text), []
            self._send({"sessionUpdate": self._text_kind, "content": toolcalls.text_block(text)})

    def _added(self, message: Message) -> None:
        """An answer that was not streamed is shown from its message; words said into a turn, too."""
        self.flush()
        if message.role is Role.ASSISTANT and not self._has_streamed:
            for update in message_updates(message):
                self._send(update)
        if message.role is Role.ASSISTANT:
            self._has_streamed = False
            self._drafts.settle(message.calls)

    # --- calls --------------------------------------------------------------------------------------------

    def _propose(self, call_id: str, tool: str, arguments: str, summary: str) -> None:
        call = call_start(self._drafts.id_of(call_id), tool, arguments, summary, self._cwd)
        if self._drafts.is_shown(call_id):
            call["sessionUpdate"] = "tool_call_update"
        if tool == "shell" and self._draws_terminals:
            call["content"] = [{"type": "terminal", "terminalId": call_id}]
            call["_meta"] = {"terminal_info": {"terminal_id": call_id, "cwd": str(self._cwd)}}
        self.calls[call_id] = {name: call[name] for name in call if name not in ("sessionUpdate", "_meta")}
        self.send(call)

    def _progressed(self, event: CallProgressed) -> None:
        now = time.monotonic()
        call_id = event.call_id
        if self._is_terminal(call_id):
            meta = {"terminal_output": {"terminal_id": call_id, "data": event.text}}
            self._change(call_id, _meta=meta)
            self._progress[call_id] = "shown"
            return
        text = (self._progress.get(call_id, "") + event.text)[-MAX_PROGRESS_CHARS:]
        self._progress[call_id] = text
        if now - self._progress_at.get(call_id, 0.0) >= PROGRESS_S:
            self._progress_at[call_id] = now
            self._change(call_id, content=[toolcalls.text_content(toolcalls.shown_block(text))])

    def _ended(self, event: CallEnded) -> None:
        call_id = event.call_id
        known = self.calls.pop(call_id, {})
        failed = event.result.is_error
        fields: JsonObject = {"status": "failed" if failed else "completed"}
        content = toolcalls.result_content(event.tool, event.result)
        if self._is_terminal_content(known):
            code = int(failed) if event.exit_code is None else event.exit_code
            meta: JsonObject = {"terminal_exit": {"terminal_id": call_id, "exit_code": code}}
            if self._progress.get(call_id) != "shown":
                meta["terminal_output"] = {"terminal_id": call_id, "data": toolcalls.shown(event.result.text)}
            fields["_meta"] = meta
            if failed:
                fields["content"] = [*known["content"], *content]
        elif known.get("kind") == "edit" and not failed:
            # The change stays what is shown; the model's own confirmation says nothing more.
            shows_change = any(item["type"] == "diff" for item in known.get("content", ()))
            fields["content"] = known["content"] if shows_change else content
        else:
            fields["content"] = content
        if event.files:
            fields["locations"] = [{"path": str(self._cwd / path)} for path in event.files]
        self._progress.pop(call_id, None)
        self._tasks.pop(call_id, None)
        self._change(call_id, **fields)

    def _is_terminal(self, call_id: str) -> bool:
        return self._is_terminal_content(self.calls.get(call_id, {}))

    @staticmethod
    def _is_terminal_content(call: JsonObject) -> bool:
        return any(item.get("type") == "terminal" for item in call.get("content", ()))

    def _change(self, call_id: str, **fields: object) -> None:
        shown_id = self._drafts.id_of(call_id)
        self.send({"sessionUpdate": "tool_call_update", "toolCallId": shown_id, **fields})

    def _task(self, event: TaskChanged) -> None:
        rows = self._tasks.setdefault(event.call_id, {})
        detail = f": {event.detail}" if event.detail else ""
        figures = f" ({event.num_turns} steps, {event.num_tokens:,} tokens)" if event.num_turns else ""
        rows[event.task] = f"- {event.state}: {event.title}{figures}{detail}"
        self._change(event.call_id, content=[toolcalls.text_content("\n".join(rows.values()))])

    def _check(self, event: CheckEnded) -> None:
        self.send(
            {
                "sessionUpdate": "tool_call",
                "toolCallId": f"check-{event.seq}",
                "title": f"check: {event.command}",
                "kind": "execute",
                "status": "failed" if event.exit_code else "completed",
                "content": [toolcalls.text_content(toolcalls.shown_block(event.output))],
            }
        )

    def _usage(self, event: UsageChanged) -> None:
        used = event.step.input_tokens + event.step.output_tokens
        update: JsonObject = {"sessionUpdate": "usage_update", "used": used, "size": self._window}
        if event.cost_usd:
            update["cost"] = {"amount": event.cost_usd, "currency": "USD"}
        self.send(update)


# --- stored conversations -----------------------------------------------------------------------------------


def call_start(call_id: str, tool: str, arguments: str, title: str, cwd: Path) -> JsonObject:
    parsed = toolcalls.arguments_of(arguments)
    call: JsonObject = {
        "sessionUpdate": "tool_call",
        "toolCallId": call_id,
        "title": toolcalls.shown(title),
        "kind": toolcalls.kind_of(tool),
        "status": "pending",
        "content": toolcalls.proposed(tool, parsed, cwd),
        "locations": toolcalls.locations(tool, parsed, cwd),
        "rawInput": parsed,
    }
    return call


def history(messages: Sequence[Message], cwd: Path) -> list[JsonObject]:
    """A stored conversation as updates; words of the harness to the model are not the user's business."""
    names: dict[str, str] = {}
    updates: list[JsonObject] = []
    for message in messages:
        if message.origin is Origin.HARNESS:
            continue
        if message.role is Role.TOOL:
            updates += [_stored_result(result, names) for result in message.results]
            continue
        updates += message_updates(message)
        for call in message.calls:
            names[call.id] = call.name
            updates.append(_stored_call(call, cwd))
    return updates


def message_updates(message: Message) -> list[JsonObject]:
    """What was said and thought, without the calls."""
    updates: list[JsonObject] = []
    words = "user_message_chunk" if message.role is Role.USER else "agent_message_chunk"
    for part in message.parts:
        match part:
            case ReasoningPart() if part.text:
                updates.append(_chunk("agent_thought_chunk", toolcalls.text_block(part.text)))
            case TextPart() if part.text:
                updates.append(_chunk(words, toolcalls.text_block(part.text)))
            case ImagePart():
                updates.append(_chunk(words, toolcalls.image_block(part)))
    return updates


def _chunk(kind: str, content: JsonObject) -> JsonObject:
    return {"sessionUpdate": kind, "content": content}


def _stored_call(call: ToolCall, cwd: Path) -> JsonObject:
    arguments = toolcalls.arguments_of(call.arguments)
    subject = next((str(arguments[name]) for name in ("path", "command", "pattern") if name in arguments), "")
    title = f"{call.name} {subject}".strip()
    start = call_start(call.id, call.name, call.arguments, title[:200], cwd)
    if call.name == "write":
        # What stood in the file then is not known any more.
        for item in start["content"]:
            item["oldText"] = None
    return start


def _stored_result(result: ToolResult, names: dict[str, str]) -> JsonObject:
    tool = names.get(result.call_id, "")
    update: JsonObject = {
        "sessionUpdate": "tool_call_update",
        "toolCallId": result.call_id,
        "status": "failed" if result.is_error else "completed",
    }
    if toolcalls.kind_of(tool) != "edit" or tool in ("patch", "try") or result.is_error:
        update["content"] = toolcalls.result_content(tool, result)
    return update


def stop_reason(outcome: TurnOutcome) -> str:
    """How the protocol names the end of a turn."""
    match outcome:
        case TurnOutcome.INTERRUPTED:
            return "cancelled"
        case TurnOutcome.MAX_TOKENS:
            return "max_tokens"
        case TurnOutcome.MAX_TURNS | TurnOutcome.MAX_BUDGET | TurnOutcome.MAX_TIME | TurnOutcome.MAX_DISK:
            return "max_turn_requests"
        case _:
            return "end_turn"

"""Events to blocks: the one file that knows both.

What streams in is gathered and shown at most `MAX_FPS` times a second. Nothing here changes the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import assert_never

from k3agent.agent.excerpts import telling_lines
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
    Decision,
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
from k3agent.tui import figures
from k3agent.tui.history import blocks_of, message_blocks
from k3agent.tui.pace import Pace
from k3agent.tui.widgets.answer import AnswerBlock
from k3agent.tui.widgets.block import Block
from k3agent.tui.widgets.message import NoticeBlock, TurnEndBlock, UserBlock
from k3agent.tui.widgets.reasoning import ReasoningBlock
from k3agent.tui.widgets.status import Status, StatusLine
from k3agent.tui.widgets.toolcall import ToolBlock
from k3agent.tui.widgets.transcript import Transcript
from k3agent.types import Message, Role, Usage

MAX_FPS = 20
_CHECK_LINES = 8
USER_INTERRUPT = "the user pressed Esc"
OUTCOMES = {
    TurnOutcome.SUCCESS: "done",
    TurnOutcome.CHECKS_FAILED: "a check fails",
    TurnOutcome.EXECUTION: "failed",
    TurnOutcome.PROVIDER: "the model's endpoint failed",
    TurnOutcome.INTERRUPTED: "interrupted",
}


class Presenter:
    """`schedule` asks for a `flush` soon; it is called once for any number of changes."""

    def __init__(self, transcript: Transcript, status: StatusLine, schedule: Callable[[], None]) -> None:
        self._transcript = transcript
        self._line = status
        self._schedule = schedule
        self._is_dirty = False
        self._reasoning: ReasoningBlock | None = None
        self._answer: AnswerBlock | None = None
        self._writing: dict[int, ToolBlock] = {}
        #: blocks with text that is not laid out yet
        self._grown: dict[int, Block] = {}
        self._calls: dict[str, ToolBlock] = {}
        self._open: dict[str, ToolBlock] = {}
        self._turn_started = self._thinking_since = 0.0
        self._num_steps = 0
        self._turn_usage = Usage()
        self._cost_before = 0.0
        self.pace = Pace()
        #: images of the user as pictures; not for screen readers
        self.draws_images = True
        #: prompts that wait: shown at the end until the model gets them
        self.waiting: list[UserBlock] = []

    @property
    def _status(self) -> Status:
        return self._line.status

    def load(self, messages: Sequence[Message], head: Sequence[Block]) -> None:
        """Show a stored conversation."""
        blocks = blocks_of(messages, draws_images=self.draws_images)
        self._transcript.load([*head, *blocks])
        # Calls that have no result yet: a turn that goes on gives it to them.
        self._open = {
            block.call_id: block
            for block in blocks
            if isinstance(block, ToolBlock) and block.state == "proposed"
        }
        self.measure(messages)
        self._changed()

    def measure(self, messages: Sequence[Message]) -> None:
        """How full the window is after these: what the last answer says of itself."""
        usages = (message.usage for message in reversed(messages) if message.role is Role.ASSISTANT)
        self._status.step = next((usage for usage in usages if usage is not None), Usage())

    def add(self, block: Block, before: Block | None = None) -> None:
        """Put a block at the end, before prompts that wait; or before one that came sooner than it should."""
        blocks = self._transcript.blocks
        at = len(blocks) - len(self.waiting)
        if before is not None and before in blocks:
            at = blocks.index(before)
        self._transcript.add(block, at)
        self._changed()

    def touch(self, block: Block) -> None:
        block.changed()
        self._transcript.touch(block)
        self._changed()

    def _changed(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._schedule()

    def flush(self) -> None:
        """Show everything that has come since the last time."""
        self._is_dirty = False
        for block in self._grown.values():
            block.changed()
            self._transcript.touch(block)
        self._grown.clear()
        self._transcript.settle()
        self._line.changed()

    def tick(self) -> None:
        """Once a second while a turn runs: the seconds of running calls."""
        running = [block for block in self._calls.values() if block.state == "running"]
        for block in running:
            self.touch(block)
        self._line.tick()

    # --- events ---

    def event(self, event: AnyEvent) -> None:
        """Show what happened; with the next flush it is on the screen."""
        match event:
            case TurnStarted():
                self._turn_begins()
            case TurnEnded():
                self._turn_ends(event)
            case MessageAdded():
                self._message(event.message)
            case ReasoningStreamed() | TextStreamed() | ArgumentsStreamed():
                self._stream(event)
            case CallProposed() | ApprovalAsked() | ApprovalAnswered() | CallStarted():
                self._call_moves(event)
            case CallProgressed() | CallEnded():
                self._call_shows(event)
            case TaskChanged():
                self._task_moves(event)
            case TaskMessageAdded():
                # The card says what the subagent does; its conversation is in its own session.
                return
            case Retrying():
                self._retry(event)
            case PrefillProgressed() | UsageChanged():
                self._count(event)
            case Compacted() | CheckEnded() | Noticed():
                self._tell(event)
            case _:
                assert_never(event)
        self._changed()

    def _stream(self, event: ReasoningStreamed | TextStreamed | ArgumentsStreamed) -> None:
        self.pace.streams()
        match event:
            case ReasoningStreamed():
                self._reason(event.text)
            case TextStreamed():
                self._say(event.text)
            case ArgumentsStreamed():
                self._write_call(event)

    def _count(self, event: PrefillProgressed | UsageChanged) -> None:
        status = self._status
        if isinstance(event, PrefillProgressed):
            share = 100 * event.done // event.total if event.total else 0
            self.pace.reads(event.done, event.total)
            status.begin("reading the prompt")
            status.hint = f"{share} % of {figures.tokens(event.total)}"
            return
        self._num_steps += 1
        self.pace.ended(event.step.output_tokens)
        self._turn_usage += event.step
        status.step, status.total, status.cost_usd = event.step, event.total, event.cost_usd

    def _tell(self, event: Compacted | CheckEnded | Noticed) -> None:
        match event:
            case Compacted():
                before, after = figures.tokens(event.tokens_before), figures.tokens(event.tokens_after)
                self.add(NoticeBlock(f"context compacted ({event.trigger}): {before} to {after} tokens"))
            case CheckEnded(exit_code=0):
                self.add(NoticeBlock(f"check passed: {event.command}", "good"))
            case CheckEnded():
                said = "\n".join(telling_lines(event.output, _CHECK_LINES))
                text = f"check failed ({event.exit_code}): {event.command}\n{said}"
                self.add(NoticeBlock(text, "error"))
            case Noticed(data={"remark": "undo"}):
                self.add(NoticeBlock("To take back all of this turn: /undo", event.level))
            case Noticed():
                self.add(NoticeBlock(event.text, event.level))

    def _turn_begins(self) -> None:
        self._turn_started = time.monotonic()
        self._num_steps = 0
        self._turn_usage = Usage()
        self._cost_before = self._status.cost_usd
        self._calls, self._open = self._open, {}
        self._ask()

    def _ask(self) -> None:
        self.pace.asked()
        self._status.begin("waiting for the model")

    def _message(self, message: Message) -> None:
        if message.role is Role.TOOL:
            self._ask()
            return
        if message.role is Role.ASSISTANT:
            self._finish_answer(message)
            return
        for block in message_blocks(message, draws_images=self.draws_images):
            if isinstance(block, UserBlock):
                self._drop_waiting(block)
            self.add(block)

    def _drop_waiting(self, block: UserBlock) -> None:
        """The model gets a prompt that was shown as waiting."""
        for waiting in self.waiting:
            if waiting.text == block.text:
                self.waiting.remove(waiting)
                self._transcript.drop(waiting)
                return

    # --- the answer as it streams ---

    def _reason(self, text: str) -> None:
        if self._reasoning is None:
            self._thinking_since = time.monotonic()
            self._reasoning = ReasoningBlock(is_live=True)
            # A few words may be held back until the end: they could be the beginning of a secret.
            first_call = next(iter(self._writing.values()), None)
            self.add(self._reasoning, before=self._answer or first_call)
        self._status.begin("thinking")
        self._status.hint = ""
        self._reasoning.append(text)
        self._grown[id(self._reasoning)] = self._reasoning

    def _say(self, text: str) -> None:
        self._end_reasoning()
        if self._answer is None:
            if not text.strip():
                return
            self._answer = AnswerBlock(is_live=True)
            self.add(self._answer)
        self._status.begin("answering")
        self._status.hint = ""
        self._answer.append(text)
        self._grown[id(self._answer)] = self._answer

    def _end_reasoning(self, text: str | None = None) -> None:
        if self._reasoning is not None and self._reasoning.is_live:
            self._reasoning.finish(time.monotonic() - self._thinking_since, text)
            self._transcript.touch(self._reasoning)

    def _write_call(self, event: ArgumentsStreamed) -> None:
        self._end_reasoning()
        block = self._writing.get(event.index)
        if block is None:
            block = self._writing[event.index] = ToolBlock("", event.tool)
            block.state = "writing"
            self.add(block)
        self._status.begin(f"writing a call of {block.tool}")
        block.num_argument_chars += len(event.text)
        self._grown[id(block)] = block

    def _finish_answer(self, message: Message) -> None:
        """The answer is stored: what is shown becomes exactly what was stored."""
        blocks = message_blocks(message)
        for block in blocks:
            if isinstance(block, ReasoningBlock):
                if self._reasoning is None:
                    self.add(block)
                else:
                    self._end_reasoning(block.text)
            elif isinstance(block, AnswerBlock):
                if self._answer is None:
                    self.add(block)
                else:
                    self._answer.finish(block.text)
                    self._transcript.touch(self._answer)
                    self._answer = None
        self._end_step(keep_calls=bool(message.calls))

    def _end_step(self, *, keep_calls: bool) -> None:
        if self._answer is not None:
            self._answer.finish()
            self._transcript.touch(self._answer)
        self._end_reasoning()
        self._reasoning = self._answer = None
        if not keep_calls:
            for block in self._writing.values():
                self._transcript.drop(block)
            self._writing = {}

    def _retry(self, event: Retrying) -> None:
        """What was streamed since the step began is void."""
        for block in (self._reasoning, self._answer, *self._writing.values()):
            if block is not None:
                self._transcript.drop(block)
        self._reasoning = self._answer = None
        self._writing = {}
        self.pace.asked()
        self._status.begin("waiting to try again")
        text = f"trying again in {event.delay_s:.1f} s (attempt {event.attempt}): {event.reason}"
        self.add(NoticeBlock(text, "warning"))

    # --- calls ---

    def _call_moves(self, event: CallProposed | ApprovalAsked | ApprovalAnswered | CallStarted) -> None:
        if isinstance(event, CallProposed):
            self._propose(event)
            return
        block = self._calls.get(event.call_id)
        if block is None:
            return
        match event:
            case ApprovalAsked():
                block.set_state("waiting")
                self._status.begin("waiting for your answer")
            case ApprovalAnswered():
                block.set_state("proposed" if event.decision is Decision.ALLOW else "denied")
            case CallStarted():
                block.start()
                self._status.begin(f"running {block.tool}")
        self._transcript.touch(block)

    def _propose(self, event: CallProposed) -> None:
        first = next(iter(self._writing), None)
        block = self._calls.get(event.call_id)
        if block is None and first is not None:
            block = self._writing.pop(first)
        if block is None:
            block = ToolBlock(event.call_id, event.tool)
            self.add(block)
        block.call_id, block.summary = event.call_id, event.summary
        block.tool, block.arguments = event.tool or block.tool, event.arguments
        block.set_state("proposed")
        self._calls[event.call_id] = block
        self._transcript.touch(block)

    def _call_shows(self, event: CallProgressed | CallEnded) -> None:
        block = self._calls.get(event.call_id)
        if block is None:
            block = self._calls[event.call_id] = ToolBlock(event.call_id, getattr(event, "tool", ""))
            self.add(block)
        if isinstance(event, CallProgressed):
            block.progress(event.text)
        else:
            state = "failed" if event.result.is_error else "done"
            state = "invalid" if event.is_invalid else "denied" if event.is_denied else state
            state = "stopped" if event.is_interrupted else state
            block.end(state, event.result.text, event.duration_s, event.files)
        self._transcript.touch(block)

    def _task_moves(self, event: TaskChanged) -> None:
        block = self._calls.get(event.call_id)
        if block is not None:
            words = [event.detail]
            if event.num_turns:
                words += [
                    f"{event.num_turns} step{'s' if event.num_turns > 1 else ''}",
                    f"{figures.tokens(event.num_tokens)} tokens",
                ]
            if event.cost_usd:
                words.append(f"${event.cost_usd:.3f}")
            block.set_task(event.task, event.title, event.state, " · ".join(filter(None, words)))
            self._transcript.touch(block)

    def _turn_ends(self, event: TurnEnded) -> None:
        self._end_step(keep_calls=False)
        self._status.begin("")
        self._status.hint = ""
        figures_ = [
            OUTCOMES.get(event.outcome, event.outcome.value.removeprefix("error_").replace("_", " ")),
            f"{self._num_steps} step{'s' if self._num_steps != 1 else ''}" if self._num_steps else "",
            figures.usage_line(self._turn_usage, self._status.cost_usd - self._cost_before),
            figures.seconds(time.monotonic() - self._turn_started),
        ]
        is_bad = event.outcome not in (TurnOutcome.SUCCESS, TurnOutcome.INTERRUPTED)
        is_said = event.outcome is TurnOutcome.SUCCESS or event.detail == USER_INTERRUPT
        detail = "" if is_said else event.detail
        level = "error" if is_bad else "warning"
        self.add(TurnEndBlock(" · ".join(part for part in figures_ if part), detail, level))

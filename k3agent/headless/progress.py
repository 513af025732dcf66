"""Progress for people, on standard error: one line for each call, diffs of edits, reasoning dimmed.

Nothing of it is needed to read the answer. Control characters of untrusted text never reach the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from k3agent.agent.excerpts import head_and_end, telling_lines
from k3agent.events import (
    AnyEvent,
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
    TurnOutcome,
    UsageChanged,
)
from k3agent.headless.exitcodes import ExitCode
from k3agent.headless.formats import End
from k3agent.headless.report import failed_command, shown_files
from k3agent.safety.visible import clean
from k3agent.types import Role

_MAX_DIFF_LINES = 20
_MAX_OUTPUT_LINES = 4
_MAX_LINE = 160
_SLOW_S = 2.0
_LOG_EVERY_S = 10.0
_DIFF_TOOLS = {"edit", "patch", "try", "write"}


class Progress:
    """Tells of a run as it goes. `has_color` also decides whether reasoning is streamed: in a log it would
    be in the way.
    """

    def __init__(self, write: Callable[[str], None], *, has_color: bool, is_quiet: bool = False) -> None:
        self._write = write
        self._has_color = has_color
        self._is_quiet = is_quiet
        self._task_states: dict[tuple[str, int], str] = {}
        self._is_mid_line = False
        self._has_status = False
        # What is being waited for and since when; when that was said last; how far the prompt is read.
        self._waiting = ""
        self._waiting_since = 0.0
        self._said_at = 0.0
        self._reading = ""
        # What is wrong with the last test run, said at the end: behind an answer that may claim otherwise.
        self._untested = ""
        # How to take back a turn that ended badly.
        self._way_back = ""

    def line(self, text: str, style: str = "") -> None:
        self._end_line()
        self._clear_status()
        self._write(self._styled(clean(text), style) + "\n")

    def event(self, event: AnyEvent) -> None:
        if self._is_quiet:
            return
        if isinstance(event, PrefillProgressed):
            self._read(event)
            return
        self._note_waiting(event)
        match event:
            case ReasoningStreamed() if self._has_color:
                self._stream(event.text)
            case MessageAdded(message=message) if message.role is Role.ASSISTANT:
                # The answer itself goes to standard output, which may be the same terminal.
                self._end_line()
                if message.calls and message.text.strip():
                    self.line(message.text.strip())
            case CallProposed():
                summary = " ".join(event.summary.split()) or event.tool
                self.line(f"● {summary[:_MAX_LINE]}", "bold")
            case CallEnded():
                self._call_ended(event)
            case CheckEnded():
                self._check_ended(event)
            case TaskChanged():
                self._task_changed(event)
            case Retrying() | Noticed() | Compacted():
                self._tell(event)
            case _:
                # Everything else is either in these lines already or of no use to a reader of a log.
                return

    def _tell(self, event: Retrying | Noticed | Compacted) -> None:
        match event:
            case Retrying():
                self.line(
                    f"… again in {event.delay_s:.1f} s (attempt {event.attempt}): {event.reason}", "yellow"
                )
            case Noticed(data={"remark": "tests"}):
                self._untested = event.text
            case Noticed(data={"remark": "undo"}):
                self._way_back = event.text
            case Noticed():
                self.line(event.text, "yellow" if event.level == "warning" else "dim")
            case Compacted():
                self.line(f"context compacted: {event.tokens_before} to {event.tokens_after} tokens", "dim")

    def _task_changed(self, event: TaskChanged) -> None:
        """A line for each new state; figures alone are no news."""
        if self._task_states.get((event.call_id, event.task)) == event.state:
            return
        self._task_states[event.call_id, event.task] = event.state
        words = f": {event.detail}" if event.detail else ""
        steps = f"{event.num_turns} step{'s' if event.num_turns > 1 else ''}"
        figures = f" ({steps}, {event.num_tokens} tokens)" if event.num_turns else ""
        style = "yellow" if event.state in {"failed", "paused"} else "dim"
        self.line(f"  task {event.task}, {event.title}: {event.state}{figures}{words}"[:_MAX_LINE], style)

    def ended(self, end: End) -> None:
        for error in end.errors:
            if error.rstrip(".") not in end.report:
                self.line(f"k3agent: {error}", "red")
        if end.report:
            self.line(f"k3agent: {end.report}", "red")
        if end.said:
            self.line(head_and_end(end.said), "dim")
        if self._is_quiet or not end.session_id:
            return
        receipt, usage = end.receipt, end.receipt.usage
        parts = [
            end.outcome.value,
            f"{receipt.num_turns} step{'' if receipt.num_turns == 1 else 's'}",
            f"{usage.input_tokens + usage.output_tokens} tokens",
            f"{end.duration_s:.1f} s",
        ]
        if usage.input_tokens:
            parts.insert(3, f"{100 * usage.cached_tokens // usage.input_tokens} % cached")
        if receipt.cost_usd:
            parts.append(f"${receipt.cost_usd:.4f}")
        if receipt.files_changed:
            parts.append(f"changed: {shown_files(receipt.files_changed)}")
        self.line(" · ".join(parts), "dim")
        for asked in receipt.questions:
            taken = f"went on with: {asked['taken']}" if asked["taken"] else "no default: the model chose"
            self.line(f"? {asked['question']} ({taken})", "yellow")
        if receipt.files_note and not end.report:
            self.line(f"what commands changed cannot be told: {receipt.files_note}", "yellow")
        failed = "" if end.report else self._untested or failed_command(receipt)
        for text in filter(None, (failed, self._way_back)):
            self.line(text, "yellow")
        is_resumable = end.outcome not in {TurnOutcome.SUCCESS, TurnOutcome.CONTEXT}
        is_resumable = is_resumable and end.exit_code not in {ExitCode.OK, ExitCode.USAGE}
        if is_resumable and end.session_id not in end.report:
            self.line(f"To go on: k3agent run --resume {end.session_id}", "dim")

    def tick(self) -> None:
        """To be called every second or so: tells of a wait that takes its time, in a line that changes on a
        terminal, now and then with a new line in a log.
        """
        now = time.monotonic()
        waited_s = now - self._waiting_since
        if self._is_quiet or self._is_mid_line or not self._waiting or waited_s < _SLOW_S:
            return
        text = f"{self._reading or self._waiting} ({waited_s:.0f} s)"
        if self._has_color:
            self._write(self._styled(f"\r{text}\x1b[K", "dim"))
            self._has_status = True
        elif waited_s >= _LOG_EVERY_S and now - self._said_at >= _LOG_EVERY_S:
            self._said_at = now
            self.line(text, "dim")

    def _read(self, event: PrefillProgressed) -> None:
        if event.total > 0:
            if not self._waiting:
                self._wait_for("waiting for the model")
            self._reading = f"reading the prompt: {event.done:,} of {event.total:,} tokens"
            self.tick()

    def _note_waiting(self, event: AnyEvent) -> None:
        match event:
            case MessageAdded(message=message) if message.role is not Role.ASSISTANT:
                self._untested = self._way_back = ""
                self._wait_for("waiting for the model")
            case Retrying():
                self._wait_for("waiting for the model again")
            case CallStarted():
                self._wait_for(f"{event.tool} runs")
            case Noticed(data={"check": _}):
                self._wait_for("the check runs")
            case Noticed() | CallProposed() | CallProgressed() | UsageChanged():
                return
            case _:
                self._wait_for("")

    def _wait_for(self, what: str) -> None:
        self._waiting, self._waiting_since, self._reading = what, time.monotonic(), ""

    def _end_line(self) -> None:
        if self._is_mid_line:
            self._write("\n")
            self._is_mid_line = False

    def _clear_status(self) -> None:
        if self._has_status:
            self._write("\r\x1b[K")
            self._has_status = False

    def _check_ended(self, event: CheckEnded) -> None:
        is_fine = event.exit_code == 0
        end = "passed" if is_fine else f"failed (exit code {event.exit_code})"
        self.line(f"{'✓' if is_fine else '✗'} check {event.command}: {end}", "green" if is_fine else "red")
        if not is_fine:
            self._lines(telling_lines(event.output, _MAX_OUTPUT_LINES))

    def _call_ended(self, event: CallEnded) -> None:
        lines = event.result.text.splitlines()
        if event.result.is_error:
            self.line(f"  ✗ {lines[0][:_MAX_LINE] if lines else 'failed'}", "red")
            return
        if event.tool in _DIFF_TOOLS:
            self._diff(lines)
        elif event.tool == "shell":
            self._lines(lines[-_MAX_OUTPUT_LINES:])

    def _lines(self, lines: list[str]) -> None:
        for text in lines:
            self.line(f"  {text[:_MAX_LINE]}", "dim")

    def _diff(self, lines: list[str]) -> None:
        styles = {"+": "green", "-": "red", "@": "dim"}
        for text in lines[:_MAX_DIFF_LINES]:
            self.line(f"  {text[:_MAX_LINE]}", styles.get(text[:1], "dim"))
        if len(lines) > _MAX_DIFF_LINES:
            self.line(f"  … {len(lines) - _MAX_DIFF_LINES} more lines", "dim")

    def _stream(self, text: str) -> None:
        self._clear_status()
        self._write(self._styled(clean(text), "dim"))
        self._is_mid_line = not text.endswith("\n")

    def _styled(self, text: str, style: str) -> str:
        codes = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
        if not self._has_color or style not in codes:
            return text
        return f"\x1b[{codes[style]}m{text}\x1b[0m"

"""A tool call: what it is, how it stands, how long it takes, and as much of its output as helps."""

from __future__ import annotations

import json
import time

from rich.segment import Segment
from rich.text import Text

from k3agent.tui.safe import safe, safe_line
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Block, Row, indent, wrap
from k3agent.tui.widgets.code import language_of
from k3agent.tui.widgets.diff import diff_rows, parse_diff
from k3agent.tui.widgets.markdown import wrap_code

LIVE_LINES = 8
HEAD_LINES, TAIL_LINES = 3, 5
DIFF_LINES = 24
MAX_LIVE_CHARS = 20_000
OUR_WORDS = {"denied", "invalid", "stopped"}
ENDED_WELL = "[exit code 0]"
DIFF_TOOLS = {"edit", "write", "patch", "try"}
QUIET_TOOLS = {"read", "grep", "glob", "todo", "jobs", "skill"}

STATES = {
    "writing": ("○", "dim", "the call is being written"),
    "waiting": ("?", "warn", "waits for your answer"),
    "proposed": ("○", "dim", ""),
    "running": ("●", "accent", ""),
    "done": ("✓", "good", ""),
    "failed": ("✗", "bad", "failed"),
    "invalid": ("✗", "bad", "arguments not usable"),
    "denied": ("⊘", "warn", "denied"),
    "stopped": ("⊘", "warn", "interrupted"),
}
TASK_MARKS = {
    "waiting": ("○", "dim"),
    "running": ("●", "accent"),
    "paused": ("◌", "warn"),
    "interrupted": ("⊘", "warn"),
    "done": ("✓", "good"),
    "failed": ("✗", "bad"),
}
TODO_MARKS = {"[ ]": ("☐", "dim"), "[>]": ("▶", "accent"), "[x]": ("☑", "good")}


class ToolBlock(Block):
    """`state` is a key of `STATES`. Times are seconds."""

    def __init__(self, call_id: str, tool: str, arguments: str = "", summary: str = "") -> None:
        super().__init__()
        self.call_id = call_id
        self.tool = safe_line(tool, 40)
        self.arguments = arguments
        self.summary = summary
        self.state = "proposed"
        self.started = 0.0
        self.duration_s = 0.0
        self.output = ""
        self.num_argument_chars = 0
        self.files: tuple[str, ...] = ()
        #: subagents of the call by number: title, state, figures
        self.tasks: dict[int, tuple[str, str, str]] = {}

    def set_task(self, number: int, title: str, state: str, words: str) -> None:
        """Where a subagent of this call stands."""
        self.tasks[number] = (title, state, words)
        self.changed()

    def start(self) -> None:
        self.state = "running"
        self.started = time.monotonic()
        self.changed()

    def set_state(self, state: str) -> None:
        self.state = state
        self.changed()

    def progress(self, text: str) -> None:
        """More live output; only its end is kept."""
        self.output = (self.output + text)[-MAX_LIVE_CHARS:]
        self.changed()

    def end(self, state: str, output: str, duration_s: float, files: tuple[str, ...] = ()) -> None:
        self.state, self.output, self.duration_s, self.files = state, output, duration_s, files
        self.changed()

    @property
    def title(self) -> str:
        """What the call is in one line, from the tool's own words or from the arguments."""
        if self.summary:
            return safe_line(self.summary)
        return safe_line(f"{self.tool} {_argument_line(self.arguments)}")

    @property
    def code_blocks(self) -> list[str]:
        """The command, for copying."""
        command = _parsed(self.arguments).get("command")
        return [command] if isinstance(command, str) else []

    @property
    def plain(self) -> str:
        return f"{self.title}\n{safe(self.output)}".rstrip()

    def estimate(self, width: int) -> int:
        if self.is_open:
            return super().estimate(width)
        lines = self.output.count("\n") + 1 if self.output else 0
        if self.tool in QUIET_TOOLS and self.tool != "todo":
            lines = min(lines, 1)
        limit = DIFF_LINES if self.tool in DIFF_TOOLS else HEAD_LINES + TAIL_LINES
        return 1 + self.has_gap + len(self.tasks) + min(lines, limit + 1)

    def toggle(self) -> bool:
        self.is_open = not self.is_open
        self.changed()
        return True

    # --- lines ---

    def rows(self, width: int, palette: Palette) -> list[Row]:
        rows = [self._head(width, palette)]
        body = self._task_rows(max(width - 2, 8), palette) + self._body(max(width - 2, 8), palette)
        bar: Row = [Segment("│ ", palette.style("line"))]
        return rows + indent(body, bar, bar)

    def _head(self, width: int, palette: Palette) -> Row:
        mark, color, words = STATES[self.state]
        tail = words
        if self.state == "running" and self.started:
            seconds = time.monotonic() - self.started
            tail = f"{seconds:.0f} s" if seconds >= 1 else ""
        elif self.state == "writing" and self.num_argument_chars:
            tail = f"writing, {self.num_argument_chars:,} characters"
        elif self.duration_s >= 0.1:
            tail = f"{words} {self.duration_s:.1f} s".strip()
        title = Text(self.title, style=palette.style("text", bold=True), no_wrap=True, end="")
        room = max(width - 2 - (len(tail) + 2 if tail else 0), 8)
        title.truncate(room, overflow="ellipsis")
        row: Row = [Segment(f"{mark} ", palette.style(color, bold=True)), Segment(title.plain, title.style)]  # type: ignore[arg-type]  # a rich Style
        if tail:
            row.append(Segment(f"  {tail}", palette.style(color if words else "dim")))
        return row

    def _body(self, width: int, palette: Palette) -> list[Row]:
        if self.state in ("proposed", "waiting", "writing"):
            return self._arguments(width, palette) if self.is_open else []
        if not self.output:
            return self._arguments(width, palette) if self.is_open else []
        if self.state == "running":
            return self._plain_lines(width, palette, 0, LIVE_LINES)
        if self.state in ("failed", "invalid", "denied", "stopped"):
            return self._plain_lines(width, palette, 6, 2, color="bad" if self.state != "stopped" else "dim")
        if self.tool in DIFF_TOOLS:
            return self._diff(width, palette)
        if self.tool == "todo":
            return self._todo(width, palette) if self.is_open else []
        if self.tool in QUIET_TOOLS and not self.is_open:
            count = self.output.rstrip("\n").count("\n") + 1
            return [[Segment(f"{count:,} line{'s' if count > 1 else ''}", palette.style("dim"))]]
        return self._plain_lines(width, palette, HEAD_LINES, TAIL_LINES)

    def _task_rows(self, width: int, palette: Palette) -> list[Row]:
        rows: list[Row] = []
        for title, state, words in self.tasks.values():
            mark, color = TASK_MARKS[state]
            text = Text(f"{safe_line(title)}  ", style=palette.style("text"), no_wrap=True, end="")
            text.append(safe_line(f"{state} {words}"), style=palette.style("dim"))
            text.truncate(width - 2, overflow="ellipsis")
            pieces = wrap(text, width)
            rows.append([Segment(f"{mark} ", palette.style(color)), *pieces[0]])
        return rows

    def _arguments(self, width: int, palette: Palette) -> list[Row]:
        text = Text(safe(pretty_arguments(self.arguments)), style=palette.style("dim"))
        return wrap(text, width)

    def _plain_lines(
        self, width: int, palette: Palette, head: int, tail: int, color: str = "dim"
    ) -> list[Row]:
        """The first `head` and last `tail` lines, or all when unfolded."""
        style = palette.style(color)
        # That all went well is what the mark in front says.
        output = self.output if self.is_open else self.output.removesuffix(ENDED_WELL)
        if not output.strip():
            return []
        lines = safe(output).rstrip("\n").split("\n")
        left = 0
        if not self.is_open and len(lines) > head + tail:
            left = len(lines) - head - tail
            lines = [*lines[:head], "", *lines[len(lines) - tail :]]
        rows: list[Row] = []
        for at, line in enumerate(lines):
            if left and at == head:
                if head:
                    note = f"… {left:,} more line{'s' if left > 1 else ''} (click to unfold)"
                    rows.append([Segment(note, palette.style("faint", italic=True))])
                continue
            # k3agent's own sentences break at words, a program's lines anywhere.
            text = Text(line, style=style)
            pieces = wrap(text, width) if self.state in OUR_WORDS else wrap_code(text, width)
            if not self.is_open and len(pieces) > 3:
                pieces = [*pieces[:3], [Segment("…", style)]]
            rows += pieces
        return rows

    def _diff(self, width: int, palette: Palette) -> list[Row]:
        lines = parse_diff(self.output)
        left = 0
        if not self.is_open and len(lines) > DIFF_LINES:
            left = len(lines) - DIFF_LINES
            lines = lines[:DIFF_LINES]
        rows = diff_rows(lines, width, palette, language_of(self._path))
        if left:
            rows.append(
                [Segment(f"… {left:,} more lines (click to unfold)", palette.style("faint", italic=True))]
            )
        return rows

    @property
    def _path(self) -> str:
        return self.files[0] if self.files else str(_parsed(self.arguments).get("path", ""))

    def _todo(self, width: int, palette: Palette) -> list[Row]:
        rows: list[Row] = []
        for line in safe(self.output).split("\n"):
            mark, color = TODO_MARKS.get(line[:3], ("", "dim"))
            text = Text(
                line[4:] if mark else line, style=palette.style("text" if color == "accent" else "dim")
            )
            head: Row = [Segment(f"{mark} " if mark else "", palette.style(color))]
            rows += indent(wrap(text, width - 2), head)
        return rows


def _parsed(arguments: str) -> dict[str, object]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _argument_line(arguments: str) -> str:
    """The argument that says most, for calls that have no words of their own (an old transcript)."""
    value = _parsed(arguments)
    for name in ("command", "path", "pattern", "question", "url", "query", "name", "action"):
        if isinstance(value.get(name), str):
            return str(value[name])[:400]
    return arguments[:200] if arguments != "{}" else ""


def pretty_arguments(arguments: str) -> str:
    """Arguments for people: one `name: value` a line, long values below their name."""
    value = _parsed(arguments)
    if not value:
        return arguments
    rows = []
    for name, entry in value.items():
        text = entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)
        rows.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(rows)

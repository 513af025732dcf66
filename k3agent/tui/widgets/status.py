"""The line at the bottom: what happens now, the model, the mode, the context meter, tokens and money."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

from rich.segment import Segment
from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget

from k3agent.tui import figures
from k3agent.tui.safe import safe_line
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import segments, strip_of
from k3agent.types import Usage

METER = 10
NARROW = 60
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass
class Status:
    """What the line tells. `activity` is empty while nothing runs; `since` is when it began (monotonic)."""

    activity: str = ""
    since: float = 0.0
    model: str = ""
    provider: str = ""
    mode: str = "default"
    window: int = 0
    compacts_at: int | None = None
    step: Usage = field(default_factory=Usage)
    total: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    num_jobs: int = 0
    num_queued: int = 0
    hint: str = ""
    place: str = ""

    def begin(self, activity: str) -> None:
        if activity != self.activity:
            self.activity = activity
            self.since = time.monotonic()

    @property
    def context_tokens(self) -> int:
        return self.step.input_tokens + self.step.output_tokens


class StatusLine(Widget):
    """One row. `tick` is called once a second while something runs, and never otherwise."""

    DEFAULT_CSS = "StatusLine { height: 1; dock: bottom; }"

    def __init__(self, palette: Palette, *, is_plain: bool = False) -> None:
        super().__init__(id="status")
        self.status = Status()
        self.palette = palette
        self.is_plain = is_plain
        self._frame = 0
        self._drawn: tuple[object, ...] = ()

    def changed(self) -> None:
        """Draw anew if anything shown is different: most changes leave this line as it is."""
        now = dataclasses.astuple(self.status)
        if now != self._drawn:
            self._drawn = now
            self.refresh()

    def tick(self) -> None:
        self._frame += 1
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, palette = self.size.width, self.palette
        base = palette.style("dim", bg="raised")
        left = self._left()
        parts = self._right(width)
        # What happens now comes first; figures give way, the least important ones before the others.
        while parts and _joined_len(parts) + left.cell_len + 4 > width:
            parts.pop(min(range(len(parts)), key=lambda at: parts[at][0]))
        right = Text(" · ", palette.style("faint")).join([part for _, part in parts])
        left.truncate(max(width - right.cell_len - 3, 1), overflow="ellipsis")
        gap = max(1, width - left.cell_len - right.cell_len - 2)
        row = [Segment(" "), *segments(left), Segment(" " * gap), *segments(right), Segment(" ")]
        return strip_of(row, width, base)

    def _left(self) -> Text:
        status, palette = self.status, self.palette
        parts: list[Text] = []
        if status.activity:
            mark = "●" if self.is_plain else FRAMES[self._frame % len(FRAMES)]
            text = Text.assemble(
                (f"{mark} ", palette.style("accent")), (status.activity, palette.style("text"))
            )
            passed = time.monotonic() - status.since
            if passed >= 1:
                text.append(f" {figures.seconds(passed)}")
            parts.append(text)
        if status.hint:
            parts.append(Text(status.hint, palette.style("warn")))
        if status.num_queued:
            parts.append(Text(f"{status.num_queued} queued", palette.style("accent")))
        if status.num_jobs:
            jobs = f"{status.num_jobs} job{'s' if status.num_jobs > 1 else ''}"
            parts.append(Text(jobs, palette.style("accent")))
        if not parts:
            parts.append(Text(safe_line(status.place), palette.style("dim")))
        return Text("  ").join(parts)

    def _right(self, width: int) -> list[tuple[int, Text]]:
        """(importance, words), from left to right."""
        status, palette = self.status, self.palette
        mode_color = {"auto": "warn", "plan": "accent"}.get(status.mode, "dim")
        mode = f"{status.mode} mode" if width >= NARROW else status.mode
        parts = [(9, Text(mode, palette.style(mode_color)))]
        if status.model:
            parts.append((5, Text(safe_line(status.model, 30), palette.style("text"))))
        if status.window and status.context_tokens:
            parts.append((8, self._meter(width)))
        if status.total.output_tokens:
            read, made = status.total.input_tokens, status.total.output_tokens
            sums = f"↑{figures.tokens(read)} ↓{figures.tokens(made)}"
            parts.append((1, Text(sums, palette.style("dim"))))
        if figures.money(status.cost_usd):
            parts.append((7, Text(figures.money(status.cost_usd), palette.style("text"))))
        return parts

    def _meter(self, width: int) -> Text:
        """Cached, fresh and free tokens of the window: full, half and empty cells, and the share used."""
        status, palette = self.status, self.palette
        used = min(status.context_tokens, status.window)
        share = used / status.window
        color = "bad" if share > 0.9 else "warn" if share > 0.75 else "good"
        text = Text()
        if width >= 70:
            cached = round(METER * min(status.step.cached_tokens, used) / status.window)
            filled = max(round(METER * share), 1)
            cached = min(cached, filled)
            text.append("█" * cached, palette.style(color))
            text.append("▓" * (filled - cached), palette.style(color))
            text.append(self._free(METER - filled), palette.style("faint"))
            text.append(" ")
        text.append(f"{100 * share:.0f}%", palette.style(color))
        if width >= 100:
            text.append(f" of {figures.tokens(status.window)}", palette.style("dim"))
        if width >= 130 and status.compacts_at is not None:
            text.append(f", short at {figures.tokens(status.compacts_at)}", palette.style("dim"))
        return text

    def _free(self, num_cells: int) -> str:
        """The cells that are not used yet, with a mark where the context will be made short."""
        cells = ["░"] * num_cells
        at = self.status.compacts_at
        if at is not None and at < self.status.window:
            mark = round(METER * at / self.status.window) - (METER - num_cells)
            if 0 <= mark < num_cells:
                cells[mark] = "┊"
        return "".join(cells)


def _joined_len(parts: list[tuple[int, Text]]) -> int:
    return sum(part.cell_len for _, part in parts) + 3 * (len(parts) - 1)

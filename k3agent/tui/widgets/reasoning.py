"""The model's reasoning: its last lines while it thinks, one line once it is done, all when unfolded."""

from __future__ import annotations

from rich.segment import Segment
from rich.text import Text

from k3agent.tui.safe import safe
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Block, Row, indent, wrap

LIVE_LINES = 6
# Only so much of the end is laid out while it streams.
LIVE_CHARS = 2_000


class ReasoningBlock(Block):
    """`seconds` is None while it streams."""

    def __init__(self, text: str = "", *, seconds: float | None = None, is_live: bool = False) -> None:
        super().__init__()
        self._pieces = [text] if text else []
        self.is_live = is_live
        self.seconds = seconds

    def append(self, text: str) -> None:
        """More text; it is laid out with the next `changed`."""
        self._pieces.append(text)

    def finish(self, seconds: float | None, text: str | None = None) -> None:
        if text is not None:
            self._pieces = [text]
        self.is_live = False
        self.seconds = seconds
        self.changed()

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def plain(self) -> str:
        return safe(self.text) if self.is_open or self.is_live else self._head()

    def _head(self) -> str:
        took = f" for {self.seconds:.0f} s" if self.seconds is not None and self.seconds >= 1 else ""
        words = len(self.text.split())
        return f"Thought{took} · {words:,} word{'s' if words != 1 else ''}"

    def rows(self, width: int, palette: Palette) -> list[Row]:
        dim, mark = palette.style("dim", italic=True), palette.style("faint")
        bar: Row = [Segment("  ", mark)]
        if self.is_live:
            tail = safe(self.text[-LIVE_CHARS:]).strip("\n")
            lines = wrap(Text(tail, style=dim), width - 2)
            if not self.is_open:
                lines = lines[-LIVE_LINES:]
            return [[Segment("✻ Thinking…", palette.style("accent"))], *indent(lines, bar, bar)]
        head = "▾ " if self.is_open else "▸ "
        rows: list[Row] = [[Segment(head, mark), Segment(self._head(), palette.style("dim"))]]
        if self.is_open:
            rows += indent(wrap(Text(safe(self.text).strip(), style=dim), width - 2), bar, bar)
        return rows

    def estimate(self, width: int) -> int:
        return super().estimate(width) if self.is_open else 1 + self.has_gap

    def toggle(self) -> bool:
        self.is_open = not self.is_open
        self.changed()
        return True

"""A piece of the transcript: it knows how to become lines of a given width, and keeps them while they hold.

Blocks are plain objects, not widgets. A transcript of any length is one widget that asks only the blocks in
view for their lines.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from k3agent.tui.theme import Palette

GUTTER = 2
MIN_WIDTH = 12
_console = Console(
    width=80, color_system="truecolor", legacy_windows=False, force_terminal=True, markup=False
)

Row = list[Segment]


class Block:
    """Base of all pieces. `changed()` must be called after any change; `lines` then lays out anew."""

    #: shown one line apart from the block before it
    has_gap = True
    #: where "previous turn" and "next turn" go
    is_turn = False

    def __init__(self) -> None:
        self._lines: list[Strip] | None = None
        self._key: tuple[int, str] = (0, "")
        self.is_open = False

    def lines(self, width: int, palette: Palette) -> list[Strip]:
        """The block as strips of exactly `width` cells, the first and last of them empty."""
        key = (width, palette.name)
        if self._lines is None or self._key != key:
            self._key = key
            base = palette.style("text", bg="background")
            self._lines = [strip_of([], width, base)] if self.has_gap else []
            self._lines += self.strips(width, palette)
        return self._lines

    def strips(self, width: int, palette: Palette) -> list[Strip]:
        """The rows as strips; for blocks that keep some of them while they grow."""
        base = palette.style("text", bg="background")
        side = Segment(" ", base)
        rows = self.rows(max(width - GUTTER, MIN_WIDTH), palette)
        return [strip_of([side, *row], width, base) for row in rows]

    def changed(self) -> None:
        self._lines = None

    def forget(self) -> None:
        """Give the laid-out lines back; they are made again when needed."""
        self._lines = None

    def rows(self, width: int, palette: Palette) -> list[Row]:
        raise NotImplementedError

    def estimate(self, width: int) -> int:
        """About how many lines it will have, without laying it out."""
        text = self.plain
        return 1 + self.has_gap + text.count("\n") + len(text) // max(width - GUTTER, MIN_WIDTH)

    @property
    def plain(self) -> str:
        """Its text, for searching and copying."""
        return ""

    def toggle(self) -> bool:
        """Fold or unfold; False where there is nothing to fold."""
        return False


def strip_of(row: Row, width: int, base: Style) -> Strip:
    """One line, cut or filled to `width`, on the palette's background."""
    segments = list(Segment.apply_style(row, base))
    return Strip(segments).adjust_cell_length(width, base)


def segments(text: Text) -> Row:
    """One line of `text` as segments, its own style below those of its parts."""
    base = text.style if isinstance(text.style, Style) else None
    return [part for part in Segment.apply_style(text.render(_console), base) if part.text not in ("", "\n")]


def wrap(text: Text, width: int) -> list[Row]:
    """`text` broken at word ends to lines of at most `width` cells."""
    rows: list[Row] = []
    for line in text.wrap(_console, max(width, 1), tab_size=4):
        line.rstrip()
        rows.append(segments(line))
    return rows or [[]]


def indent(rows: Iterable[Row], first: Row, rest: Row | None = None) -> list[Row]:
    """Put `first` before the first row and `rest` (or as much room) before the others."""
    if rest is None:
        rest = [Segment(" " * sum(part.cell_length for part in first))]
    return [[*(first if at == 0 else rest), *row] for at, row in enumerate(rows)]


def folded(text: str, width: int, limit: int) -> tuple[str, int]:
    """The first `limit` lines of `text` and how many are left out; a line counts as often as it wraps."""
    lines = text.split("\n")
    used = 0
    for at, line in enumerate(lines):
        used += 1 + len(line) // max(width, 1)
        if used > limit:
            at = max(at, 1)
            return "\n".join(lines[:at]), len(lines) - at
    return text, 0

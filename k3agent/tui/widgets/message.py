"""The plain pieces of the transcript: what the user said, notices, the end of a turn."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.text import Text

from k3agent.tui.safe import safe
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Block, Row, folded, indent, wrap
from k3agent.tui.widgets.thumbnail import ROWS, Thumbnail
from k3agent.types import ImagePart

MAX_USER_LINES = 16
MAX_PICTURES = 4


class UserBlock(Block):
    """A prompt. Long ones are folded: the whole is one key away. `draws_images`: not as words only."""

    is_turn = True

    def __init__(
        self, text: str, *, images: Sequence[ImagePart] = (), message_id: str = "", draws_images: bool = True
    ) -> None:
        super().__init__()
        self.text = safe(text)
        self.message_id = message_id
        self._thumbnails = [Thumbnail(part) for part in images]
        self._draws_images = draws_images

    @property
    def has_images(self) -> bool:
        return bool(self._thumbnails)

    def rows(self, width: int, palette: Palette) -> list[Row]:
        back = palette.style("text", bg="raised")
        shown, left = (self.text, 0) if self.is_open else folded(self.text, width - 3, MAX_USER_LINES)
        text = Text(shown, style=back)
        rows = wrap(text, width - 3)
        if left:
            rows.append(
                [Segment(f"… {left} more lines (click to unfold)", palette.style("dim", bg="raised"))]
            )
        for number, thumbnail in enumerate(self._thumbnails):
            is_drawn = self._draws_images and (self.is_open or number < MAX_PICTURES)
            rows += thumbnail.rows(width - 3, palette, is_drawn=is_drawn)
        mark = palette.style("accent", bg="raised", bold=True)
        rows = indent(rows, [Segment("❯ ", mark)], [Segment("  ", back)])
        return [_filled(row, width, back) for row in rows]

    def estimate(self, width: int) -> int:
        return super().estimate(width) + (1 + ROWS * self._draws_images) * len(self._thumbnails)

    def toggle(self) -> bool:
        self.is_open = not self.is_open
        self.changed()
        return True

    @property
    def plain(self) -> str:
        return self.text


def _filled(row: Row, width: int, back: object) -> Row:
    used = sum(part.cell_length for part in row)
    return [*row, Segment(" " * max(0, width - used), back)]  # type: ignore[arg-type]  # a rich Style


NOTICE = {"info": ("·", "dim"), "warning": ("!", "warn"), "error": ("✗", "bad"), "good": ("✓", "good")}


class NoticeBlock(Block):
    """Something that k3agent itself says. `level`: info, warning, error or good."""

    def __init__(self, text: str, level: str = "info", *, has_gap: bool = True) -> None:
        super().__init__()
        self.text = safe(text)
        self.level = level
        self.has_gap = has_gap

    def rows(self, width: int, palette: Palette) -> list[Row]:
        mark, color = NOTICE.get(self.level, NOTICE["info"])
        rows = wrap(Text(self.text, style=palette.style(color)), width - 2)
        return indent(rows, [Segment(f"{mark} ", palette.style(color, bold=True))])

    @property
    def plain(self) -> str:
        return self.text


class WelcomeBlock(Block):
    """The head of a session: which model, why, where, and the three keys one needs first."""

    has_gap = False

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        super().__init__()
        self.entries = [(name, safe(text)) for name, text in lines]

    def set(self, lines: list[tuple[str, str]]) -> None:
        self.entries = [(name, safe(text)) for name, text in lines]
        self.changed()

    def rows(self, width: int, palette: Palette) -> list[Row]:
        rows: list[Row] = []
        wide = max((len(name) for name, _ in self.entries), default=0) + 2
        for name, text in self.entries:
            if not name:
                rows += wrap(Text(text, style=palette.style("accent", bold=True)), width)
                continue
            head: Row = [Segment(f"{name:<{wide}}", palette.style("dim"))]
            rows += indent(wrap(Text(text, style=palette.style("text")), width - wide), head)
        return rows

    @property
    def plain(self) -> str:
        return "\n".join(f"{name} {text}" for name, text in self.entries)


class DraftBlock(Block):
    """What a killed process had received of an answer: shown dim, no part of the conversation."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = safe(text)

    def rows(self, width: int, palette: Palette) -> list[Row]:
        bar: Row = [Segment("┊ ", palette.style("faint"))]
        return indent(wrap(Text(self.text, style=palette.style("faint", italic=True)), width - 2), bar, bar)

    @property
    def plain(self) -> str:
        return self.text


class TurnEndBlock(Block):
    """How a turn ended and what it took: one dim line, and what went wrong in words."""

    def __init__(self, figures: str, detail: str = "", level: str = "info") -> None:
        super().__init__()
        self.figures = safe(figures)
        self.detail = safe(detail)
        self.level = level

    def rows(self, width: int, palette: Palette) -> list[Row]:
        rows: list[Row] = []
        if self.detail:
            mark, color = NOTICE[self.level]
            words = wrap(Text(self.detail, style=palette.style(color)), width - 2)
            rows += indent(words, [Segment(f"{mark} ", palette.style(color, bold=True))])
        rows += wrap(Text(self.figures, style=palette.style("faint")), width)
        return rows

    @property
    def plain(self) -> str:
        return f"{self.detail}\n{self.figures}".strip()

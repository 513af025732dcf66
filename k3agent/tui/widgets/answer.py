"""The model's answer as Markdown. While it streams, finished parts are laid out once; only the part in
progress is laid out again.
"""

from __future__ import annotations

import re

from rich.segment import Segment
from textual.strip import Strip

from k3agent.tui.safe import safe
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import GUTTER, MIN_WIDTH, Block, Row, strip_of
from k3agent.tui.widgets.markdown import markdown_rows, stable_end

# A code block that still grows is frozen in pieces of so many lines.
FENCE_LINES = 40
_OPEN_FENCE = re.compile(r"(?s)^ {0,3}(`{3,}|~{3,})([^\n]*)\n")
_CODE = re.compile(
    r"(?ms)^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n(?P<code>.*?)(?:^ {0,3}(?P=fence)[`~]*\s*$|\Z)"
)


class AnswerBlock(Block):
    """Text of one answer."""

    def __init__(self, text: str = "", *, is_live: bool = False) -> None:
        super().__init__()
        self._pieces = [text] if text else []
        self.is_live = is_live
        self._done: list[Strip] = []
        self._done_chars = 0
        self._done_key: tuple[int, str] = (0, "")
        #: the opening line of a code block of which the first lines are frozen already
        self._fence = ""

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def append(self, text: str) -> None:
        """More text; it is laid out with the next `changed`."""
        self._pieces.append(text)

    def finish(self, text: str | None = None) -> None:
        """The whole text is known: laid out once more as a whole, what was cut apart is mended."""
        if text is not None:
            self._pieces = [text]
        self.is_live = False
        self._drop_frozen()
        self.changed()

    def forget(self) -> None:
        super().forget()
        self._drop_frozen()

    def _drop_frozen(self) -> None:
        self._done, self._done_chars, self._fence = [], 0, ""

    @property
    def plain(self) -> str:
        return safe(self.text)

    @property
    def code_blocks(self) -> list[str]:
        return [hit["code"] for hit in _CODE.finditer(self.text)]

    def rows(self, width: int, palette: Palette) -> list[Row]:
        return markdown_rows(safe(self.text), width, palette)

    def strips(self, width: int, palette: Palette) -> list[Strip]:
        if not self.is_live:
            return super().strips(width, palette)
        key = (width, palette.name)
        if key != self._done_key:
            self._drop_frozen()
            self._done_key = key
        self._freeze(width, palette)
        tail = self._more(self._fence + self.text[self._done_chars :], width, palette)
        return [*self._done, *tail]

    def _more(self, source: str, width: int, palette: Palette) -> list[Strip]:
        """`source` as what follows the frozen lines."""
        base = palette.style("text", bg="background")
        side = Segment(" ", base)
        rows = markdown_rows(safe(source), max(width - GUTTER, MIN_WIDTH), palette)
        if rows and self._done and not self._fence:
            rows = [[], *rows]
        return [strip_of([side, *row], width, base) for row in rows]

    def _freeze(self, width: int, palette: Palette) -> None:
        """Lay out what will not change any more."""
        tail = self.text[self._done_chars :]
        end = stable_end(self._fence + tail) - len(self._fence)
        if end > 0:
            self._done += self._more(self._fence + tail[:end], width, palette)
            self._done_chars += end
            self._fence = ""
            tail = tail[end:]
        opening = _OPEN_FENCE.match(self._fence + tail)
        lines = tail.split("\n")
        if opening is None or len(lines) <= FENCE_LINES + 1:
            return
        # Whole lines of an open code block, the fence itself left for what follows.
        cut = "\n".join(lines[:-1])
        self._done += self._more(self._fence + cut, width, palette)
        self._fence = opening[0]
        self._done_chars += len(cut) + 1

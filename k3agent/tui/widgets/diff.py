"""Differences as lines: colours by kind, code highlighted, side by side where the screen is wide enough."""

from __future__ import annotations

import re

from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from k3agent.tui.safe import safe
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Row
from k3agent.tui.widgets.code import highlight
from k3agent.tui.widgets.markdown import wrap_code

SIDE_BY_SIDE = 150
_HUNK = re.compile(r"^@@ (?:line (\d+)|-(\d+)(?:,\d+)? \+(\d+)(?:,\d+)?) @@")
_HEADER = ("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "similarity", "rename ", "old mode")


class Line:
    """`kind` is one of ` +-@h` (h: a header); `number` counts in the new text, for `-` in the old. `old`: the
    number in the old text of a line that is in both.
    """

    __slots__ = ("kind", "number", "old", "text")

    def __init__(self, kind: str, text: str, number: int = 0, old: int = 0) -> None:
        self.kind, self.text, self.number, self.old = kind, text, number, old


def parse_diff(text: str) -> list[Line]:
    """The hunks that the edit tools give (`@@ line N @@`), or a unified diff of git."""
    lines: list[Line] = []
    old = new = 0
    # By how much the old text's numbers are ahead: hunks of the tools name only the new one's.
    ahead = 0
    has_hunk = False
    for raw in safe(text).split("\n"):
        hunk = _HUNK.match(raw)
        if hunk is not None:
            has_hunk = True
            new = int(hunk[1] or hunk[3])
            old = int(hunk[2] or new + ahead)
            lines.append(Line("@", raw, new))
        elif not has_hunk or (
            raw.startswith(_HEADER) and not raw.startswith(("--- ", "+++ ")) and "\t" not in raw
        ):
            if raw.startswith("diff "):
                has_hunk, ahead = False, 0
            lines.append(Line("h", raw))
        elif raw.startswith("+"):
            lines.append(Line("+", raw[1:], new))
            new, ahead = new + 1, ahead - 1
        elif raw.startswith("-"):
            lines.append(Line("-", raw[1:], old))
            old, ahead = old + 1, ahead + 1
        elif raw.startswith((" ", "")) and not raw.startswith(("[", "\\")):
            lines.append(Line(" ", raw[1:], new, old))
            new, old = new + 1, old + 1
        else:
            lines.append(Line("h", raw))
    return lines


def diff_rows(lines: list[Line], width: int, palette: Palette, language: str = "") -> list[Row]:
    """The lines in one column, or in two when there is room for both."""
    if width >= SIDE_BY_SIDE:
        return _side_by_side(lines, width, palette, language)
    wide = max((len(str(line.number)) for line in lines), default=1)
    rows: list[Row] = []
    for line in lines:
        rows += _one(line, width, wide, palette, language)
    return rows


def _back(kind: str, palette: Palette) -> Style:
    color = {"+": palette.added, "-": palette.removed}.get(kind)
    return Style(bgcolor=color) if color else Style.null()


def _one(line: Line, width: int, wide: int, palette: Palette, language: str) -> list[Row]:
    if line.kind in "@h":
        text = line.text if line.kind == "h" else f"⋯ line {line.number}"
        return wrap_code(Text(text, style=palette.style("dim")), width)
    back = _back(line.kind, palette)
    sign = {"+": palette.style("good", bold=True), "-": palette.style("bad", bold=True)}.get(
        line.kind, palette.style("faint")
    )
    number = f"{line.number:>{wide}} " if line.number else " " * (wide + 1)
    room = max(width - wide - 3, 8)
    pieces = wrap_code(highlight(line.text, language, palette), room)
    rows: list[Row] = []
    for at, piece in enumerate(pieces):
        head = number if at == 0 else " " * (wide + 1)
        mark = line.kind if at == 0 else " "
        row: Row = [Segment(head, palette.style("faint")), Segment(f"{mark} ", sign), *piece]
        used = sum(part.cell_length for part in row)
        row.append(Segment(" " * max(0, width - used)))
        rows.append(list(Segment.apply_style(row, post_style=back)))
    return rows


def _side_by_side(lines: list[Line], width: int, palette: Palette, language: str) -> list[Row]:
    half = (width - 3) // 2
    wide = max((len(str(line.number)) for line in lines), default=1)
    rows: list[Row] = []
    removed: list[Line] = []
    added: list[Line] = []
    gap = Segment(" │ ", palette.style("line"))

    def column(line: Line | None) -> list[Row]:
        return [] if line is None else _one(line, half, wide, palette, language)

    def flush() -> None:
        for at in range(max(len(removed), len(added))):
            pair(removed[at] if at < len(removed) else None, added[at] if at < len(added) else None)
        removed.clear()
        added.clear()

    def pair(old: Line | None, new: Line | None) -> None:
        left, right = column(old), column(new)
        for at in range(max(len(left), len(right))):
            rows.append([*_padded(left, at, half), gap, *_padded(right, at, half)])

    for line in lines:
        if line.kind == "-":
            removed.append(line)
        elif line.kind == "+":
            added.append(line)
        else:
            flush()
            if line.kind in "@h":
                rows += _one(line, width, wide, palette, language)
            else:
                pair(Line(" ", line.text, line.old or line.number), line)
    flush()
    return rows


def _padded(rows: list[Row], at: int, width: int) -> Row:
    row = rows[at] if at < len(rows) else []
    used = sum(part.cell_length for part in row)
    return [*row, Segment(" " * max(0, width - used))]

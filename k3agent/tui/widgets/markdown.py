"""Markdown to lines. The source is taken apart by markdown-it and laid out here, so that nothing in it is
ever read as the screen's own markup and a finished part is never laid out again while an answer streams.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import get_character_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from k3agent.tui.links import link_of, urls
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Row, indent, segments, wrap
from k3agent.tui.widgets.code import highlight

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_DEPTH = 8
# Longer lines of prose are hard to read; code and tables take what they need.
MAX_PROSE = 120
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # lazy: 40 ms, at the first answer

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def markdown_rows(source: str, width: int, palette: Palette) -> list[Row]:
    """`source` (already safe text) as rows of at most `width` cells."""
    tokens = _parser().parse(source)
    return _Layout(tokens, palette).blocks(width)


def stable_end(source: str) -> int:
    """How far `source`, which still grows, can be laid out once and for all: the end of the last blank line
    outside a fence after which a new block starts at the margin.
    """
    end = at = 0
    fence = ""
    was_blank = False
    in_list = False
    for line in source.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        else:
            is_item = re.match(r" {0,3}([-*+]|\d{1,9}[.)])\s", line) is not None
            starts = was_blank and line.strip() and not line.startswith((" ", "\t"))
            # Items of one list belong together: their spacing and numbers depend on each other.
            if starts and not (in_list and is_item):
                end = at
            if mark:
                fence = mark[1]
            if line.strip():
                in_list = is_item or (in_list and (line.startswith(" ") or not was_blank))
        was_blank = not line.strip()
        at += len(line)
    return end


class _Layout:
    """Walks the tokens once; `self._at` is the next one."""

    def __init__(self, tokens: list[Token], palette: Palette) -> None:
        self._tokens = tokens
        self._palette = palette
        self._at = 0

    def blocks(self, width: int, depth: int = 0, *, is_tight: bool = False) -> list[Row]:
        """All blocks up to the end of the enclosing container, with a blank line between them."""
        rows: list[Row] = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.nesting == -1:
                break
            piece = self._block(token, max(width, 8), depth)
            if piece:
                if rows and not is_tight:
                    rows.append([])
                rows += piece
        return rows

    def _block(self, token: Token, width: int, depth: int) -> list[Row]:
        palette = self._palette
        self._at += 1
        match token.type:
            case "heading_open":
                text = self._inline()
                text.stylize_before(palette.style("accent", bold=True))
                return wrap(text, width)
            case "paragraph_open":
                return wrap(self._inline(), min(width, MAX_PROSE))
            case "fence" | "code_block":
                return self._code(token, width)
            case "hr":
                return [[Segment("─" * min(width, 40), palette.style("line"))]]
            case "blockquote_open":
                bar: Row = [Segment("▎ ", palette.style("dim"))]
                rows = self._inside(width - 2, depth)
                return indent(rows, bar, bar)
            case "bullet_list_open" | "ordered_list_open":
                return self._list(token, width, depth)
            case "table_open":
                return self._table(width)
            case "inline":
                return wrap(self._text(token), width)
            case _:
                return [] if token.nesting != 1 else self._inside(width, depth)

    def _inside(self, width: int, depth: int, *, is_tight: bool = False) -> list[Row]:
        # Quotes in quotes without end would leave no room for text.
        rows = self.blocks(width if depth < MAX_DEPTH else 40, depth + 1, is_tight=is_tight)
        self._at += 1
        return rows

    def _list(self, token: Token, width: int, depth: int) -> list[Row]:
        number = int(token.attrGet("start") or 1) if token.type == "ordered_list_open" else 0
        rows: list[Row] = []
        while self._tokens[self._at].type == "list_item_open":
            self._at += 1
            inner = self._tokens[self._at] if self._at < len(self._tokens) else None
            is_tight = inner is not None and inner.hidden
            mark = f"{number}. " if number else "• "
            item = self._inside(width - len(mark), depth, is_tight=is_tight) or [[]]
            if rows and not is_tight:
                rows.append([])
            rows += indent(item, [Segment(mark, self._palette.style("accent"))])
            number += bool(number)
        self._at += 1
        return rows

    def _code(self, token: Token, width: int) -> list[Row]:
        language = token.info.split()[0] if token.info.strip() else ""
        text = highlight(token.content.rstrip("\n"), language, self._palette)
        bar: Row = [Segment("│ ", self._palette.style("line"))]
        rows = [row for line in text.split("\n", allow_blank=True) for row in wrap_code(line, width - 2)]
        return indent(rows, bar, bar)

    def _table(self, width: int) -> list[Row]:
        cells: list[list[Text]] = []
        is_head = True
        num_head = 0
        while self._tokens[self._at].type != "table_close":
            token = self._tokens[self._at]
            self._at += 1
            if token.type == "tr_open":
                cells.append([])
                num_head += is_head
            elif token.type == "thead_close":
                is_head = False
            elif token.type == "inline":
                text = self._text(token)
                if is_head:
                    text.stylize_before(self._palette.style("accent", bold=True))
                cells[-1].append(text)
        self._at += 1
        return table_rows(cells, num_head, width, self._palette)

    def _inline(self) -> Text:
        """The text of the inline token that follows, and past the closing token."""
        token = self._tokens[self._at]
        self._at += 2
        return self._text(token)

    def _text(self, token: Token) -> Text:
        """The words of a paragraph, heading or cell with their styles."""
        text = Text(style=self._palette.style("text"))
        styles: list[Style] = []
        links: list[str] = []
        for child in token.children or ():
            if child.nesting == 1:
                links.append(str(child.attrGet("href") or ""))
                styles.append(self._style(child))
            elif child.nesting == -1 and styles:
                styles.pop()
                self._link_target(text, links.pop())
            else:
                self._word(text, child, Style.combine(styles) if styles else Style.null())
        return text

    def _style(self, child: Token) -> Style:
        if child.type == "link_open":
            link = link_of(str(child.attrGet("href") or ""))
            return Style(color=self._palette.accent, underline=True, link=link or None)
        return {
            "strong_open": Style(bold=True),
            "em_open": Style(italic=True),
            "s_open": Style(strike=True),
        }.get(child.type, Style.null())

    def _word(self, text: Text, child: Token, style: Style) -> None:
        palette = self._palette
        match child.type:
            case "code_inline":
                text.append(child.content, style + palette.style("code_name", bg="raised"))
            case "softbreak":
                text.append(" ")
            case "hardbreak":
                text.append("\n")
            case "image":
                text.append(f"[image: {child.content}]", style + palette.style("dim"))
                self._link_target(text, str(child.attrGet("src") or ""))
            case _:
                self._words(text, child.content, style)

    def _words(self, text: Text, words: str, style: Style) -> None:
        """Plain words; an address among them is a link, too."""
        at = 0
        for start, end in urls(words) if "://" in words and not style.link else ():
            text.append(words[at:start], style)
            text.append(words[start:end], style + Style(link=words[start:end]))
            at = end
        text.append(words[at:], style)

    def _link_target(self, text: Text, target: str) -> None:
        """Where a link leads is always said: its words alone could promise something else."""
        if target and target not in text.plain:
            style = self._palette.style("dim")
            text.append(" (", style)
            text.append(target, style + Style(link=link_of(target) or None))
            text.append(")", style)


def wrap_code(line: Text, width: int) -> list[Row]:
    """Code is broken anywhere: words keep no meaning there, columns do. A row has room for one letter at
    least, also where the window has none.
    """
    width = max(width, 2)
    if line.cell_len <= width:
        return [segments(line)]
    rows: list[Row] = []
    row: Row = []
    room = width
    for part in segments(line):
        at = 0
        while at < len(part.text):
            end, used = _fitting(part.text, at, room)
            if end > at:
                row.append(Segment(part.text[at:end], part.style))
            at, room = end, room - used
            if at < len(part.text):
                rows.append(row)
                row, room = [], width
    rows.append(row)
    return rows


def _fitting(text: str, start: int, room: int) -> tuple[int, int]:
    """How far the letters from `start` on fit, and what room they take. Rich would cut one of two cells
    through, and show none.
    """
    if text.isascii():
        end = min(start + room, len(text))
        return end, end - start
    used = 0
    for at in range(start, len(text)):
        size = get_character_cell_size(text[at])
        if used + size > room:
            return at, used
        used += size
    return len(text), used


def table_rows(cells: list[list[Text]], num_head: int, width: int, palette: Palette) -> list[Row]:
    """Columns as wide as they need, narrowed together where the screen is too narrow."""
    num = max((len(row) for row in cells), default=0)
    if not num:
        return []
    wants = [max((row[at].cell_len for row in cells if at < len(row)), default=1) for at in range(num)]
    room = max(width - 3 * (num - 1), num * 3)
    widths = list(wants)
    while sum(widths) > room:
        widest = max(range(num), key=widths.__getitem__)
        if widths[widest] <= 3:
            break
        widths[widest] -= max(1, min(widths[widest] - 3, (sum(widths) - room) // 2))
    line = palette.style("line")
    rows: list[Row] = []
    for number, row in enumerate(cells):
        columns = [wrap(row[at], widths[at]) if at < len(row) else [[]] for at in range(num)]
        for height in range(max(map(len, columns))):
            out: Row = []
            for at, column in enumerate(columns):
                part = column[height] if height < len(column) else []
                used = sum(segment.cell_length for segment in part)
                out += [*part, Segment(" " * (widths[at] - used))]
                if at < num - 1:
                    out.append(Segment(" │ ", line))
            rows.append(out)
        if number == num_head - 1:
            rows.append([Segment("─┼─".join("─" * size for size in widths), line)])
    return rows

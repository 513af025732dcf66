"""The conversation as one widget over any number of blocks.

Only blocks in view are laid out; the others have a height that was measured before, or an estimate that is
corrected, without a jump, before they are seen. So 5,000 messages cost what one screen costs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Self

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Block

# Blocks whose lines are kept; those of others are made again when they come into view.
MAX_KEPT = 64
MARGIN = 2
MAX_COPIED_ROWS = 100_000


class Transcript(ScrollView, can_focus=True):
    """Shows `blocks`. It follows its end until the reader scrolls away, and again once they come back."""

    DEFAULT_CSS = """
    Transcript { height: 1fr; overflow-y: scroll; overflow-x: hidden; scrollbar-size-vertical: 1; }
    """

    class Moved(Message):
        """The view follows its end, or does not any more."""

        def __init__(self, is_at_end: bool) -> None:
            super().__init__()
            self.is_at_end = is_at_end

    def __init__(self, palette: Palette, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.blocks: list[Block] = []
        self.palette = palette
        self.follows = True
        self.query_text = ""
        self._matches: list[int] = []
        self._matched: tuple[str, int] = ("", 0)
        self.cursor: int | None = None
        self._heights: list[int] = []
        self._measured: list[bool] = []
        self._tops: list[int] = [0]
        self._first_wrong = 0
        #: the first block whose lines on the screen are not those it has now
        self._first_stale: int | None = 0
        self._kept: OrderedDict[int, Block] = OrderedDict()
        self._is_settling = False
        self._width = 0
        #: the lines that were drawn last, and of which part
        self._drawn: tuple[tuple[Region, Offset, int], list[Strip]] | None = None
        #: keys that come before those of scrolling; the actions are the screen's
        self.first: dict[str, str] = {}

    async def _on_key(self, event: events.Key) -> None:
        action = self.first.get(event.key)
        if action is None:
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()
        await self.run_action(action)

    # --- what the presenter does ---

    def load(self, blocks: Iterable[Block]) -> None:
        """Show these instead of what there is."""
        self.blocks = list(blocks)
        self._matched = ("", 0)
        self._kept.clear()
        self._forget_heights()
        self.follows = True
        self.cursor = None
        self.settle()

    def add(self, block: Block, at: int | None = None) -> None:
        at = len(self.blocks) if at is None else at
        self.blocks.insert(at, block)
        self._heights.insert(at, block.estimate(self._width))
        self._measured.insert(at, False)
        self._wrong_from(at)

    def drop(self, block: Block) -> None:
        if block not in self.blocks:
            return
        at = self._index(block)
        del self.blocks[at], self._heights[at], self._measured[at]
        self._kept.pop(id(block), None)
        self._wrong_from(at)

    def touch(self, block: Block) -> None:
        """`block` has changed: it is measured anew at the next `settle`."""
        at = self._index(block)
        if at >= 0:
            self._measured[at] = False
            self._stale_from(at)

    def _index(self, block: Block) -> int:
        # What changes is nearly always near the end.
        for at in range(len(self.blocks) - 1, -1, -1):
            if self.blocks[at] is block:
                return at
        return -1

    # --- heights ---

    def _forget_heights(self) -> None:
        self._heights = [block.estimate(self._width) for block in self.blocks]
        self._measured = [False] * len(self.blocks)
        self._wrong_from(0)

    def _wrong_from(self, at: int) -> None:
        self._first_wrong = min(self._first_wrong, at)
        self._stale_from(at)

    def _stale_from(self, at: int) -> None:
        self._first_stale = at if self._first_stale is None else min(self._first_stale, at)

    def _sum(self) -> list[int]:
        """`_tops[i]` is the first row of block i; the last entry is the number of rows."""
        at = self._first_wrong
        if at < len(self.blocks) or len(self._tops) != len(self.blocks) + 1:
            del self._tops[at + 1 :]
            self._tops += list(accumulate(self._heights[at:], initial=self._tops[at]))[1:]
        self._first_wrong = len(self.blocks)
        return self._tops

    def _lines(self, at: int) -> list[Strip]:
        block = self.blocks[at]
        lines = block.lines(self._width, self.palette)
        self._kept[id(block)] = block
        self._kept.move_to_end(id(block))
        return lines

    def _measure(self, at: int) -> int:
        """Lay block `at` out if need be; by how many rows its height was wrong."""
        if self._measured[at]:
            return 0
        height = len(self._lines(at))
        self._measured[at] = True
        delta = height - self._heights[at]
        if delta:
            self._heights[at] = height
            self._wrong_from(at)
        return delta

    def settle(self) -> None:
        """Measure what is in view, set the scroll bar, follow the end. Called after each batch of changes and
        after scrolling; cheap when there is nothing to do.
        """
        view = self.scrollable_content_region.size
        if self._is_settling or not view.width or not view.height:
            return
        self._is_settling = True
        try:
            if view.width != self._width:
                self._width = view.width
                self._keep_place(self._forget_heights)
            if self.follows:
                self._settle_at_end(view.height)
            else:
                self._settle_in_middle(view.height)
            self._drop_lines()
        finally:
            self._is_settling = False
        self._repaint(view)

    def _repaint(self, view: Size) -> None:
        """Draw what has changed; a change of place draws everything by itself."""
        stale, self._first_stale = self._first_stale, None
        if stale is None:
            return
        top = self._sum()[min(stale, len(self.blocks))] - self.scroll_offset.y
        if top < view.height:
            self.refresh(Region(0, max(top, 0), self.size.width, view.height - max(top, 0)))

    def _keep_place(self, change: object) -> None:
        """Heights change everywhere: stay at the same block."""
        tops = self._sum()
        at = max(0, bisect_right(tops, self.scroll_offset.y) - 1)
        change()  # type: ignore[operator]  # a bound method
        if not self.follows and at < len(self.blocks):
            self._set_rows(self._sum()[at])

    def _settle_at_end(self, height: int) -> None:
        seen = 0
        for at in range(len(self.blocks) - 1, -1, -1):
            self._measure(at)
            seen += self._heights[at]
            if seen >= height + MARGIN:
                break
        self._set_rows(self._sum()[-1])

    def _settle_in_middle(self, height: int) -> None:
        """What is at the top of the view stays there, whatever the blocks above it turn out to be."""
        y = self.scroll_offset.y
        tops = self._sum()
        first = max(0, bisect_right(tops, y) - 1)
        moved = 0
        inside = y - tops[first] if first < len(self.blocks) else 0
        at, above = first - 1, 0
        while at >= 0 and above < height:
            moved += self._measure(at)
            above += self._heights[at]
            at -= 1
        if first < len(self.blocks):
            delta = self._measure(first)
            # Scrolled up into a block that was never seen: its end is what should be in view.
            moved += delta if inside else 0
        below, at = 0, first
        while at < len(self.blocks) and below < height + inside + MARGIN:
            self._measure(at)
            below += self._heights[at]
            at += 1
        self._set_rows(y + moved)

    def _set_rows(self, y: int) -> None:
        """The scroll bar's size, and the first row in view."""
        size = Size(self._width, self._sum()[-1])
        if size != self.virtual_size:
            # Not through the reactive: that would lay out the whole screen for each new line.
            self.set_reactive(Widget.virtual_size, size)  # type: ignore[arg-type]  # Textual's own idiom
            self._scroll_update(size)
        self.scroll_to(y=y, animate=False)

    def _drop_lines(self) -> None:
        while len(self._kept) > MAX_KEPT:
            _, block = self._kept.popitem(last=False)
            block.forget()

    # --- Textual's side ---

    def on_resize(self, event: events.Resize) -> None:
        self.settle()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._is_settling or round(old_value) == round(new_value):
            return
        is_at_end = round(new_value) >= self.max_scroll_y
        if is_at_end != self.follows:
            self.follows = is_at_end
            self.post_message(self.Moved(is_at_end))
        self.settle()

    def set_palette(self, palette: Palette) -> None:
        self.palette = palette
        self.settle()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        if self._width != self.scrollable_content_region.width:
            # Drawn before the event of the new size has come.
            self.settle()
        row = y + self.scroll_offset.y
        tops = self._sum()
        width = self._width
        base = self.palette.style("text", bg="background")
        if not 0 <= row < tops[-1]:
            return Strip.blank(width, base)
        at = bisect_right(tops, row) - 1
        lines = self._lines(at)
        inside = row - tops[at]
        strip = lines[inside] if inside < len(lines) else Strip.blank(width, base)
        if any(part.control for part in strip):
            # A row of a picture: what follows would take its sequence for text.
            return strip
        if self.query_text:
            strip = _marked(strip, self.query_text, self.palette)
        if at == self.cursor and self.has_focus:
            mark = Strip([Segment("▌", self.palette.style("accent", bg="background"))], 1)
            strip = Strip.join([mark, strip.crop(1)])
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(row)) is not None:
            strip = self._selected(strip, *span)
        return strip.apply_offsets(0, row)

    def refresh(self, *regions: Region, **what: bool) -> Self:
        self._drawn = None
        return super().refresh(*regions, **what)

    def notify_style_update(self) -> None:
        self._drawn = None
        super().notify_style_update()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Without Textual's cache of styled lines: no border, no padding, and blocks keep their lines. All
        are asked for with each key that is typed elsewhere: then they are those of the last time.
        """
        key = (crop, self.scroll_offset, self._width)
        if self._drawn is None or self._drawn[0] != key:
            strips = self._draw(crop)
            self._drawn = ((crop, self.scroll_offset, self._width), strips)
        return self._drawn[1]

    def _draw(self, crop: Region) -> list[Strip]:
        _, background = self.background_colors
        filters = self.get_line_filters()
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in filters:
            strips = [strip.apply_filter(line_filter, background) for strip in strips]
        if crop.column_span != (0, self._width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def _selected(self, strip: Strip, start: int, end: int) -> Strip:
        style = self.screen.get_component_rich_style("screen--selection")
        end = len(strip.text) if end == -1 else end
        before, inside, after = strip.divide(
            [_cells(strip.text, start), _cells(strip.text, end), strip.cell_length]
        )
        return Strip.join([before, Strip(Segment.apply_style(inside, post_style=style)), after])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = self._sum()[-1]
        first = selection.start.y if selection.start is not None else 0
        last = selection.end.y if selection.end is not None else rows - 1
        last = min(last, rows - 1, first + MAX_COPIED_ROWS)
        out: list[str] = []
        for row in range(first, last + 1):
            text = self._row_text(row)
            span = selection.get_span(row)
            if span is not None:
                start, end = span
                text = text[start : None if end == -1 else end]
            out.append(text.rstrip().removeprefix(" ") if not span or span[0] == 0 else text.rstrip())
        return "\n".join(out), "\n"

    def _row_text(self, row: int) -> str:
        tops = self._sum()
        at = bisect_right(tops, row) - 1
        lines = self._lines(at)
        inside = row - tops[at]
        strip = lines[inside] if inside < len(lines) else Strip([])
        return "".join(part.text for part in strip if not part.control)

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        if self.text_selection is not None:
            return
        at = bisect_right(self._sum(), event.y + self.scroll_offset.y) - 1
        if 0 <= at < len(self.blocks):
            self.fold(at)

    # --- moving about ---

    def fold(self, at: int) -> None:
        """Fold or unfold block `at`; its first line stays where it is."""
        block = self.blocks[at]
        if not block.toggle():
            return
        self.follows = self.follows and at == len(self.blocks) - 1 and not block.is_open
        self.touch(block)
        self._measure(at)
        self.settle()

    def show_block(self, at: int) -> None:
        """Scroll so that block `at` is at the top of the view."""
        self.follows = False
        self.post_message(self.Moved(False))
        view = self.scrollable_content_region.height
        for near in range(at, min(at + view, len(self.blocks))):
            self._measure(near)
        self._is_settling = True
        try:
            self._set_rows(self._sum()[at])
        finally:
            self._is_settling = False
        self.settle()

    def to_end(self) -> None:
        self.follows = True
        self.post_message(self.Moved(True))
        self.settle()

    def next_turn(self, step: int) -> bool:
        """To the next prompt (`step` 1) or the one before (-1); False when there is none."""
        row = self.scroll_offset.y
        first = max(0, bisect_right(self._sum(), row) - 1)
        at = first + step if step > 0 or self._sum()[first] == row else first
        while 0 <= at < len(self.blocks):
            if self.blocks[at].is_turn:
                self.show_block(at)
                return True
            at += step
        return False

    def search(self, text: str, step: int, start: int | None = None) -> int | None:
        """The next block (`step` 1 or -1) that holds `text`, letter case aside; it is scrolled to."""
        self.query_text = text
        begin = self.cursor if start is None else start
        begin = len(self.blocks) if begin is None else begin
        found = self.matches(text)
        if not found:
            self.refresh()
            return None
        # Past either end it goes on from the other.
        after = bisect_right(found, begin) if step > 0 else bisect_left(found, begin) - 1
        self.cursor = found[after % len(found)]
        self.show_block(self.cursor)
        return self.cursor

    def matches(self, text: str) -> list[int]:
        """The blocks that hold `text`; looked for once, as long as none is added."""
        key = (text, len(self.blocks))
        if key != self._matched:
            wanted = text.casefold()
            self._matches = [at for at, block in enumerate(self.blocks) if wanted in block.plain.casefold()]
            self._matched = key
        return self._matches

    def move_cursor(self, step: int) -> None:
        """Choose the block above or below; it comes into view."""
        if not self.blocks:
            return
        if self.cursor is None or not 0 <= self.cursor < len(self.blocks):
            tops = self._sum()
            last = self.scroll_offset.y + self.scrollable_content_region.height - 1
            self.cursor = min(max(0, bisect_right(tops, last) - 1), len(self.blocks) - 1)
        else:
            self.cursor = min(max(self.cursor + step, 0), len(self.blocks) - 1)
        self._measure(self.cursor)
        tops = self._sum()
        region = Region(0, tops[self.cursor], 1, self._heights[self.cursor])
        view = self.scrollable_content_region.height
        y = self.scroll_offset.y
        if region.y < y:
            self.scroll_to(y=region.y, animate=False)
        elif region.bottom > y + view:
            self.scroll_to(y=min(region.bottom - view, region.y), animate=False)
        self.refresh()

    @property
    def num_rows(self) -> int:
        return self._sum()[-1]

    def block_of(self, kind: type[Block]) -> Block | None:
        """The newest block of a kind."""
        return next((block for block in reversed(self.blocks) if isinstance(block, kind)), None)

    def chosen(self) -> Sequence[Block]:
        return (
            [self.blocks[self.cursor]] if self.cursor is not None and self.cursor < len(self.blocks) else []
        )


def _cells(text: str, at: int) -> int:
    """Cells before character `at`."""
    from rich.cells import cell_len

    return cell_len(text[:at])


def _marked(strip: Strip, query: str, palette: Palette) -> Strip:
    """`strip` with each place that holds `query` in reverse."""
    text = strip.text
    low, wanted = text.casefold(), query.casefold()
    if not wanted or wanted not in low or len(low) != len(text):
        return strip
    cuts: list[int] = []
    at = low.find(wanted)
    while at >= 0:
        cuts += [_cells(text, at), _cells(text, at + len(wanted))]
        at = low.find(wanted, at + len(wanted))
    style = Style(color=palette.background, bgcolor=palette.warn)
    pieces = strip.divide([*cuts, strip.cell_length])
    return Strip.join(
        Strip(Segment.apply_style(piece, post_style=style)) if number % 2 else piece
        for number, piece in enumerate(pieces)
    )

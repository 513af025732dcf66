"""The model's steps, above the prompt while there are some that are not done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.segment import Segment
from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget

from k3agent.tui.safe import safe_line
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Row, strip_of

MARKS = {"pending": ("☐", "dim", "dim"), "active": ("▶", "accent", "text"), "done": ("☑", "good", "faint")}
MAX_ROWS = 8


class TodoPanel(Widget):
    """Shows `items` ({text, status}); the part around the active one where not all fit."""

    DEFAULT_CSS = """
    TodoPanel {
        height: auto; max-height: 10; margin: 1 0 0 0; display: none; padding: 0 2;
        &.shown { display: block; }
    }
    """

    def __init__(self, palette: Palette) -> None:
        super().__init__(id="todos")
        self.palette = palette
        self.items: Sequence[Mapping[str, Any]] = ()
        self.is_wanted = True

    def set_items(self, items: Sequence[Mapping[str, Any]]) -> None:
        self.items = items
        self.update_shown()

    def update_shown(self) -> None:
        is_open = any(item.get("status") != "done" for item in self.items)
        self.set_class(self.is_wanted and is_open, "shown")
        self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(len(self.items), MAX_ROWS) + 1

    def render_line(self, y: int) -> Strip:
        palette, width = self.palette, self.size.width
        base = palette.style("dim", bg="background")
        if y == 0:
            done = sum(item.get("status") == "done" for item in self.items)
            head = f"Steps: {done} of {len(self.items)} done (Ctrl+T hides)"
            return strip_of([Segment(head, palette.style("faint"))], width, base)
        active = next((at for at, item in enumerate(self.items) if item.get("status") != "done"), 0)
        first = max(0, min(active - 2, len(self.items) - MAX_ROWS))
        at = first + y - 1
        if at >= len(self.items):
            return strip_of([], width, base)
        item = self.items[at]
        mark, color, words = MARKS.get(str(item.get("status")), MARKS["pending"])
        text = Text(safe_line(str(item.get("text", ""))))
        text.truncate(max(width - 2, 1), overflow="ellipsis")
        row: Row = [Segment(f"{mark} ", palette.style(color)), Segment(text.plain, palette.style(words))]
        return strip_of(row, width, base)

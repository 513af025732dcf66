"""The list above the prompt: files for `@`, commands for `/`."""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from k3agent.tui.safe import safe, safe_line
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import segments, strip_of

MAX_ROWS = 8


@dataclass(frozen=True)
class Candidate:
    """`value` is what is put into the prompt; `hits` are places in `shown` that the word matched."""

    value: str
    shown: str
    help: str = ""
    hits: tuple[int, ...] = ()


class CompletionList(Widget):
    """Not focusable: the prompt sends it its keys."""

    DEFAULT_CSS = """
    CompletionList {
        height: auto; max-height: 9; display: none; background: $panel; padding: 0 1; margin: 0 1;
        &.shown { display: block; }
    }
    """

    class Chosen(Message):
        """A candidate was clicked."""

        def __init__(self, candidate: Candidate) -> None:
            super().__init__()
            self.candidate = candidate

    def __init__(self, palette: Palette) -> None:
        super().__init__(id="completion")
        self.palette = palette
        self.candidates: list[Candidate] = []
        #: whether the user has gone to the current one, which is else only the first
        self.is_picked = False
        self._at = 0
        self._first = 0

    @property
    def is_shown(self) -> bool:
        return self.has_class("shown")

    @property
    def current(self) -> Candidate | None:
        return self.candidates[self._at] if self.candidates else None

    def offer(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self.is_picked = False
        self._at = self._first = 0
        self.set_class(bool(candidates), "shown")
        self.refresh(layout=True)

    def close(self) -> None:
        self.offer([])

    def move(self, step: int) -> None:
        self.is_picked = True
        self._at = (self._at + step) % max(len(self.candidates), 1)
        if self._at < self._first:
            self._first = self._at
        elif self._at >= self._first + MAX_ROWS:
            self._first = self._at - MAX_ROWS + 1
        self.refresh()

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(len(self.candidates), MAX_ROWS) + 1

    def render_line(self, y: int) -> Strip:
        palette, width = self.palette, self.size.width
        at = self._first + y
        shown = min(len(self.candidates), MAX_ROWS)
        if y >= shown:
            note = (
                f"{self._at + 1} of {len(self.candidates)} · Up and Down choose · Tab takes it · Esc closes"
            )
            return strip_of([Segment(note, palette.style("faint"))], width, palette.style("dim", bg="raised"))
        candidate = self.candidates[at]
        is_current = at == self._at
        base = palette.style("background", bg="accent") if is_current else palette.style("text", bg="raised")
        text = Text(safe(candidate.shown).replace("\n", "␤"), no_wrap=True)
        if not is_current:
            for hit in candidate.hits:
                text.stylize(palette.style("accent", bold=True), hit, hit + 1)
        if candidate.help:
            text.append(f"  {safe_line(candidate.help)}", base if is_current else palette.style("dim"))
        text.truncate(width, overflow="ellipsis")
        return strip_of(segments(text), width, base)

    def on_click(self, event: events.Click) -> None:
        at = self._first + event.y
        if at < len(self.candidates):
            self.post_message(self.Chosen(self.candidates[at]))

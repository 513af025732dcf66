"""Search in the conversation: finds while one types, Enter for the next, Esc leaves the place found."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Input

from k3agent.tui.widgets.transcript import Transcript

# Up to so many blocks each letter searches; beyond, a pause in typing does.
AT_ONCE = 500
PAUSE_S = 0.15


class SearchScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close", priority=True),
        Binding("down,ctrl+n", "next(1)", "next", priority=True),
        Binding("up,ctrl+p", "next(-1)", "previous", priority=True),
    ]
    DEFAULT_CSS = """
    SearchScreen { align: left bottom; background: transparent; }
    SearchScreen Input, SearchScreen Input:focus { border: round $warning; background: $background; }
    """

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript
        self._waiting: Timer | None = None

    def compose(self) -> ComposeResult:
        self.input = Input(self._transcript.query_text, placeholder="search in the conversation")
        self.input.cursor_blink = False
        yield self.input

    def on_mount(self) -> None:
        self.input.border_subtitle = "Enter, Up: older · Down: newer · Esc"
        self.input.focus()

    @on(Input.Changed)
    def _changed(self) -> None:
        """In a long conversation not with each letter of a word."""
        if self._waiting is not None:
            self._waiting.stop()
        is_long = len(self._transcript.blocks) > AT_ONCE
        self._waiting = self.set_timer(PAUSE_S, self._search) if is_long else None
        if not is_long:
            self._search()

    def _search(self) -> None:
        self._waiting = None
        text = self.input.value
        transcript = self._transcript
        if len(text) < 2:
            transcript.query_text = ""
            transcript.refresh()
            self.input.border_title = ""
            return
        found = transcript.search(text, -1, len(transcript.blocks))
        count = len(transcript.matches(text))
        self.input.border_title = (
            "not found" if found is None else f"in {count} place{'s' if count > 1 else ''}"
        )

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.action_next(-1)

    def action_next(self, step: int) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._search()
            return
        if len(self.input.value) > 1:
            self._transcript.search(self.input.value, step)

    def action_leave(self) -> None:
        self.dismiss(None)

"""Search in the conversation: finds while one types, Enter for the next, Esc leaves the place found."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from k3agent.tui.widgets.transcript import Transcript


class SearchScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close", priority=True),
        Binding("down,ctrl+n", "next(1)", "next", priority=True),
        Binding("up,ctrl+p", "next(-1)", "previous", priority=True),
    ]
    DEFAULT_CSS = """
    SearchScreen { align: left bottom; background: transparent; }
    SearchScreen Input { border: round $warning; background: $background; }
    """

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript

    def compose(self) -> ComposeResult:
        self.input = Input(self._transcript.query_text, placeholder="search in the conversation")
        self.input.cursor_blink = False
        yield self.input

    def on_mount(self) -> None:
        self.input.border_subtitle = "Enter and Up: next older · Down: next newer · Esc: done"
        self.input.focus()

    @on(Input.Changed)
    def _changed(self) -> None:
        text = self.input.value
        transcript = self._transcript
        if len(text) < 2:
            transcript.query_text = ""
            transcript.refresh()
            self.input.border_title = ""
            return
        found = transcript.search(text, -1, len(transcript.blocks))
        count = transcript.count(text)
        self.input.border_title = (
            "not found" if found is None else f"in {count} place{'s' if count > 1 else ''}"
        )

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.action_next(-1)

    def action_next(self, step: int) -> None:
        if len(self.input.value) > 1:
            self._transcript.search(self.input.value, step)

    def action_leave(self) -> None:
        self.dismiss(None)

"""Edit a call before it runs: the command alone where there is one, else all arguments as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

if TYPE_CHECKING:
    from k3agent.tui.widgets.approval import Request


class EditCallScreen(ModalScreen[str | None]):
    """Gives the new arguments as JSON, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "run", "run", priority=True),
        Binding("escape", "cancel", "cancel", priority=True),
    ]

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._value = request.value
        command = self._value.get("command")
        self._is_command = isinstance(command, str)
        self._text = (
            str(command) if self._is_command else json.dumps(self._value, indent=2, ensure_ascii=False)
        )

    def compose(self) -> ComposeResult:
        what = "command" if self._is_command else "arguments (JSON)"
        with Vertical(classes="dialog"):
            yield Static(f"Edit the {what}. Ctrl+S runs it, Esc goes back.", markup=False)
            self.editor = TextArea(self._text, soft_wrap=True, id="edit-call")
            self.editor.cursor_blink = False
            yield self.editor
            self.problem = Static("", markup=False)
            yield self.problem

    def on_mount(self) -> None:
        self.editor.focus()

    def action_run(self) -> None:
        text = self.editor.text
        if self._is_command:
            self.dismiss(json.dumps({**self._value, "command": text}, ensure_ascii=False))
            return
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.problem.update(f"This is no JSON: {error}")
            return
        if not isinstance(value, dict):
            self.problem.update("The arguments must be an object: { … }")
            return
        self.dismiss(json.dumps(value, ensure_ascii=False))

    def action_cancel(self) -> None:
        self.dismiss(None)

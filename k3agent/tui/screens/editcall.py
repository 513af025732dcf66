"""Edit a call before it runs: its main text (a command, a file's new text) or all arguments as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

from k3agent.tui.safe import safe_line

if TYPE_CHECKING:
    from k3agent.tui.widgets.approval import Request


# What is edited as plain text, the first that the call has, and its name on the screen.
PLAIN = {"command": "command", "content": "new file", "new": "new text", "patch": "patch"}


class EditCallScreen(ModalScreen[str | None]):
    """Gives the new arguments as JSON, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "run", "run", priority=True),
        Binding("escape", "cancel", "cancel", priority=True),
    ]

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._value = request.value
        self._field = next((name for name in PLAIN if isinstance(self._value.get(name), str)), "")
        self._text = (
            str(self._value[self._field])
            if self._field
            else json.dumps(self._value, indent=2, ensure_ascii=False)
        )

    def compose(self) -> ComposeResult:
        what = PLAIN.get(self._field, "arguments (JSON)")
        with Vertical(classes="dialog"):
            path = self._value.get("path")
            of = f" of {safe_line(path)}" if self._field and isinstance(path, str) else ""
            yield Static(f"Edit the {what}{of}. Ctrl+S runs it, Esc goes back.", markup=False)
            self.editor = TextArea(self._text, soft_wrap=True, id="edit-call")
            self.editor.cursor_blink = False
            yield self.editor
            self.problem = Static("", markup=False)
            yield self.problem

    def on_mount(self) -> None:
        self.editor.focus()

    def action_run(self) -> None:
        text = self.editor.text
        if self._field:
            self.dismiss(json.dumps({**self._value, self._field: text}, ensure_ascii=False))
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

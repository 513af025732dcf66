"""Choose the prompt from before which the conversation shall go on, and whether its files come along."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from k3agent.agent.undo import Preview, described
from k3agent.tui.safe import safe_line
from k3agent.tui.screens.dialog import ListScreen
from k3agent.tui.widgets.message import UserBlock

# An Esc so soon after the two that opened it was struck before anybody saw it.
ONE_TOO_MANY_S = 0.5


class RewindScreen(ListScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "close")]
    heading = "Rewind: back to before which prompt?"
    hint = "Enter goes back; the prompt can then be changed · Esc closes"

    def __init__(self, prompts: Sequence[UserBlock]) -> None:
        super().__init__()
        self._prompts = {block.message_id: block for block in reversed(prompts)}
        self._opened_at = time.monotonic()

    def action_close(self) -> None:
        if time.monotonic() - self._opened_at > ONE_TOO_MANY_S:
            self.dismiss(None)

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        low = words.casefold()
        return [
            (entry, Text(safe_line(block.text, 200), no_wrap=True))
            for entry, block in self._prompts.items()
            if low in block.text.casefold()
        ]

    def describe(self, entry: str) -> str:
        return self._prompts[entry].text

    def take(self, entry: str) -> None:
        block = self._prompts[entry]
        self.dismiss(lambda chat: chat.ask_rewind(block))


class RewindWhatScreen(ListScreen):
    """Files have been changed since that prompt: what shall go back?"""

    heading = "Rewind: what shall go back?"
    hint = "Enter does it · an undo of files can be undone: k3agent undo --list · Esc closes"
    CHOICES: ClassVar[dict[str, str]] = {
        "both": "conversation and files",
        "conversation": "conversation; files stay as they are",
        "files": "files; the conversation goes on, and the model is told",
    }

    def __init__(self, block: UserBlock, preview: Preview) -> None:
        super().__init__()
        self._block, self._preview = block, preview

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        low = words.casefold()
        return [(name, Text(text)) for name, text in self.CHOICES.items() if low in text]

    def describe(self, entry: str) -> str:
        if entry == "conversation":
            return self._block.text
        return "\n".join(described(self._preview))

    def take(self, entry: str) -> None:
        block, preview = self._block, self._preview
        if entry == "conversation":
            self.dismiss(lambda chat: chat.rewind_to(block))
        else:
            self.dismiss(lambda chat: chat.rewind_files(block, preview, with_talk=entry == "both"))

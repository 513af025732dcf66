"""Choose the prompt from before which the conversation shall go on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from k3agent.tui.safe import safe_line
from k3agent.tui.screens.dialog import ListScreen
from k3agent.tui.widgets.message import UserBlock


class RewindScreen(ListScreen):
    heading = "Rewind: back to before which prompt?"
    hint = "Enter goes back; the prompt can then be changed · files stay as they are · Esc closes"

    def __init__(self, prompts: Sequence[UserBlock]) -> None:
        super().__init__()
        self._prompts = {block.message_id: block for block in reversed(prompts)}

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
        self.dismiss(lambda chat: chat.rewind_to(block))

"""One of several pieces to copy: the code blocks or the links of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from k3agent.tui.safe import safe_line
from k3agent.tui.screens.dialog import ListScreen

if TYPE_CHECKING:
    from k3agent.tui.screens.chatkeys import ChatKeys


class CopyScreen(ListScreen):
    """`what` is what one of `pieces` is called."""

    hint = "Enter copies it · Esc closes"
    DEFAULT_CSS = "CopyScreen .preview { height: 60%; }"

    def __init__(self, pieces: Sequence[str], what: str) -> None:
        super().__init__()
        self.heading = f"Copy a {what}"
        self._pieces = pieces
        self._what = what

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        palette = self.app.palette
        found: list[tuple[str, Text]] = []
        for number, piece in enumerate(self._pieces):
            if words.casefold() in piece.casefold():
                lines = piece.rstrip("\n").split("\n")
                text = Text(safe_line(next(filter(str.strip, lines), "")), palette.style("text"))
                text.no_wrap, text.overflow = True, "ellipsis"
                if len(lines) > 1:
                    text.append(f"  {len(lines):,} lines", palette.style("faint"))
                found.append((str(number), text))
        return found

    def describe(self, entry: str) -> str:
        return self._pieces[int(entry)]

    def take(self, entry: str) -> None:
        piece = self._pieces[int(entry)]

        def copy(chat: ChatKeys) -> None:
            chat.copy(piece, f"the {self._what}")

        self.dismiss(copy)

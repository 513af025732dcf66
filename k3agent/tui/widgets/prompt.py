"""The prompt: several lines, history, large pastes folded into a token, completion asked of its owner."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea

from k3agent.tui.prompts import PromptHistory
from k3agent.tui.safe import safe

# From here on a paste is shown as a token.
FOLD_LINES = 12
FOLD_CHARS = 1_500
MAX_ROWS = 12
_TOKEN = re.compile(r"\[pasted #(\d+): [^\]]*\]")
_WORD = re.compile(r"(?:^|(?<=\s))(@[^\s]*|/[\w-]*)$")


@dataclass
class Pastes:
    """Texts behind tokens, by number."""

    texts: dict[int, str] = field(default_factory=dict)

    def fold(self, text: str) -> str:
        number = len(self.texts) + 1
        self.texts[number] = text
        lines = text.count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted #{number}: {size}]"

    def unfold(self, text: str) -> str:
        """`text` with each token that stands for a paste replaced by it."""
        return _TOKEN.sub(lambda hit: self.texts.get(int(hit[1]), hit[0]), text)


class Prompt(TextArea):
    """Posts `Submitted`. The text of pastes is put in place before it leaves."""

    DEFAULT_CSS = """
    Prompt {
        height: auto; min-height: 3; max-height: 14; border: round $k3-line; padding: 0 1;
        background: $background; scrollbar-size-vertical: 1;
        &:focus { border: round $primary; }
        &.shell { border: round $warning; }
        & .text-area--cursor-line { background: $background; }
        & .text-area--placeholder { color: $k3-dim; }
    }
    """

    class Submitted(Message):
        """`is_steer`: into the running turn."""

        def __init__(self, text: str, *, is_steer: bool = False) -> None:
            super().__init__()
            self.text = text
            self.is_steer = is_steer

    class Completing(Message):
        """The word before the caret may be completed: `word` starts with @ or /, or is empty."""

        def __init__(self, word: str) -> None:
            super().__init__()
            self.word = word

    class EditorAsked(Message):
        """Ctrl-G."""

    class HelpAsked(Message):
        """`?` in an empty prompt."""

    def __init__(self, past: PromptHistory) -> None:
        super().__init__(id="prompt", soft_wrap=True, tab_behavior="focus", show_line_numbers=False)
        self.past = past
        self.pastes = Pastes()
        self.cursor_blink = False
        #: asked for each key first: the completion list's keys; True when it took the key
        self.key_filter: Callable[[str], bool] = lambda key: False
        #: then these, by key; their actions are the prompt's own or, with `screen.`, the screen's
        self.first: dict[str, str] = {}
        self._word = ""
        self._placeholders: Sequence[str] = ()

    def set_placeholder(self, texts: Sequence[str]) -> None:
        """What an empty prompt says: the first of `texts` that fits, the last where none does."""
        self._placeholders = texts
        # The caret takes a cell.
        room = self.content_size.width - 1
        fitting = (text for text in texts if len(text) <= room or room <= 0)
        self.placeholder = next(fitting, texts[-1] if texts else "")

    def on_resize(self) -> None:
        self.set_placeholder(self._placeholders)

    # --- keys ---

    def render_line(self, y: int) -> Strip:
        # In a window without room for it the base class would divide the placeholder by nothing.
        return super().render_line(y) if self.content_size.width > 0 else Strip.blank(0)

    async def _on_key(self, event: events.Key) -> None:
        if await self._takes(event):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    async def _takes(self, event: events.Key) -> bool:
        if self.key_filter(event.key):
            return True
        if event.character == "?" and not self.text:
            self.post_message(self.HelpAsked())
        elif event.key == "up" and self.cursor_at_first_line and self._may_browse():
            self.action_history(-1)
        elif event.key == "down" and self.cursor_at_last_line and self.past.is_browsing:
            self.action_history(1)
        elif (action := self.first.get(event.key)) is not None:
            await self.run_action(action)
        else:
            return False
        return True

    def _may_browse(self) -> bool:
        return not self.text or self.past.is_browsing

    def action_submit(self) -> None:
        if self.text.endswith("\\") and self.cursor_location == self.document.end:
            self.action_delete_left()
            self.insert("\n")
            return
        self._send(is_steer=False)

    def action_steer(self) -> None:
        self._send(is_steer=True)

    def _send(self, *, is_steer: bool) -> None:
        text = self.pastes.unfold(self.text)
        if not text.strip():
            return
        self.past.add(self.text if len(text) > 20_000 else text)
        self.clear_all()
        self.post_message(self.Submitted(text, is_steer=is_steer))

    def clear_all(self) -> None:
        self.text = ""
        self.pastes = Pastes()
        self.past.leave()

    def action_newline(self) -> None:
        self.insert("\n")

    def action_history(self, step: int) -> None:
        found = self.past.move(step, self.text)
        if found is not None:
            self.text = found
            self.move_cursor(self.document.end)

    def action_editor(self) -> None:
        self.post_message(self.EditorAsked())

    # --- pasting ---

    async def _on_paste(self, event: events.Paste) -> None:
        """Large pastes are folded; a paste of a few characters is an input method's and goes in as typing."""
        event.stop()
        event.prevent_default()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        if text.count("\n") + 1 > FOLD_LINES or len(text) > FOLD_CHARS:
            text = self.pastes.fold(text)
        else:
            text = safe(text)
        result = self._replace_via_keyboard(text, *self.selection)
        if result is not None:
            self.move_cursor(result.end_location)

    # --- completion ---

    def on_text_area_changed(self) -> None:
        self.set_class(self.text.startswith("!"), "shell")
        self.look_for_word()

    def current_word(self) -> str:
        """The word before the caret that may be completed; empty where there is none."""
        row, column = self.cursor_location
        line = self.document.get_line(row)[:column]
        hit = _WORD.search(line)
        word = hit[1] if hit is not None else ""
        if word.startswith("/") and (row or hit is None or hit.start(1)):
            word = ""
        return word

    def look_for_word(self) -> None:
        """Tell the owner which word could be completed, when it has changed."""
        word = self.current_word()
        if word != self._word:
            self._word = word
            self.post_message(self.Completing(word))

    def complete(self, replacement: str) -> None:
        """Put `replacement` in the place of the word before the caret."""
        row, column = self.cursor_location
        line = self.document.get_line(row)[:column]
        hit = _WORD.search(line)
        start = hit.start(1) if hit is not None else column
        self.replace(replacement, (row, start), (row, column))
        self.look_for_word()

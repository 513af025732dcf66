"""What the dialogs share: a frame, a title, a list with a filter above it, Esc to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from k3agent.tui.safe import safe, safe_line

if TYPE_CHECKING:
    from k3agent.tui.app import K3App

SAID_S = 6.0
Result = Callable[[Any], None] | None


class TextScreen(ModalScreen[Result]):
    """A text to read. `load` gives it, in a thread."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close"),
        Binding("up,k", "scroll(-1)", "up"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("pageup", "scroll(-20)", "page up", priority=True),
        Binding("pagedown,space", "scroll(20)", "page down", priority=True),
    ]
    app: K3App

    def __init__(
        self, title: str, load: Callable[[], Table | Text | str], *, classes: str = "dialog"
    ) -> None:
        super().__init__()
        self._heading = title
        self._load = load
        self._classes_of_body = classes

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes=self._classes_of_body) as self.body:
            self.content = Static("…", markup=False)
            yield self.content

    async def on_mount(self) -> None:
        self.body.border_title = self._heading
        self.body.border_subtitle = "Esc closes"
        self.run_worker(self._show())

    async def _show(self) -> None:
        found = await asyncio.to_thread(self._load)
        self.content.update(Text(safe(found)) if isinstance(found, str) else found)

    def action_scroll(self, rows: int) -> None:
        self.body.scroll_relative(y=rows, animate=False)


class ListScreen(ModalScreen[Result]):
    """A list with a filter above it and a preview beside or below it. Enter takes the chosen entry."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close"),
        Binding("down", "move(1)", "down", priority=True),
        Binding("up", "move(-1)", "up", priority=True),
        Binding("pagedown", "move(10)", "page down", priority=True),
        Binding("pageup", "move(-10)", "page up", priority=True),
        Binding("enter", "take", "take", priority=True),
    ]
    DEFAULT_CSS = """
    ListScreen .list { height: 1fr; border: none; background: $background; padding: 0; }
    ListScreen .preview { height: 40%; border-top: solid $k3-line; background: $background; }
    ListScreen Input, ListScreen Input:focus { background: $background; margin: 0 0 1 0; }
    ListScreen .intro { height: auto; margin: 0 0 1 0; }
    ListScreen .hint { height: auto; max-height: 3; color: $k3-dim; }
    """
    app: K3App
    heading = ""
    hint = "Enter takes it · Esc closes"
    empty = "nothing here"
    _saying: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as self.body:
            self.filter = Input(placeholder="type to filter", compact=True)
            self.filter.cursor_blink = False
            yield self.filter
            self.list = OptionList(classes="list")
            self.list.can_focus = False
            yield self.list
            with VerticalScroll(classes="preview") as self.preview_box:
                self.preview = Static("", markup=False)
                yield self.preview
            # Not in the frame: that would cut it on narrow screens.
            self.foot = Static(self.hint, markup=False, classes="hint")
            yield self.foot

    def say(self, text: str) -> None:
        """Below the list, for a while in the place of the keys."""
        self.foot.update(safe_line(text))
        if self._saying is not None:
            self._saying.stop()
        self._saying = self.set_timer(SAID_S, lambda: self.foot.update(self.hint))

    def on_mount(self) -> None:
        self.body.border_title = self.heading
        self.filter.focus()
        self.refill()

    # --- what a dialog says ---

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        """(id, line) for what fits the filter."""
        raise NotImplementedError

    def describe(self, entry: str) -> Text | str:
        """The preview."""
        return ""

    def take(self, entry: str) -> None:
        """Enter."""
        raise NotImplementedError

    # --- the list ---

    def refill(self, keep: str | None = None) -> None:
        entries = self.entries(self.filter.value.strip())
        self.list.clear_options()
        self.list.add_options([Option(line, id=entry) for entry, line in entries])
        self.preview_box.display = bool(entries)
        if not entries:
            words = safe_line(self.filter.value.strip(), 40)
            nothing = f"nothing fits “{words}”" if words else self.empty
            self.list.add_option(Option(Text(nothing), disabled=True))
            self.preview.update("")
            return
        names = [entry for entry, _ in entries]
        self.list.highlighted = names.index(keep) if keep in names else 0

    @property
    def chosen(self) -> str | None:
        at = self.list.highlighted
        return None if at is None else self.list.get_option_at_index(at).id

    @on(Input.Changed)
    def _filtered(self) -> None:
        self.refill(self.chosen)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        entry = self.chosen
        if entry is not None:
            found = self.describe(entry)
            self.preview.update(found if isinstance(found, Text) else Text(safe(found)))
            self.preview_box.scroll_home(animate=False)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        if event.option.id is not None:
            self.take(event.option.id)

    def action_move(self, step: int) -> None:
        count = self.list.option_count
        if count and self.list.highlighted is not None:
            self.list.highlighted = min(max(self.list.highlighted + step, 0), count - 1)

    def action_take(self) -> None:
        if self.chosen is not None:
            self.take(self.chosen)


class AskScreen(ModalScreen[str | None]):
    """One line of text, or a yes when `word` must be typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "cancel")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog small"):
            yield Static(Text(safe(self._question)), markup=False)
            # Not chosen as a whole: the first key would take all of it away.
            self.input = Input(self._value, compact=True, select_on_focus=False)
            self.input.cursor_blink = False
            yield self.input

    def on_mount(self) -> None:
        self.input.focus()

    @on(Input.Submitted)
    def _given(self) -> None:
        self.dismiss(self.input.value)

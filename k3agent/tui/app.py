"""The application: palettes, keys, the way in and the way out. Screens do the rest."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App
from textual.driver import Driver as TerminalDriver
from textual.screen import Screen

from k3agent.config.paths import user_config
from k3agent.config.settings import Settings
from k3agent.errors import K3AgentError
from k3agent.tui import graphics
from k3agent.tui.driver import Driver
from k3agent.tui.keymap import load_keymap
from k3agent.tui.nocolor import NoColor
from k3agent.tui.screens.chat import ChatScreen
from k3agent.tui.start import UiOptions
from k3agent.tui.theme import DEFAULT_THEME, PALETTES, Palette

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.binding import BindingType

    from k3agent.providers.base import ModelClient

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGHUP, signal.SIGTERM)


class K3App(App[int]):
    """`farewell` is printed after the screen is given back."""

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []
    TITLE = "k3agent"
    # Dialogs take the whole width of a narrow terminal.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012  # Textual's name, never changed

    def __init__(self, options: UiOptions, settings: Settings) -> None:
        # The mouse is used with the cells' coordinates; animation is switched off: it costs and distracts.
        # Textual takes the variable out of the process.
        self.has_no_color = bool(options.environ.get("NO_COLOR"))
        super().__init__(driver_class=_driver())
        self.options = options
        self.settings = settings
        self.farewell = ""
        self.last_key_at = 0.0
        self.has_terminal_focus = True
        self.animation_level = "none"
        self.own_keys: dict[str, str] = {}
        self.start_problem = ""
        #: set by the chat screen; outlives it
        self.driver: Driver | None = None
        self._has_title = False
        self._is_leaving = False
        self.make_client: Callable[[], ModelClient] | None = None
        if self.has_no_color:
            self._filters = [NoColor()]
        for palette in PALETTES.values():
            self.register_theme(palette.theme)
        self.theme = settings.ui_theme if settings.ui_theme in PALETTES else DEFAULT_THEME
        try:
            self.own_keys = load_keymap(self.keymap_path)
        except K3AgentError as error:
            self.start_problem = str(error)

    @property
    def keymap_path(self) -> Path:
        return user_config(self.options.environ).with_name("keys.toml")

    @property
    def palette(self) -> Palette:
        return PALETTES.get(self.theme, PALETTES[DEFAULT_THEME])

    @property
    def is_plain(self) -> bool:
        """For screen readers: no animation, no frames."""
        return self.settings.ui_screen_reader == "on"

    def get_default_screen(self) -> Screen[None]:
        return ChatScreen()

    def on_mount(self) -> None:
        if self.own_keys:
            self.set_keymap(self.own_keys)
        self.set_class(self.is_plain, "screen-reader")
        self.set_graphics()
        loop = asyncio.get_running_loop()
        if not self.is_headless:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    loop.add_signal_handler(number, self._signalled, number)
        driver = self._driver
        if hasattr(driver, "on_gone"):
            driver.on_gone = lambda: self._signalled(signal.SIGHUP)  # type: ignore[union-attr]  # it is ours
            driver.on_outdated = self._show_again  # type: ignore[union-attr]

    def _signalled(self, number: int) -> None:
        """A signal, or the end of the terminal, with which comes one."""
        if not self._is_leaving:
            self._is_leaving = True
            self.run_worker(self.leave(128 + number), exclusive=False)

    def _show_again(self) -> None:
        """What the terminal shows is not what was written."""
        graphics.TERMINAL.forget_all()
        self.chat.redraw_images()
        self.refresh(layout=True)

    @property
    def has_lost_terminal(self) -> bool:
        """Nobody sees what is printed; it may even wait for ever."""
        return bool(getattr(self._driver, "is_lost", False))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.Paste):
            self.last_key_at = time.monotonic()
        elif isinstance(event, events.AppFocus):
            self.has_terminal_focus = True
        elif isinstance(event, events.AppBlur):
            self.has_terminal_focus = False
        await super().on_event(event)

    @property
    def chat(self) -> ChatScreen:
        screen = self.screen_stack[0]
        assert isinstance(screen, ChatScreen)
        return screen

    def set_theme(self, name: str) -> None:
        """Change the colours everywhere."""
        self.theme = name
        self.chat.set_palette(self.palette)

    def set_graphics(self) -> None:
        """How pictures are drawn here."""
        graphics.TERMINAL = graphics.Graphics(
            "none"
            if self.has_no_color
            else graphics.by_environment(self.settings.ui_images, self.options.environ),
            write=self._write_graphics,
            on_change=lambda: self.chat.redraw_images(),
        )

    def _write_graphics(self, sequence: str) -> None:
        driver = self._driver
        if sequence == graphics.QUESTION and (ask := getattr(driver, "ask", None)) is not None:
            driver.on_answer = graphics.TERMINAL.answered  # type: ignore[union-attr]  # it is ours
            ask(sequence)
        elif sequence != graphics.QUESTION:
            self.write_terminal(sequence)

    def apply_settings(self) -> None:
        """Settings were changed in the UI."""
        self.set_graphics()
        self.chat.redraw_images()
        self.set_theme(self.settings.ui_theme)
        self.set_class(self.is_plain, "screen-reader")
        self.chat.line.is_plain = self.is_plain
        self.chat.presenter.draws_images = not self.is_plain

    def tell(self, text: str) -> None:
        """A turn has ended or asks: bell and desktop notification (OSC 9), if the user is elsewhere."""
        wanted = self.settings.ui_notify
        if wanted == "never" or (wanted == "auto" and self.has_terminal_focus):
            return
        self.bell()
        self.write_terminal(f"\x1b]9;{_plain(text)}\x07")

    def set_title(self, mark: str = "") -> None:
        """The terminal's title: `mark` says from afar what happens. The one before comes back at the end."""
        if not self._has_title:
            self._has_title = True
            self.write_terminal("\x1b[22;2t")
        self.write_terminal(f"\x1b]2;{_plain(f'{mark} k3agent {self.options.cwd.name}'.strip())}\x07")

    def write_terminal(self, sequence: str) -> None:
        driver = self._driver
        if driver is not None and not self.is_headless:
            driver.write(sequence)
            driver.flush()

    def _fatal_error(self) -> None:
        """A fault of ours: its place on the terminal, its story in the log. Textual's own report would print
        the values of variables, secrets among them.
        """
        error = self._exception
        assert error is not None
        log.error("the UI crashed", exc_info=error)
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        session = self.driver.session if self.driver is not None else None
        self.farewell = (
            f"k3agent's UI crashed: {type(error).__name__}: {_plain(str(error))}{place}."
            " The whole story is in the log: see k3agent config path."
        )
        if session is not None:
            self.farewell += f"\nThe session is safe: k3agent resume {session.id}"
        self._close_messages_no_wait()

    async def run_to_the_end(self) -> None:
        """Run, and close the session whatever ended the screen."""
        try:
            await self.run_async()
        finally:
            if self.driver is not None:
                await self.driver.close()

    async def leave(self, code: int = 0) -> None:
        """End the turn in good order, then the app."""
        await self.chat.shut_down()
        graphics.TERMINAL.forget_all()
        if self._has_title:
            self.write_terminal("\x1b[23;2t")
        self.exit(code, return_code=code)

    async def action_quit(self) -> None:
        await self.leave()


def _driver() -> type[TerminalDriver] | None:
    """Ours where Textual would take the one it derives from; elsewhere, and in tests, Textual's choice."""
    if sys.platform == "win32":
        return None
    from k3agent.tui.terminal import QuietDriver  # lazy: termios, not on every system

    return QuietDriver


def _plain(text: str) -> str:
    """Nothing that could end or extend a sequence of the terminal."""
    return "".join(char for char in text if char.isprintable())[:120]


def editor_of(environ: dict[str, str] | os._Environ[str]) -> str:
    return environ.get("VISUAL") or environ.get("EDITOR") or "vi"

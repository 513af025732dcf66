"""The terminal's driver. Textual's own wakes ten times a second to look for a lone Esc, also while nothing is
typed; this one sleeps until something comes, and looks again soon only when an escape sequence is unfinished.
Textual's own also waits for ever for a terminal that is gone; this one says so to the app.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from k3agent.tui.output import Output

READ_BYTES = 4096
# How soon an unfinished sequence is looked at again: Textual's own time.
PENDING_S = 0.1
# What wakes the reading thread: to look again soon, or to end.
LOOK, END = b"l", b"\0"
# So long answers are listened for; what comes later is typed.
LISTEN_S = 3.0
_ANSWER = re.compile(r"\x1b\[\?([\d;]+)c|\x1b\[6;(\d{1,4});(\d{1,4})t")
_BEGUN = re.compile(r"\x1b(?:\[(?:\?[\d;]*|6?[\d;]*)?)?\Z")


class Answers:
    """Takes what the terminal answers to questions of graphics.py out of what is typed; Textual's parser
    would take it for keys. Only for a while after a question.
    """

    def __init__(self) -> None:
        self.attributes: tuple[str, ...] = ()
        self.cell: tuple[int, int] | None = None
        self._until = 0.0
        self._held = ""

    def listen(self) -> None:
        self._until = time.monotonic() + LISTEN_S

    @property
    def is_listening(self) -> bool:
        return time.monotonic() < self._until

    def feed(self, text: str) -> str:
        """What of `text` is no answer. The beginning of one is held back until more comes."""
        if not self._held and not self.is_listening:
            return text
        text = _ANSWER.sub(self._take, self._held + text)
        begun = _BEGUN.search(text) if self.is_listening else None
        self._held = begun[0] if begun is not None else ""
        return text[: begun.start()] if begun is not None else text

    def release(self) -> str:
        """Nothing more came: what was held back is a key."""
        held, self._held = self._held, ""
        return held

    def _take(self, hit: re.Match[str]) -> str:
        if hit[1] is not None:
            self.attributes = tuple(hit[1].split(";"))
            self._until = 0.0
        else:
            self.cell = (int(hit[3]), int(hit[2]))
        return ""


class QuietDriver(LinuxDriver):
    """A pipe wakes the reading thread when it is to end."""

    _wake_write: int | None = None
    #: what the terminal says about its graphics, and who wants to know it
    answers: Answers | None = None
    on_answer: Callable[[tuple[str, ...], tuple[int, int] | None], None] | None = None
    #: called in the app's loop: the terminal is gone; what it shows is not what was written
    on_gone: Callable[[], None] = staticmethod(lambda: None)
    on_outdated: Callable[[], None] = staticmethod(lambda: None)
    _output: Output | None = None

    @property
    def is_lost(self) -> bool:
        """Nothing that is written to the terminal arrives."""
        return self._output is not None and self._output.is_lost

    def _tell(self, heard: Callable[[], None]) -> None:
        """From a thread."""
        with contextlib.suppress(RuntimeError):
            # The loop has ended before the terminal has.
            self._loop.call_soon_threadsafe(heard)

    # --- writing ---

    def start_application_mode(self) -> None:
        told, shown = sys.__stderr__, sys.__stdout__
        assert told is not None and shown is not None
        self._output = Output(
            # Standard error may be a file; the start has seen to it that standard output is a terminal.
            told if told.isatty() else shown,
            lambda: self._tell(self.on_gone),
            lambda: self._tell(self.on_outdated),
        )
        super().start_application_mode()

    def write(self, data: str) -> None:
        if self._output is not None:
            self._output.write(data)

    def close(self) -> None:
        super().close()
        if self._output is not None:
            self._output.stop()

    def _sigcont_application(self, *_: Any) -> None:
        """Textual's own starts a second time what runs already, unless Ctrl+Z has stopped it. But this signal
        comes when a terminal hangs up, too, and after a stop from outside.
        """
        try:
            termios.tcgetattr(self.fileno)
        except termios.error:
            return
        if self._auto_restart and not self._must_signal_resume:
            self.suspend_application_mode()
            self._must_signal_resume = True
        super()._sigcont_application()
        self._tell(self.on_outdated)

    # --- reading ---

    def ask(self, question: str) -> None:
        """Send a question of graphics.py."""
        self.answers = Answers()
        self.answers.listen()
        self.write(question)
        self.flush()
        if self._wake_write is not None:
            # The reading thread sleeps: from now on it looks again soon.
            os.write(self._wake_write, LOOK)

    def _typed(self, text: str, *, is_pause: bool) -> str:
        """`text` without what the terminal answers."""
        answers = self.answers
        if answers is None:
            return text
        typed = answers.feed(text) if text else ""
        if is_pause:
            typed += answers.release()
        if not answers.is_listening:
            self.answers = None
            typed += answers.release()
            if self.on_answer is not None:
                self._loop.call_soon_threadsafe(self.on_answer, answers.attributes, answers.cell)
        return typed

    def run_input_thread(self) -> None:
        """Read keys until `disable_input`."""
        wake_read, self._wake_write = os.pipe()
        parser = XTermParser(self._debug)
        is_ending = False
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while not self.exit_event.is_set():
                # Should Textual's parser change, the old rhythm is the safe one.
                is_pending = getattr(parser, "_timeout_time", 0.0) is not None
                is_pending = is_pending or is_ending or self.answers is not None
                ready = select.select([self.fileno, wake_read], [], [], PENDING_S if is_pending else None)[0]
                if wake_read in ready:
                    is_ending = is_ending or END in os.read(wake_read, READ_BYTES)
                data = b""
                if self.fileno in ready:
                    data = self._read()
                    if not data:
                        # Also where the hang-up signal is ignored.
                        self._tell(self.on_gone)
                        break
                typed = self._typed(decoder.decode(data), is_pause=not ready)
                if typed:
                    for event in parser.feed(typed):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
        finally:
            write, self._wake_write = self._wake_write, None
            os.close(wake_read)
            if write is not None:
                os.close(write)

    def _read(self) -> bytes:
        """Nothing: the terminal is gone."""
        try:
            return os.read(self.fileno, READ_BYTES)
        except OSError:
            return b""

    def disable_input(self) -> None:
        if self._wake_write is not None:
            # From then on the thread turns until the event that Textual sets next.
            os.write(self._wake_write, END)
        super().disable_input()

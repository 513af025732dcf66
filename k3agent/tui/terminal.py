"""The terminal's driver. Textual's own wakes ten times a second to look for a lone Esc, also while nothing is
typed; this one sleeps until something comes, and looks again soon only when an escape sequence is unfinished.
"""

from __future__ import annotations

import codecs
import os
import select

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

READ_BYTES = 4096
# How soon an unfinished sequence is looked at again: Textual's own time.
PENDING_S = 0.1


class QuietDriver(LinuxDriver):
    """A pipe wakes the reading thread when it is to end."""

    _wake_write: int | None = None

    def run_input_thread(self) -> None:
        """Read keys until `disable_input`."""
        wake_read, self._wake_write = os.pipe()
        parser = XTermParser(self._debug)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while not self.exit_event.is_set():
                # Should Textual's parser change, the old rhythm is the safe one.
                is_pending = getattr(parser, "_timeout_time", 0.0) is not None
                ready = select.select([self.fileno, wake_read], [], [], PENDING_S if is_pending else None)[0]
                if self.fileno in ready:
                    data = os.read(self.fileno, READ_BYTES)
                    if not data:
                        # The terminal is gone; the hang-up signal ends the app.
                        break
                    for event in parser.feed(decoder.decode(data)):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
        finally:
            write, self._wake_write = self._wake_write, None
            os.close(wake_read)
            if write is not None:
                os.close(write)

    def disable_input(self) -> None:
        if self._wake_write is not None:
            # The byte stays in the pipe: the thread turns until the event that Textual sets next.
            os.write(self._wake_write, b"\0")
        super().disable_input()

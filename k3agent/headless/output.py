"""Writing to a pipe whose reader may be slow or gone, without stopping the event loop for it.

A thread writes; what waits is bounded. Standard output loses nothing: beyond the bound the caller waits
for the reader. Standard error is progress: beyond the bound it is dropped.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from k3agent.safety.visible import clean

_MAX_WAITING_BYTES = 8 * 1024 * 1024
_WRITE_BYTES = 64 * 1024


def print_foreign(text: str) -> None:
    """Print what models and tools wrote: a terminal gets nothing of it that it would obey."""
    print(clean(text) if sys.stdout.isatty() else text, end="")


def has_styles(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether what is printed there may be bold or coloured."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class PipeWriter:
    """Writes to a file descriptor from a thread of its own. `on_broken` is called, in that thread, once the
    reader is gone.
    """

    def __init__(
        self, descriptor: int, *, is_lossless: bool, on_broken: Callable[[], None] | None = None
    ) -> None:
        self._descriptor = descriptor
        self._is_lossless = is_lossless
        self.on_broken = on_broken
        self.is_broken = False
        # Set after a signal: the caller must not wait for the reader any more.
        self.is_urgent = False
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        raw = text.encode("utf-8", errors="backslashreplace")
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pipe-writer", daemon=True)
                self._thread.start()
            while self._is_full():
                if not self._is_lossless:
                    return
                # A short wait again and again, so that a signal's handler can run and set `is_urgent`.
                self._condition.wait(0.1)
            if self.is_broken:
                return
            self._waiting.append(raw)
            self._waiting_bytes += len(raw)
            self._condition.notify_all()

    def flush(self, limit_s: float | None = None) -> bool:
        """Wait until the reader has taken all; False when the reader is gone or the limit is over."""
        end = None if limit_s is None else time.monotonic() + limit_s
        with self._condition:
            while self._waiting_bytes and not self.is_broken:
                if end is not None and time.monotonic() >= end:
                    return False
                self._condition.wait(0.1)
        return not self.is_broken

    def _is_full(self) -> bool:
        return self._waiting_bytes > _MAX_WAITING_BYTES and not self.is_broken and not self.is_urgent

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting:
                    self._condition.wait()
                raw = self._waiting.popleft()
            try:
                self._write_all(raw)
            except OSError:
                self._break()
                return
            with self._condition:
                self._waiting_bytes -= len(raw)
                self._condition.notify_all()

    def _write_all(self, raw: bytes) -> None:
        view = memoryview(raw)
        while view:
            try:
                written = os.write(self._descriptor, view[:_WRITE_BYTES])
            except BlockingIOError:
                # The pipe was made non-blocking by whoever shares it.
                select.select([], [self._descriptor], [], 1.0)
                continue
            view = view[written:]

    def _break(self) -> None:
        with self._condition:
            self.is_broken = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._condition.notify_all()
        if self.on_broken is not None:
            self.on_broken()


def write_answer_file(path: Path | None, answer: str) -> str:
    """Returns why it cannot be written, or ''."""
    if path is None:
        return ""
    try:
        path.write_text(answer if answer.endswith("\n") or not answer else f"{answer}\n", encoding="utf-8")
    except OSError as error:
        return f"-o {path}: {error.strerror}"
    return ""

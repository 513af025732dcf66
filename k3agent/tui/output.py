"""What is written to the terminal, in a thread of its own: a terminal that is gone, or that takes nothing any
more, must not hold up the app, which has a session to close.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable
from typing import TextIO

CHUNK_BYTES = 1 << 14
# Behind by more than this, the app waits: what is shown must not lag behind the keys.
MAX_BEHIND_BYTES = 1 << 17
# A terminal that takes nothing for so long has stalled: what is written is dropped until it takes more.
STALL_S = 1.0
STOP_S = 1.0
LOOK_S = 0.005


class Output:
    """`on_gone` and `on_caught_up` are called in the thread: the terminal is gone; it goes on after a stall,
    in which some of what was written has been dropped.
    """

    def __init__(self, file: TextIO, on_gone: Callable[[], None], on_caught_up: Callable[[], None]) -> None:
        self._fd, self._encoding, self._errors = file.fileno(), file.encoding, file.errors or "replace"
        self._on_gone, self._on_caught_up = on_gone, on_caught_up
        # A handler of a signal may write while a write is under way; this queue allows it.
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Each is counted by one thread only.
        self._num_queued = self._num_written = 0
        self._has_stalled = False
        self.is_gone = False
        self._thread = threading.Thread(target=self._run, name="terminal-output", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Nothing that is written arrives."""
        return self.is_gone or self._has_stalled

    def write(self, text: str) -> None:
        self._wait_for_room()
        if not self.is_lost:
            data = text.encode(self._encoding, self._errors)
            self._num_queued += len(data)
            self._queue.put(data)

    def stop(self) -> None:
        """Write what is left; a terminal that does not take it is left alone."""
        self._queue.put(None)
        self._thread.join(STOP_S)
        self._has_stalled = self._has_stalled or self._thread.is_alive()

    def _wait_for_room(self) -> None:
        seen, since = self._num_written, time.monotonic()
        while self._num_queued - self._num_written > MAX_BEHIND_BYTES and not self.is_lost:
            time.sleep(LOOK_S)
            if seen != self._num_written:
                seen, since = self._num_written, time.monotonic()
            elif time.monotonic() - since > STALL_S:
                self._has_stalled = True
                # The thread looks once more, should it have caught up this very moment.
                self._queue.put(b"")

    def _run(self) -> None:
        is_ending = False
        while not is_ending:
            pieces = [self._queue.get()]
            while pieces[-1] is not None and not self._queue.empty():
                pieces.append(self._queue.get())
            is_ending = pieces[-1] is None
            self._send(b"".join(piece for piece in pieces if piece is not None))
            if self._has_stalled and not self.is_gone and self._num_queued == self._num_written:
                self._has_stalled = False
                self._on_caught_up()

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.is_gone:
            try:
                num = os.write(self._fd, view[:CHUNK_BYTES])
            except BlockingIOError:
                # Somebody who shares the terminal has set it so.
                select.select([], [self._fd], [])
                continue
            except OSError:
                self.is_gone = True
                self._on_gone()
                return
            self._num_written += num
            view = view[num:]

"""DiskWriter: the thread that writes the disk tier's files, so that no request waits for a disk."""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from k3agent.backend.cache.interfaces import Buffer
from k3agent.backend.cache.radix import Tokens
from k3agent.backend.cache.record_file import Header, write_file

log = logging.getLogger(__name__)


def at_once() -> None:
    """They are."""


@dataclass(slots=True, eq=False)
class Write:
    """One file to be written from host copies."""

    path: Path
    header: Header
    contents: list[tuple[Tokens, Buffer]]
    num_bytes: int
    settled: Callable[[], None] = at_once
    """Waits until the contents are there."""
    is_wanted: bool = True
    """False: what it would save is outdated; skipped if it has not begun."""
    outcome: Literal["waits", "written", "skipped", "failed"] = "waits"


class DiskWriter:
    """Writes in the order of `submit`; `finished` gives back what is done. Its thread starts when needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: queue.SimpleQueue[Write | threading.Event | None] = queue.SimpleQueue()
        self._done: deque[Write] = deque()
        self._thread: threading.Thread | None = None

    def submit(self, write: Write) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="cache-disk", daemon=True)
            self._thread.start()
        self._queue.put(write)

    def finished(self) -> list[Write]:
        """Files that were written, skipped or failed since the last call."""
        done: list[Write] = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was submitted is done; False if that takes longer."""
        if self._thread is None:
            return True
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(timeout_s)

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        number = 0
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            number += 1
            self._write(item, self._folder / f"tmp-{time.time_ns():x}-{number}")
            item.contents = []
            self._done.append(item)

    def _write(self, item: Write, temporary: Path) -> None:
        if not item.is_wanted:
            item.outcome = "skipped"
            return
        try:
            item.settled()
            item.header = write_file(item.path, temporary, item.header, item.contents)
        except (OSError, RuntimeError) as error:
            item.outcome = "failed"
            log.warning("the cache on disk could not write %s: %s", item.path, error)
        else:
            item.outcome = "written"

"""A vLLM process under watch: started, waited for, started again when it dies, stopped with its workers."""

import collections
import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import httpx

from k3agent.backend.errors import EngineUnavailableError

log = logging.getLogger(__name__)

KEPT_LINES = 30
POLL_S = 1.0
PATIENCE_S = 15.0
STOP_S = 30.0
MAX_RESTARTS = 3
"""Within RESTART_WINDOW_S; then it is given up."""
RESTART_WINDOW_S = 900.0
MAX_SILENT_S = 120.0
"""A server that has not answered /health for so long is ended and started again."""


class Supervisor:
    """One server process at a time. `run` is its whole life; `stop` may be called from a signal handler.

    url: where it answers; None for a node of several that answers nobody.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], url: str | None, log_file: Path
    ) -> None:
        self._command, self._environ, self._url, self._log_file = list(command), dict(environ), url, log_file
        self._lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        # No event: setting one from a signal handler can wait for the very code that it interrupts.
        self._is_stopping = False
        self.num_restarts = 0

    def stop(self) -> None:
        """End the server; `run` then returns 0."""
        self._is_stopping = True

    def run(self, on_ready: Callable[[], None], ready_timeout_s: float) -> int:
        """Serve until stopped. `on_ready` is called once, at the first answer. Raises EngineUnavailableError
        when the server does not come, or not come back.
        """
        restarts: collections.deque[float] = collections.deque()
        is_first = True
        try:
            while True:
                self._start()
                if not self._wait_ready(ready_timeout_s):
                    return 0
                if is_first:
                    is_first = False
                    on_ready()
                why = self._watch()
                if why is None:
                    return 0
                self._end()
                now = time.monotonic()
                restarts.append(now)
                while restarts[0] < now - RESTART_WINDOW_S:
                    restarts.popleft()
                if len(restarts) > MAX_RESTARTS:
                    raise EngineUnavailableError(
                        f"{why} for the {len(restarts)}th time; given up. {self._told()}"
                    )
                self.num_restarts += 1
                log.warning("%s; starting it again (%d)", why, self.num_restarts)
        finally:
            self._end()

    def _start(self) -> None:
        self._lines.clear()
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        try:
            # A group of its own: its workers end with it, and a signal to our group is ours to handle.
            self._process = subprocess.Popen(
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineUnavailableError(
                f"{self._command[0]}: {error.strerror}; is vLLM installed?"
            ) from error
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        # What the server says can hold prompts: the file is the user's alone.
        with os.fdopen(os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
            for line in stream:
                out.write(line)
                out.flush()
                self._lines.append(line.decode("utf-8", "replace").rstrip())

    def _told(self) -> str:
        if self._reader is not None:
            self._reader.join(timeout=2)
        last = "\n  ".join(line for line in self._lines if line)
        return f"The log is {self._log_file}; it ends with:\n  {last}"

    def _wait_ready(self, timeout_s: float) -> bool:
        """Whether it answers; False when stopped meanwhile."""
        begun = told = time.monotonic()
        while not self._is_stopping:
            assert self._process is not None
            if self._process.poll() is not None:
                raise EngineUnavailableError(
                    f"the server ended with status {self._process.returncode} while loading. {self._told()}"
                )
            if self._answers():
                return True
            now = time.monotonic()
            if now - begun > timeout_s:
                raise EngineUnavailableError(
                    f"the server did not answer within {timeout_s:.0f} s. {self._told()}"
                )
            if now - told >= PATIENCE_S:
                told = now
                log.info(
                    "still loading after %.0f s: %s", now - begun, self._lines[-1] if self._lines else ""
                )
            time.sleep(POLL_S)
        return False

    def _watch(self) -> str | None:
        """Why the server has to be started again; None when stopped."""
        heard = time.monotonic()
        while True:
            time.sleep(POLL_S)
            if self._is_stopping:
                return None
            assert self._process is not None
            if self._process.poll() is not None:
                return f"the server ended with status {self._process.returncode}"
            if self._answers():
                heard = time.monotonic()
            elif time.monotonic() - heard > MAX_SILENT_S:
                return f"the server has not answered for {MAX_SILENT_S:.0f} s"

    def _answers(self) -> bool:
        if self._url is None:
            return True
        try:
            return httpx.get(f"{self._url}/health", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue
            break
        # Workers that outlived the one that started them.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

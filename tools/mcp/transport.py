"""How messages reach a server of foreign tools, and one of the two ways: a program's standard streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from k3agent.errors import ToolError
from k3agent.tools.support.processes import MARK, SessionLog
from k3agent.types import JsonObject, ServerSpec

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
MAX_ERROR_CHARS = 2_000
# A run gives the whole clean-up three seconds.
GRACE_S = 0.7
# Of a program whose output is closed, until nothing is expected of it any more.
SILENT_END_S = 5.0
# What a program has not yet read of what it asked for.
MAX_UNREAD_BYTES = 64 * 1024 * 1024


class Transport(Protocol):
    """`start` raises ToolError. Then messages go to `on_message`, and the end, with its reason, once to
    `on_end`.
    """

    async def start(self) -> None: ...

    def send(self, message: JsonObject) -> None: ...

    def agreed(self, version: str) -> None:
        """The protocol's version is known from now on."""
        ...

    async def aclose(self) -> None: ...


class ProgramTransport:
    """A program that speaks lines of JSON. It runs in a process group of its own and ends with us: its
    standard input closes, then it is asked, then killed.
    """

    def __init__(
        self,
        spec: ServerSpec,
        environ: Mapping[str, str],
        cwd: Path,
        on_message: Callable[[Any], None],
        on_end: Callable[[str], None],
        processes: SessionLog,
    ) -> None:
        self._spec = spec
        self._mark = secrets.token_hex(8)
        self._environ = {**environ, **spec.env, MARK: self._mark}
        self._processes = processes
        self._cwd = cwd / spec.cwd
        self._on_message, self._on_end = on_message, on_end
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._errors = ""
        self._is_closing = False
        self._has_spoken = False

    async def start(self) -> None:
        spec = self._spec
        # Should we be killed, the next start ends it: not every program ends with its standard input.
        self._processes.begin(self._mark, spec.name)
        try:
            self._process = await asyncio.create_subprocess_exec(
                spec.command,
                *spec.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._cwd,
                env=self._environ,
                limit=MAX_MESSAGE_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            self._processes.drop(self._mark)
            raise ToolError(
                f"{spec.command} cannot be started: {error.strerror}; install it, or give its whole path"
            ) from error
        self._processes.add(self._process.pid, self._mark, spec.name)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    def send(self, message: JsonObject) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return
        process.stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        if process.stdin.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._end(f"it has not read {MAX_UNREAD_BYTES >> 20} MB of messages")

    def agreed(self, version: str) -> None:
        """Lines of JSON are the same in all versions."""

    async def _read(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        try:
            while not self._is_closing and (line := await process.stdout.readline()):
                if not line.strip():
                    continue
                try:
                    message = json.loads(line)
                except (ValueError, RecursionError):
                    # Many programs print a greeting first.
                    log.info("MCP server %s printed a line that is no JSON: %r", self._spec.name, line[:200])
                    continue
                self._has_spoken = True
                self._on_message(message)
        except ValueError:
            self._end(f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MB")
            return
        if self._is_closing:
            return
        try:
            async with asyncio.timeout(SILENT_END_S):
                code = await process.wait()
        except TimeoutError:
            self._end("the program has closed its output, and does not end")
            return
        await asyncio.wait(self._tasks[1:], timeout=GRACE_S)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        said = f": {self._errors.strip().splitlines()[-1][:300]}" if self._errors.strip() else ""
        self._end(f"the program ended {how}{said}")

    async def _read_errors(self) -> None:
        process = self._process
        assert process is not None and process.stderr is not None
        while piece := await process.stderr.read(4096):
            text = piece.decode("utf-8", "replace")
            log.debug("MCP server %s: %s", self._spec.name, text.rstrip())
            self._errors = (self._errors + text)[-MAX_ERROR_CHARS:]

    def _end(self, reason: str) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._on_end(reason)

    async def aclose(self) -> None:
        self._is_closing = True
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            # One that is still starting has nothing to put in order, and may not listen yet.
            for signum in (None, signal.SIGTERM) if self._has_spoken else (signal.SIGTERM,):
                if signum is not None:
                    _signal_group(process.pid, signum)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await process.wait()
                        break
        finally:
            # What it has started itself goes with it.
            _signal_group(process.pid, signal.SIGKILL)
        # A child that has left the group may hold the program's output open: that is not waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # there is no public way
        self._processes.remove(process.pid)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _signal_group(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)

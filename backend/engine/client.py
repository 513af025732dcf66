"""The server's end of the pipe: starts the engine process, sends requests, hands reports to whoever waits.

An engine that dies ends the running requests with an error and is started once more; the server stays up. One
that dies again within minutes is not.
Nothing here imports torch.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from multiprocessing.connection import Connection

from k3agent.backend.engine.messages import (
    Abort,
    Add,
    Command,
    Counters,
    EngineSettings,
    Failed,
    FailedToStart,
    Finished,
    Generated,
    Prefilled,
    RankLost,
    Ready,
    Report,
    Stop,
    WarmingUp,
)
from k3agent.backend.errors import RANK_LOST_STATUS, EngineUnavailableError, RankLostError

log = logging.getLogger(__name__)

RESTART_WINDOW_S = 600
"""Within so many seconds an engine that dies is started again only `max_restarts` times."""

HANG_S = 300.0
"""An engine with requests that reports nothing for so long hangs, and is ended: a step takes seconds."""
LOOK_EVERY_S = 5.0

RequestReport = Prefilled | Generated | Finished | Failed


class EngineClient:
    """One engine process. All methods belong to the event loop that called `start`."""

    def __init__(self, settings: EngineSettings, max_restarts: int = 1) -> None:
        self.counters: dict[str, float] = {}
        self.num_restarts = 0
        self._restarts: list[float] = []
        self.ready: Ready | None = None
        self.on_progress: Callable[[WarmingUp], None] | None = None
        """Told of the steps of a start."""
        self.is_lost = asyncio.Event()
        """Set when the process has ended for good."""
        self.exit_status = 1
        """What the server should end with then."""
        self._settings = settings
        self._max_restarts = max_restarts
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Of the present pipe: a thread sends what is in it, in order. None: the pipe is done with."""
        self._queues: dict[str, asyncio.Queue[RequestReport | EngineUnavailableError]] = {}
        self._unfinished: set[str] = set()
        """Requests that the engine still owes a report."""
        self._starting: asyncio.Future[Ready] | None = None
        self._restart: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._death = ""
        self._refusal = ""
        self._heard_s = time.monotonic()
        self._watch: asyncio.Task[None] | None = None
        self._is_ranked = settings.tensor_parallel > 1

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def state(self) -> str:
        """`ready`, `loading`, or `dead`."""
        if self.ready is not None:
            return "ready"
        return "loading" if self._starting is not None and not self._starting.done() else "dead"

    @property
    def silent_s(self) -> float:
        """For how long an engine with unfinished requests has reported nothing; 0 where it has none."""
        return time.monotonic() - self._heard_s if self._unfinished and self.ready is not None else 0.0

    async def start(self) -> Ready:
        """Start the process; returns when the model is loaded and warm, or raises EngineUnavailableError."""
        self._loop = asyncio.get_running_loop()
        self._starting = self._loop.create_future()
        pipe = self._pipe = self._spawn()
        self._outbox = queue.SimpleQueue()
        self._outbox.put(_packed(self._settings))
        for work, *arguments in ((self._read, pipe, self._loop), (_write, pipe, self._outbox)):
            threading.Thread(target=work, args=arguments, daemon=True, name="engine-pipe").start()
        self.watch()
        return await asyncio.shield(self._starting)

    def watch(self) -> None:
        """Look every LOOK_EVERY_S seconds, from now on, whether the engine hangs."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().create_task(self._end_when_silent())

    async def _end_when_silent(self) -> None:
        """An engine that hangs is ended; what is done then is what is done after any death."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.silent_s > HANG_S and self._process is not None:
                self._death = (
                    f"the engine process has reported nothing for {self.silent_s:.0f} s and was ended"
                )
                self._process.kill()
                self._heard_s = time.monotonic()

    def _spawn(self) -> Connection:
        """Start the process and return our end of its pipe."""
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: a folder called k3agent where the user stands must not be imported
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "k3agent.backend.engine.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environ(self._settings),
                stdout=sys.stderr.fileno() if _has_fd(sys.stderr) else subprocess.DEVNULL,
            )
        return Connection(ours.detach())

    async def generate(self, request: Add) -> AsyncGenerator[RequestReport, None]:
        """Reports of one request, up to and with Finished or Failed. Leaving early aborts it.

        Raises EngineUnavailableError when the engine is gone.
        """
        data = await asyncio.to_thread(_packed, request)
        await self.wait_ready()
        # from here to the sending nothing waits: who is cancelled has sent nothing, or all of it
        reports: asyncio.Queue[RequestReport | EngineUnavailableError] = asyncio.Queue()
        if not self._unfinished:
            self._heard_s = time.monotonic()
        self._queues[request.request_id] = reports
        self._unfinished.add(request.request_id)
        is_over = False
        try:
            self._send(data)
            while not is_over:
                report = await reports.get()
                if isinstance(report, EngineUnavailableError):
                    is_over = True
                    raise report
                is_over = isinstance(report, Finished | Failed)
                yield report
        finally:
            del self._queues[request.request_id]
            self._unfinished.discard(request.request_id)
            if not is_over:
                with contextlib.suppress(EngineUnavailableError):
                    self._send(_packed(Abort(request.request_id)))

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the process: asked first, then killed."""
        self._is_stopping = True
        for task in (self._restart, self._watch):
            if task is not None:
                task.cancel()
        process = self._process
        if process is None:
            return
        with contextlib.suppress(EngineUnavailableError):
            self._send(_packed(Stop()))
        try:
            await asyncio.to_thread(process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        self.ready = None

    async def wait_ready(self) -> None:
        """Return when the engine takes requests; raise EngineUnavailableError when it will not."""
        if self.ready is None and self._starting is not None and not self._starting.done():
            await asyncio.shield(self._starting)
        if self.ready is None:
            raise EngineUnavailableError(self._death or "the engine is not running; restart the server")

    def _send(self, command: bytes) -> None:
        """Queue a packed command; never waits for the engine."""
        if self._pipe is None:
            raise EngineUnavailableError("the engine is not running")
        self._outbox.put(command)

    # --- the reading thread, and what it hands over to the loop

    def _read(self, pipe: Connection, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            while True:
                try:
                    report = pipe.recv()
                except (EOFError, OSError):
                    loop.call_soon_threadsafe(self._lost, pipe)
                    return
                loop.call_soon_threadsafe(self._dispatch, report)

    def _dispatch(self, report: Report) -> None:
        self._heard_s = time.monotonic()
        match report:
            case Ready():
                self.ready = report
                if self._starting is not None and not self._starting.done():
                    self._starting.set_result(report)
            case FailedToStart(message):
                self._death = self._refusal = message
                if self._starting is not None and not self._starting.done():
                    self._starting.set_exception(EngineUnavailableError(message))
            case RankLost(message):
                self._death = message
            case WarmingUp():
                if self.on_progress is not None:
                    self.on_progress(report)
            case Counters(values=values):
                self.counters = values
            case _:
                if isinstance(report, Finished | Failed):
                    # Its reader may take its time; the engine owes nothing any more.
                    self._unfinished.discard(report.request_id)
                reports = self._queues.get(report.request_id)
                if reports is not None:
                    reports.put_nowait(report)

    def _lost(self, pipe: Connection) -> None:
        if pipe is not self._pipe:
            return
        self._outbox.put(None)
        self._pipe = None
        was_ready = self.ready is not None
        self.ready = None
        error = self._error_of_end()
        text = self._death = str(error)
        if self._starting is not None and not self._starting.done():
            self._starting.set_exception(error)
            # the exception may have no reader when a restart failed; it is in `_death` and in the log
            self._starting.exception()
        self._unfinished.clear()
        for reports in self._queues.values():
            reports.put_nowait(error)
        if self._is_stopping:
            return
        log.error("%s", text)
        # what failed while loading would fail again
        # one that dies again soon after would do so for ever
        recent = [at for at in self._restarts if time.monotonic() - at < RESTART_WINDOW_S]
        may_restart = was_ready and not self._is_ranked and len(recent) < self._max_restarts
        if may_restart and self._loop is not None:
            self._restarts = [*recent, time.monotonic()]
            self.num_restarts += 1
            self._restart = self._loop.create_task(self._start_again())
        else:
            self.is_lost.set()

    def _error_of_end(self) -> EngineUnavailableError:
        """Why the engine process is no longer there."""
        if self._is_stopping:
            return EngineUnavailableError("the server is stopping")
        status = self._process.wait() if self._process else None
        if self._refusal or not self._is_ranked:
            text = f"the engine process ended unexpectedly (exit status {status})"
            return EngineUnavailableError(self._refusal or self._death or text)
        text = f"rank 0, the engine process, ended unexpectedly (exit status {status})"
        self.exit_status = RANK_LOST_STATUS
        return RankLostError(self._death or text)

    async def _start_again(self) -> None:
        log.warning("starting the engine again")
        try:
            await self.start()
        except EngineUnavailableError as error:
            log.error("the engine did not start again: %s", error)
        else:
            self._death = ""


def _packed(command: Command | EngineSettings) -> bytes:
    return pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL)


def _write(pipe: Connection, outbox: "queue.SimpleQueue[bytes | None]") -> None:
    """A thread: send what comes, and close the pipe at the end, when nobody reads it any more."""
    while (command := outbox.get()) is not None:
        # a broken pipe is the reader's news
        with contextlib.suppress(OSError):
            pipe.send_bytes(command)
    pipe.close()


def _environ(settings: EngineSettings) -> dict[str, str]:
    """Threads that wait for each other sleep instead of spinning; compiled kernels outlive the process.

    Beside a compiler or a test run, the normal state of an agent's machine, spinning made start-up and decode
    tens of times slower.
    """
    chosen = {"OMP_WAIT_POLICY": "PASSIVE"} if settings.device == "cpu" else {}
    if settings.compile_cache_dir is not None:
        chosen["TRITON_CACHE_DIR"] = settings.compile_cache_dir
    return {**chosen, **os.environ}


def _has_fd(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True

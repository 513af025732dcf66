"""The engine's own process: a loop between the pipe and the step loop.

Started as `python -m k3agent.backend.engine.process FD`, with FD one end of a socket pair. It ends when
told to, or when the other end is gone.
"""

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.engine import Engine
from k3agent.backend.engine.messages import (
    Abort,
    Add,
    EngineSettings,
    Failed,
    FailedToStart,
    RankLost,
    Ready,
    Stop,
    WarmingUp,
)
from k3agent.backend.engine.runner import Runner
from k3agent.backend.engine.static_steps import Progress, no_progress
from k3agent.backend.errors import BackendError
from k3agent.backend.parallel.processes import end_process

log = logging.getLogger(__name__)

COUNTERS_EVERY_S = 1.0
"""While it works, the engine tells its levels so often; and when it has nothing to do any more."""


class _Pipe(Connection):
    """The engine's end. A lost rank is reported by another thread, so sending takes a lock."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._sending = threading.Lock()

    def send(self, obj: Any) -> None:
        with self._sending:
            super().send(obj)

    def report_progress(self, num_done: int, num_steps: int, what: str) -> None:
        """Tell the server how far the start is."""
        self.send(WarmingUp(num_done, num_steps, what))

    def report_loss(self, message: str) -> NoReturn:
        """Tell the server that a rank is gone, and end."""
        with contextlib.suppress(OSError):
            self.send(RankLost(message))
        end_process(message)


def load(
    settings: EngineSettings,
    on_loss: Callable[[str], NoReturn] = end_process,
    progress: Progress = no_progress,
) -> tuple[Engine, Ready]:
    """Load, warm up, and say what came of it. `on_loss` is told of a lost rank when there are several."""
    tokenizer = Tokenizer.from_dir(settings.model_dir)
    runner, load_s = Runner.load(settings, on_loss)
    if tokenizer.vocab_size > runner.config.vocab_size:
        raise BackendError(
            f"{settings.model_dir}: the tokenizer has {tokenizer.vocab_size} ids, config.json a vocab_size of"
            f" {runner.config.vocab_size}; the folder mixes two models"
        )
    engine = Engine(runner, tokenizer, settings)
    engine.warm_up(progress)
    engine.attach_tiers()
    ready = Ready(
        max_model_len=runner.max_model_len,
        num_pages=runner.num_pages,
        num_slots=runner.num_slots,
        cache_bytes=runner.cache_bytes,
        weights_bytes=runner.weights_bytes,
        load_s=load_s,
        device=str(runner.device),
        dtype=str(runner.model.dtype).removeprefix("torch."),
        min_cacheable_tokens=engine.cache.min_cacheable_tokens,
    )
    return engine, ready


def serve(pipe: Connection, engine: Engine) -> None:
    """Work until told to stop. Between two forward passes all waiting commands are read, so an abort is
    quick.
    """
    told_s = time.monotonic()
    while True:
        while not engine.has_work or pipe.poll():
            match pipe.recv():
                case Add() as request:
                    try:
                        engine.add(request)
                    except Exception as error:
                        # one request that nobody has thought of must not end all the others
                        log.exception("request %s could not be taken", request.request_id)
                        pipe.send(Failed(request.request_id, f"the request could not be taken: {error}"))
                case Abort(request_id):
                    engine.abort(request_id)
                case Stop():
                    return
        for report in engine.step():
            pipe.send(report)
        if not engine.has_work or time.monotonic() - told_s >= COUNTERS_EVERY_S:
            pipe.send(engine.counters())
            told_s = time.monotonic()


def main() -> int:
    # terminals and service managers signal the whole group; when to stop is the server's decision
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="engine: %(levelname)s %(name)s: %(message)s")
    pipe = _Pipe(int(sys.argv[1]))
    try:
        settings = pipe.recv()
        assert isinstance(settings, EngineSettings)
        try:
            engine, ready = load(settings, pipe.report_loss, pipe.report_progress)
        except BackendError as error:
            pipe.send(FailedToStart(str(error)))
            return 1
        try:
            pipe.send(ready)
            pipe.send(engine.counters())
            serve(pipe, engine)
        finally:
            engine.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        log.info("the server is gone")
    return 0


if __name__ == "__main__":
    sys.exit(main())

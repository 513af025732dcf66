"""Packed batches from worker processes that generate episodes without end.

Each worker packs whole batches and sends them through a pipe of its own: no lock is shared, so a worker
that dies takes nothing with it and is replaced under a new seed. Nobody waits for the slowest: whichever
batch is ready comes next. Importing this module does not load torch, which keeps workers small.
"""

import importlib
import logging
import multiprocessing
import os
import queue
import random
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import Synchronized
from typing import Any, Protocol

import numpy as np

log = logging.getLogger(__name__)

EPISODES = "k3agent.backend.training.encode:stream"
SYNTHETIC = "k3agent.backend.training.data:synthetic_stream"
HELD_OUT_SEED = 1_000_003
"""Seeds from here on are for evaluation; training counts up from its own, far below."""
MIN_KEPT = 32
"""Batches are not repeated before so many are there."""
MIN_DOCUMENT = 16
"""A document cut shorter than this at the end of a batch teaches nothing; its place is filled without loss.
"""


class Episode(Protocol):
    token_ids: Any
    loss_weight: Any


@dataclass(frozen=True)
class StagePlan:
    """Which stages of episodes are mixed when: (start, weights) in order, starts in 0..1."""

    steps: tuple[tuple[float, Mapping[str, float]], ...]

    @classmethod
    def parse(cls, text: str) -> "StagePlan":
        """`0:short,0.05:broad,0.8:broad=1+long=2`: from each start on, the stages with their weights."""
        steps = []
        for part in text.split(","):
            start, _, stages = part.partition(":")
            weights = {}
            for stage in stages.split("+"):
                name, _, weight = stage.partition("=")
                weights[name.strip()] = float(weight or 1)
            steps.append((float(start), weights))
        if not steps or steps[0][0] != 0 or any("" in weights for _, weights in steps):
            raise ValueError(
                f"stage plan {text!r}: expected START:STAGE[=WEIGHT][+...],... with the first start 0"
            )
        return cls(tuple(sorted(steps, key=lambda step: step[0])))

    def weights(self, progress: float) -> Mapping[str, float]:
        return [weights for start, weights in self.steps if start <= progress or start == 0][-1]

    def choose(self, progress: float, rng: random.Random) -> str:
        weights = self.weights(progress)
        return rng.choices(list(weights), list(weights.values()))[0]


@dataclass
class HostBatch:
    """One packed batch in host memory. `labels` are the next tokens, `weights` those of the labels' loss."""

    token_ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    position: np.ndarray
    offsets: np.ndarray
    stages: dict[str, int] = field(default_factory=dict)
    """Documents of each stage."""
    shared: int = 0
    """Tokens of the first document that all others go on from, or 0."""


def _own_tokens(episode: Episode, beginning: np.ndarray) -> np.ndarray:
    tokens = np.asarray(episode.token_ids, np.uint16)
    if not np.array_equal(tokens[: len(beginning)], beginning):
        raise ValueError(f"a document does not start with the shared beginning of {len(beginning)} tokens")
    return tokens[len(beginning) :]


def pack(
    episodes: Iterator[tuple[str, Episode]],
    num_tokens: int,
    max_length: int,
    pad_id: int,
    beginning: np.ndarray | None = None,
) -> HostBatch:
    """Fill `num_tokens` tokens with documents; the last is cut to fit, as is any longer than `max_length`.

    `beginning` are tokens that all documents start with: they stand once, as the first document, without
    loss.
    """
    start = np.zeros(0, np.uint16) if beginning is None else beginning.astype(np.uint16)
    shared = len(start)
    ids = np.full(num_tokens, pad_id, np.uint16)
    labels = np.full(num_tokens, pad_id, np.uint16)
    weights = np.zeros(num_tokens, np.float32)
    position = np.zeros(num_tokens, np.int32)
    offsets, stages, at = [0], {}, shared
    if shared:
        ids[:shared], position[:shared] = start, np.arange(shared)
        offsets.append(shared)
    while at < num_tokens:
        room = num_tokens - at
        if room < MIN_DOCUMENT:
            length = room
        else:
            stage, episode = next(episodes)
            tokens = _own_tokens(episode, start)
            length = min(len(tokens), room, max_length - shared)
            if length < 2:
                continue
            end = at + length
            ids[at:end] = tokens[:length]
            labels[at : end - 1] = tokens[1:length]
            own_weights = np.asarray(episode.loss_weight, np.float32)[shared:]
            weights[at : end - 1] = own_weights[1:length]
            stages[stage] = stages.get(stage, 0) + 1
        position[at : at + length] = np.arange(length)
        at += length
        offsets.append(at)
    return HostBatch(ids, labels, weights, position, np.array(offsets, np.int64), stages, shared)


@dataclass(frozen=True)
class FeedSettings:
    source: str
    """`module:function`, called as function(seed, worker, stage=...)."""
    plan: StagePlan
    num_tokens: int
    max_length: int
    pad_id: int
    seed: int
    num_workers: int
    depth: int = 24
    """Batches that wait in this process at most."""
    beginning: np.ndarray | None = None
    """Tokens that every document starts with and that are computed once a batch."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More keyword arguments of the source."""
    max_failures: int = 40
    memory_limit_bytes: int = 3 << 30
    """Address space of a worker: one that grows without end ends itself, not the machine."""
    stall_s: float = 120.0
    """A worker that sends nothing for so long, while it could, is replaced."""
    max_uses: int = 1
    """How often a batch may be used: above 1, a reader that finds no fresh batch gets an earlier one."""
    keep: int = 1500
    """Batches kept for that, the oldest dropped first."""


def load_source(source: str) -> Callable[..., Iterator[Episode]]:
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(module), name)


def mixed_episodes(
    settings: FeedSettings, worker: int, seed: int, progress: Callable[[], float]
) -> Iterator[tuple[str, Episode]]:
    """Episodes with their stage, one stream a stage, drawn by the plan's weights at the present progress."""
    stream, rng = load_source(settings.source), random.Random(seed * 7919 + worker)
    streams: dict[str, Iterator[Episode]] = {}
    while True:
        stage = settings.plan.choose(progress(), rng)
        if stage not in streams:
            streams[stage] = stream(seed, worker, stage=stage, **settings.extra)
        yield stage, next(streams[stage])


def _work(
    connection: Connection, settings: FeedSettings, worker: int, seed: int, progress: "Synchronized[float]"
) -> None:
    # The parent ends its workers itself; a signal to the whole group must not take them first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    limit = settings.memory_limit_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    episodes = mixed_episodes(settings, worker, seed, lambda: progress.value)
    while True:
        batch = pack(episodes, settings.num_tokens, settings.max_length, settings.pad_id, settings.beginning)
        try:
            connection.send(batch)
        except (BrokenPipeError, ConnectionResetError):
            return


class FeedError(RuntimeError):
    """No batch can come any more."""


class Feed:
    """Batches from `num_workers` processes. `next()` waits for one; `waited_s` sums what that cost."""

    def __init__(self, settings: FeedSettings) -> None:
        self.settings = settings
        self.waited_s = 0.0
        self.num_batches = 0
        self.num_repeated = 0
        self._kept: deque[list[Any]] = deque(maxlen=settings.keep)
        self._rng = random.Random(settings.seed)
        self.num_failures = 0
        self._context = multiprocessing.get_context("spawn")
        self._progress = self._context.Value("d", 0.0)
        self._ready: queue.Queue[HostBatch] = queue.Queue(settings.depth)
        self._stopped = threading.Event()
        self._workers: dict[Connection, tuple[int, Any]] = {}
        self._heard: dict[Connection, float] = {}
        self._last_full = 0.0
        self._next_seed = settings.seed
        for worker in range(settings.num_workers):
            self._start(worker)
        self._reader = threading.Thread(target=self._read, name="batches", daemon=True)
        self._reader.start()

    def _start(self, worker: int) -> None:
        mine, theirs = self._context.Pipe(duplex=False)
        seed, self._next_seed = self._next_seed, self._next_seed + 1
        process = self._context.Process(
            target=_work, args=(theirs, self.settings, worker, seed, self._progress), daemon=True
        )
        process.start()
        theirs.close()
        self._workers[mine] = (worker, process)  # pyright: ignore[reportArgumentType]
        self._heard[mine] = time.monotonic()  # pyright: ignore[reportArgumentType]

    def _read(self) -> None:
        while self._workers and not self._stopped.is_set():
            for connection in wait(list(self._workers), timeout=0.5):
                assert isinstance(connection, Connection)
                try:
                    batch = connection.recv()
                except (EOFError, OSError):
                    self._replace(connection)
                    continue
                self._put(batch)
                self._heard[connection] = time.monotonic()
            self._end_stalled()

    def _end_stalled(self) -> None:
        """Kill workers that have been silent too long; their pipes then end, and they are replaced."""
        now = time.monotonic()
        for connection, (worker, process) in self._workers.items():
            # While the queue was full nobody read from the pipes, which is no worker's fault.
            since = max(self._heard[connection], self._last_full)
            if now - since > self.settings.stall_s and process.is_alive():
                log.warning("worker %d has sent nothing for %.0f s", worker, now - since)
                process.kill()
                self._heard[connection] = now

    def _put(self, batch: HostBatch) -> None:
        while not self._stopped.is_set():
            try:
                return self._ready.put(batch, timeout=0.5)
            except queue.Full:
                self._last_full = time.monotonic()

    def _replace(self, connection: Connection) -> None:
        worker, process = self._workers.pop(connection)
        self._heard.pop(connection)
        connection.close()
        process.join(timeout=1)
        if self._stopped.is_set():
            return
        self.num_failures += 1
        log.warning("worker %d ended with code %s and is replaced", worker, process.exitcode)
        if self.num_failures <= self.settings.max_failures:
            self._start(worker)

    def set_progress(self, progress: float) -> None:
        self._progress.value = progress

    @property
    def num_ready(self) -> int:
        return self._ready.qsize()

    def next(self, timeout_s: float = 120.0) -> HostBatch:
        start = time.monotonic()
        while True:
            try:
                batch = self._ready.get_nowait() if self._may_repeat() else self._ready.get(timeout=0.5)
            except queue.Empty:
                if (earlier := self._earlier()) is not None:
                    return earlier
                if not self._reader.is_alive():
                    raise FeedError(
                        f"all workers of {self.settings.source} have ended; see their errors above"
                    ) from None
                if time.monotonic() - start > timeout_s:
                    raise FeedError(f"no batch from {self.settings.source} for {timeout_s:.0f} s") from None
                continue
            self.waited_s += time.monotonic() - start
            self.num_batches += 1
            if self.settings.max_uses > 1:
                self._kept.append([1, batch])
            return batch

    def _may_repeat(self) -> bool:
        return self.settings.max_uses > 1 and len(self._kept) >= MIN_KEPT

    def _earlier(self) -> HostBatch | None:
        """A batch used before: the least used of a few drawn at random. None if there is none."""
        if not self._may_repeat():
            return None
        # The newest are left alone for a while: the same batch twice in a row teaches little.
        drawn = self._rng.sample(range(len(self._kept) - MIN_KEPT // 2), 8)
        entry = min((self._kept[i] for i in drawn), key=lambda entry: entry[0])
        if entry[0] >= self.settings.max_uses:
            return None
        entry[0] += 1
        self.num_repeated += 1
        return entry[1]

    def close(self) -> None:
        self._stopped.set()
        self._reader.join(timeout=5)
        for _, process in self._workers.values():
            process.terminate()
        for connection, (_, process) in self._workers.items():
            process.join(timeout=5)
            connection.close()
        self._workers.clear()


@dataclass
class _Synthetic:
    token_ids: np.ndarray
    loss_weight: np.ndarray


def synthetic_stream(seed: int, worker: int, *, stage: str) -> Iterator[_Synthetic]:
    """Documents that repeat a random phrase: what comes after the first time can be known. For checks of
    the loop.

    The stage is the vocabulary size; the environment variable `K3AGENT_SYNTHETIC_HANG` makes the stream of
    an odd seed hang, `K3AGENT_SYNTHETIC_FAIL` makes a stream end after so many documents.
    """
    rng = np.random.default_rng((seed, worker))
    vocab, limit = int(stage), int(os.environ.get("K3AGENT_SYNTHETIC_FAIL", "0"))
    count = 0
    while not limit or count < limit:
        count += 1
        if seed % 2 and os.environ.get("K3AGENT_SYNTHETIC_HANG"):
            time.sleep(3600)
        phrase = rng.integers(0, vocab - 16, rng.integers(4, 12))
        tokens = np.tile(phrase, rng.integers(3, 8)).astype(np.uint16)
        weight = np.where(np.arange(len(tokens)) < len(phrase), 0.1, 1.0)
        yield _Synthetic(tokens, weight)

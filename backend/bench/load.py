"""Many streams of mixed length for a while, some of which hang up: no error, no growth, fair progress."""

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from k3agent.backend.bench.client import BenchClient, BenchError, Json
from k3agent.backend.bench.words import Lengths, text_of, user

_READ = {
    "type": "function",
    "function": {
        "name": "read",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
_ALLOWED_GROWTH = 0.05
_ALLOWED_GROWTH_BYTES = 16 << 20
_LEAST_SHARE = 0.25
"""Of the mean, that the slowest stream must have got, once streams have had so many requests on average:"""
_ENOUGH_REQUESTS = 10
_STARVED = 10.0
"""So many times the median, and some seconds, is too long to wait for a first token."""
_PATIENCE_S = 10.0
_SETTLE_S = 30.0


@dataclass(slots=True, kw_only=True)
class Load:
    """What came of it. `problems` is empty when all was well."""

    seconds: float
    streams: int
    completed: int = 0
    left: int = 0
    refused: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    tokens_by_stream: list[int] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    longest_gap_s: float = 0.0
    resident_bytes: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Add what is wrong about progress and memory."""
        mean = statistics.mean(self.tokens_by_stream)
        least = min(self.tokens_by_stream)
        is_long = self.completed >= _ENOUGH_REQUESTS * self.streams
        if is_long and least < _LEAST_SHARE * mean:
            self.problems.append(f"unfair: a stream got {least} chunks, the mean is {mean:.0f}")
        if self.completed < self.streams:
            self.problems.append(f"only {self.completed} requests of {self.streams} streams were completed")
        first = statistics.median(self.first_s) if self.first_s else 0.0
        if max(self.first_s, default=0.0) > _STARVED * first + _PATIENCE_S:
            self.problems.append(
                f"unfair: a first token took {max(self.first_s):.1f} s, the median is {first:.1f} s"
            )
        early, late = self.memory()
        if late > early * (1 + _ALLOWED_GROWTH) + _ALLOWED_GROWTH_BYTES:
            self.problems.append(f"memory grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB")

    def memory(self) -> tuple[float, float]:
        """Median bytes in the second and in the last quarter; the first one is warming up."""
        samples = [size for size in self.resident_bytes if size]
        if len(samples) < 4:
            return 0.0, 0.0
        quarter = len(samples) // 4
        return statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[-quarter:])

    def summary(self) -> Json:
        early, late = self.memory()
        return {
            "seconds": round(self.seconds, 1),
            "streams": self.streams,
            "completed": self.completed,
            "left": self.left,
            "refused": self.refused,
            "finish_reasons": dict(self.finish_reasons),
            "chunks": sum(self.tokens_by_stream),
            "chunks_least_stream": min(self.tokens_by_stream, default=0),
            "chunks_most_stream": max(self.tokens_by_stream, default=0),
            "first_token_median_s": round(statistics.median(self.first_s), 2) if self.first_s else None,
            "first_token_longest_s": round(max(self.first_s, default=0.0), 2),
            "longest_gap_s": round(self.longest_gap_s, 2),
            "resident_mb_second_quarter": round(early / 1e6, 1),
            "resident_mb_last_quarter": round(late / 1e6, 1),
            "problems": self.problems,
        }


async def run_load(
    client: BenchClient,
    *,
    streams: int,
    seconds: float,
    disconnects: float,
    max_tokens: int = 120,
    seed: int = 0,
    resident: Callable[[], int] = lambda: 0,
    tell: Callable[[str], None] = lambda _: None,
) -> Load:
    """Keep `streams` requests open for `seconds`; a share of them is left early."""
    load = Load(seconds=seconds, streams=streams, tokens_by_stream=[0] * streams)
    window = await client.window()
    lengths = await Lengths.of(client)
    deadline = time.monotonic() + seconds

    async def stream(number: int) -> None:
        rng = random.Random(seed * 10_000 + number)
        while time.monotonic() < deadline and len(load.problems) < 20:
            body = _body(rng, window, lengths, max_tokens)
            leave_after = rng.choice([0, 1, rng.randint(1, 60)]) if rng.random() < disconnects else None
            await _one(client, load, number, body, leave_after)

    async def watch() -> None:
        while True:
            await asyncio.sleep(min(1.0, seconds / 40))
            load.resident_bytes.append(resident())
            if len(load.resident_bytes) % 30 == 0:
                tell(f"{load.completed} completed, {load.left} left, {load.resident_bytes[-1] / 1e6:.0f} MB")

    watching = asyncio.create_task(watch())
    try:
        await asyncio.gather(*map(stream, range(streams)))
    finally:
        watching.cancel()
    load.seconds += time.monotonic() - deadline
    await _check_settled(client, load)
    load.judge()
    return load


async def _one(client: BenchClient, load: Load, number: int, body: Json, leave_after: int | None) -> None:
    """One request of one stream, perhaps left at some moment."""
    try:
        if leave_after == 0:
            # gone before the first token, wherever the request stands then
            async with asyncio.timeout(body["seed"] / 2000):
                measured = await client.chat(body)
        else:
            measured = await client.chat(body, leave_after)
    except TimeoutError:
        load.left += 1
        return
    except BenchError as error:
        load.problems.append(str(error))
        await asyncio.sleep(0.2)
        return
    load.refused += measured.num_refusals
    load.tokens_by_stream[number] += measured.num_chunks
    if measured.num_chunks:
        load.first_s.append(measured.first_s)
    load.longest_gap_s = max(load.longest_gap_s, measured.gap_s)
    if measured.finish_reason is None:
        load.left += 1
    else:
        load.completed += 1
        load.finish_reasons[measured.finish_reason] += 1


def _body(rng: random.Random, window: int, lengths: Lengths, max_tokens: int) -> Json:
    """Mostly short, at times half a window long; half of the texts have a beginning that others share."""
    tokens = min(int(20 * 2 ** rng.uniform(0, 8)), window // 2 - 300)
    text = text_of(
        rng.randrange(8) if rng.random() < 0.5 else rng.randrange(1 << 30),
        lengths.words(lengths.overhead + tokens),
    )
    body: Json = {
        **user(f"{text} {rng.random()}"),
        "max_tokens": rng.randint(1, max_tokens),
        "temperature": rng.choice([0, 0.7, 1.0]),
        "top_p": rng.choice([0.9, 1.0]),
        "seed": rng.randrange(1000),
    }
    if rng.random() < 0.3:
        body["tools"] = [_READ]
    return body


async def _check_settled(client: BenchClient, load: Load) -> None:
    """Nothing may run any more when nobody asks."""
    names = ("k3agent_open_chats", "k3agent_engine_running_requests", "k3agent_engine_waiting_requests")
    deadline = time.monotonic() + _SETTLE_S
    while True:
        metrics = await client.metrics()
        left = {name: metrics[name] for name in names if metrics.get(name)}
        if not left:
            return
        if time.monotonic() > deadline:
            load.problems.append(f"not at rest after {_SETTLE_S:g} s: {left}")
            return
        await asyncio.sleep(0.5)

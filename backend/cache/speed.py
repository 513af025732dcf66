"""`python -m k3agent.backend.cache.speed`: what the cache's own work costs on large trees; no tensors."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.cache.simulate import NoTensors, SimulatedSequence
from k3agent.backend.config import PAGE_SIZE

_DEPTH = 1_000
"""Pages of each path: 64,000 tokens."""
_REPEATS = 20


def build(num_nodes: int, num_slots: int) -> HybridCache:
    """A full cache: paths of `_DEPTH` pages that share their first half."""
    cache = HybridCache(num_nodes, num_slots, NoTensors(), exactness="off")
    number = 0
    while cache.pages.num_free > 2 * _DEPTH:
        _run(cache, _tokens(number, _DEPTH))
        number += 1
    return cache


def _tokens(number: int, num_pages: int) -> list[int]:
    shared = num_pages // 2 * PAGE_SIZE
    rest = num_pages * PAGE_SIZE - shared
    return [*range(shared), *range((number + 1) << 24, ((number + 1) << 24) + rest)]


def _new(number: int) -> list[int]:
    """What a turn adds: 2,000 tokens."""
    return list(range(number << 32, (number << 32) + 2_000))


def _run(cache: HybridCache, token_ids: list[int]) -> None:
    sequence = SimulatedSequence(token_ids)
    if not cache.adopt(sequence, cache.match(token_ids)) or not cache.reserve(sequence, len(token_ids)):
        raise RuntimeError("a full cache made no room")
    sequence.num_computed = len(token_ids)
    cache.checkpoint(sequence, give_slot=True)
    cache.release(sequence)


def measure(work: Callable[[], object]) -> float:
    """The median time of one call, in milliseconds."""
    times = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def _row(cache: HybridCache, known: list[int]) -> str:
    turns = iter(range(10_000, 20_000))
    match = measure(lambda: cache.drop(cache.match(known)))
    turn = measure(lambda: _run(cache, [*known, *_new(next(turns))]))
    page = measure(cache.resident.evict_page)
    state = measure(cache.resident.evict_state)
    return f"{match:8.2f} {turn:11.2f} {page * 1e3:17.0f} {state * 1e3:18.0f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.cache.speed", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[2_000, 20_000, 100_000])
    options = parser.parse_args(arguments)
    print("nodes      match ms   a turn ms   evict a page us   evict a state us")
    for num_nodes in options.nodes:
        cache = build(num_nodes, num_slots=200)
        known = [*_tokens(num_nodes * 2 // _DEPTH - 3, _DEPTH), 1]
        print(f"{cache.tree.num_nodes:<10}", _row(cache, known))
    return 0


if __name__ == "__main__":
    sys.exit(main())

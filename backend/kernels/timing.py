"""Times of one call: cold in L2, median over many, with or without a CUDA graph; on a CPU plain wall time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

FLUSH_BYTES = 256 << 20
"""More than any L2 holds; written between runs."""
WARMUPS = 3
REPEATS = 25


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call."""

    median_ms: float
    least_ms: float
    repeats: int


def measure(
    call: Callable[[], object], device: torch.device, *, graph: bool = False, repeats: int = REPEATS
) -> Timing:
    """Time a call that launches work on the device; with `graph` the work is captured once and replayed."""
    if device.type != "cuda":
        return _summary([_wall_ms(call) for _ in range(repeats)])
    for _ in range(WARMUPS):
        call()
    torch.cuda.synchronize(device)
    if graph:
        call = _captured(call)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    return _summary(_event_times(call, flush, repeats))


def _captured(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph; its memory is what those captured before had."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_kept().pool()):
        call()
    return graph.replay


@cache
def _kept() -> torch.cuda.CUDAGraph:
    """The owner of the memory of all graphs: hundreds are made one after the other, and each would take
    memory anew. PyTorch gives up a pool with its last graph, while blocks of it may still be there, and takes
    no further graph into it; so this one stays.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
    return graph


def _event_times(call: Callable[[], object], flush: Tensor, repeats: int) -> list[float]:
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in pairs:
        flush.zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize(flush.device)
    return [begin.elapsed_time(end) for begin, end in pairs]


def _wall_ms(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1e3


def _summary(times: list[float]) -> Timing:
    return Timing(statistics.median(times), min(times), len(times))

"""Several ranks of a model as threads of one process, with collectives between them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ThreadComm:
    """Collectives among threads; as strict as real ones: a rank that does not take part makes all fail."""

    def __init__(self, rank: int, world: int, barrier: threading.Barrier, slots: list[Tensor | None]) -> None:
        self.rank, self.world = rank, world
        self._barrier, self._slots = barrier, slots
        self.num_calls = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x)).sum(0).to(x.dtype)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange(x), dim=-1)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.num_calls += 1
        self._slots[self.rank] = x
        self._barrier.wait()
        everybody = [part.clone() for part in self._slots if part is not None]
        self._barrier.wait()
        assert len({part.shape for part in everybody}) == 1
        return everybody


def on_ranks(world: int, work: Callable[[ThreadComm], T]) -> list[T]:
    """Run `work` once on each rank; the results in the order of ranks."""
    barrier, slots = threading.Barrier(world, timeout=60), [None] * world
    comms = [ThreadComm(rank, world, barrier, slots) for rank in range(world)]

    def guarded(comm: ThreadComm) -> T:
        try:
            return work(comm)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(guarded, comm) for comm in comms]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]

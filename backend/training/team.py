"""Data-parallel training from the inside: what ranks agree on before a step, and what they add up.

Gradients, measures and router margins go between GPUs (NCCL); plans go between the hosts (gloo), which so
run ahead of their devices. One rank is a team of one, for which everything here does nothing.
"""

import argparse
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # documented there

from k3agent.backend.errors import BackendError, PeerLostError
from k3agent.backend.parallel import groups
from k3agent.backend.parallel.comm import GroupComm
from k3agent.backend.parallel.processes import RankProcesses, end_process

MEET_S = 120.0
"""Ranks that have not met after so long never will."""


@dataclass(frozen=True)
class Plan:
    """What all ranks do next. As a rank's wish: `is_over` counts from anybody, the rest from rank 0."""

    progress: float
    is_logged: bool
    is_saved: bool
    is_over: bool
    weight: float = 1.0
    """A wish: the sum of the loss weights of this rank's batch. A plan: its share of the sum over all."""


class Team:
    """This process among those that train one model together."""

    def __init__(self, comm: GroupComm | None = None) -> None:
        self._comm = comm
        self.rank, self.world = (comm.rank, comm.world) if comm else (0, 1)

    def agree(self, wish: Plan) -> Plan:
        """Rank 0's plan, the same on all ranks; returns when all have a batch."""
        if self._comm is None:
            return replace(wish, weight=1.0)
        orders = [wish.progress, wish.is_logged, wish.is_saved] if self.rank == 0 else [0.0] * 3
        progress, is_logged, is_saved, is_over, total = self.sums([*orders, wish.is_over, wish.weight])
        share = wish.weight / max(total, 1e-6)
        return Plan(progress, is_logged > 0, is_saved > 0, is_over > 0, share)

    def sums(self, values: list[float]) -> list[float]:
        """Sums over all ranks of numbers in host memory."""
        if self._comm is None:
            return values
        return self._comm.all_reduce(torch.tensor(values, dtype=torch.float64)).tolist()

    def add_up(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over all ranks."""
        if self._comm is not None:
            for x in tensors:
                self._comm.all_reduce(x)

    def gather(self, x: Tensor) -> Tensor:
        """The rows (second to last dimension) of all ranks, one below the other."""
        return x if self._comm is None else self._comm.all_gather(x.mT).mT

    def gather_flat(self, x: Tensor) -> Tensor:
        """The flat tensors of all ranks, one behind the other."""
        return x if self._comm is None else self._comm.all_gather(x)

    def to_experts(self, x: Tensor) -> Tensor:
        """Batches of all experts [E, C, Z] of this rank's tokens to those of this rank's experts,
        [E/W, W*C, Z], of all ranks' tokens in the order of ranks.
        """
        if self._comm is None:
            return x
        sent = self._comm.exchange(x.unflatten(0, (self.world, -1)))
        return sent.transpose(0, 1).flatten(1, 2)

    def from_experts(self, x: Tensor) -> Tensor:
        """The inverse of `to_experts`."""
        if self._comm is None:
            return x
        return self._comm.exchange(x.unflatten(1, (self.world, -1)).transpose(0, 1)).flatten(0, 1)

    def align(self, *tensors: Tensor) -> float:
        """Give everybody rank 0's tensors; returns the largest differences that this removed, summed over
        ranks. Waits for the device.
        """
        if self._comm is None:
            return 0.0
        worst = torch.zeros((), dtype=torch.float64, device=tensors[0].device)
        for x in tensors:
            before = x.clone()
            self._comm.broadcast(x)
            worst = torch.maximum(worst, (x - before).abs().max().double())
        return float(self._comm.all_reduce(worst))

    def time_sum_ms(self, x: Tensor) -> float:
        """Milliseconds that `add_up(x)` takes, for the log. Destroys `x`."""
        self.add_up(x)
        _finish_work(x.device)
        start = time.monotonic()
        self.add_up(x, x, x)
        _finish_work(x.device)
        return (time.monotonic() - start) / 3 * 1e3

    def leave(self) -> None:
        """Be alone from here on. All ranks are to leave together."""
        self._comm = None
        groups.leave_group()


def _finish_work(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _join(options: argparse.Namespace, store: TCPStore) -> Team:
    device, backend = torch.device("cpu"), "gloo"
    if options.device == "cuda":
        found = torch.cuda.device_count()
        if found < options.ranks:
            raise BackendError(
                f"rank {options.rank} sees {found} GPUs, --ranks {options.ranks} needs as many"
            )
        device, backend = torch.device("cuda", 0), "cpu:gloo,cuda:nccl"
    return Team(groups.join_group(store, options.rank, options.ranks, backend, device))


def lead(options: argparse.Namespace, processes: RankProcesses) -> Team:
    """Rank 0 meets the others, which have been started."""
    groups.set_environment()
    hint = "NCCL_DEBUG=INFO says more, NCCL_P2P_DISABLE=1 avoids direct copies between GPUs"
    message = f"the {options.ranks} ranks have not met after {MEET_S:.0f} s; {hint}"
    alarm = threading.Timer(MEET_S, end_process, (message,))
    alarm.daemon = True
    alarm.start()
    store = groups.open_store(options.ranks)
    processes.tell("meet", store.port)
    try:
        return _join(options, store)
    except (RuntimeError, PeerLostError) as error:
        processes.lose(f"the ranks did not meet: {error}")
    finally:
        alarm.cancel()


def join(options: argparse.Namespace, commands: Connection) -> Team:
    """A rank above 0 meets the others, once rank 0 is ready."""
    groups.set_environment()
    _, port = commands.recv()
    return _join(options, groups.join_store(options.ranks, port))

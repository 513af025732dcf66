"""Step `reduce`: sums over ranks as a decode and a prefill of K3 need them, by NCCL and by kernels of torch
that read the other cards' memory; called one after the other, and from a CUDA graph.

The kernels are those of symmetric memory that copy between two cards; the ones that let the switch add
(multicast) stay off, see `parallel/groups.py`.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from k3agent.backend.bench import rank_results as results
from k3agent.backend.parallel.comm import GroupComm
from k3agent.backend.parallel.symmetric import ONE_SHOT, TWO_SHOT, TorchMemory, agree

MODULE = "k3agent.backend.bench.rank_reduce"
WIDTH = 7168
TOKENS = (1, 8, 32, 256, 2048)
REPEATS, SECONDS = 200, 0.5
"""A measurement is so many calls, fewer when a call takes long."""
IN_A_GRAPH, MOST_IN_A_GRAPH = 56, 32
"""Calls that a graph holds, about those of a step of 16 layers of K3, and the most tokens of such a step."""
_LEAST = 2.0**-100
"""So many sums of sums stay within bf16."""

Timed = Callable[[Tensor], Tensor]


def time_us(call: Timed, x: Tensor, comm: GroupComm) -> float:
    """Microseconds of one call, the slowest rank's."""
    for _ in range(5):
        call(x)
    _settle(x.device)
    begun = time.perf_counter()
    call(x)
    _settle(x.device)
    once = torch.tensor((time.perf_counter() - begun) * 1e6, device=x.device)
    # all are to make as many calls
    count = max(3, min(REPEATS, int(SECONDS * 1e6 / max(float(comm.all_reduce(once)), 1.0))))
    begun = time.perf_counter()
    for _ in range(count):
        call(x)
    _settle(x.device)
    mine = (time.perf_counter() - begun) / count * 1e6
    return -comm.least(round(-mine * 100)) / 100


def fill(x: Tensor, rank: int) -> None:
    """Numbers that differ by rank and by place."""
    places = torch.arange(x.numel(), device=x.device) % 8 + 1
    x.copy_((places * (rank + 1) * _LEAST).view(x.shape))


def is_sum_of_sums(found: Tensor, x: Tensor, world: int) -> bool:
    """Is `found` what the last of a graph's calls must give after `fill`? Those that write into `x` add up
    what the one before has left there; with more than two ranks they round."""
    expected = torch.empty_like(x)
    fill(expected, world * (world + 1) // 2 - 1)
    count = IN_A_GRAPH - 1 if found.data_ptr() == x.data_ptr() else 0
    expected = (expected.double() * float(world) ** count).to(x.dtype)
    if world == 2:
        return torch.equal(found, expected)
    return torch.allclose(found.double(), expected.double(), rtol=0.5, atol=0.0)


def time_in_graph_us(call: Timed, x: Tensor, comm: GroupComm) -> tuple[float, bool]:
    """Microseconds of one call in a CUDA graph of many, the slowest rank's; and whether it adds up."""
    graph, found = torch.cuda.CUDAGraph(), x
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(IN_A_GRAPH):
            found = call(x)
    fill(x, comm.rank)
    _settle(x.device)
    comm.least(0)  # all have theirs, and have filled it, before anybody replays
    graph.replay()
    is_right = bool(comm.least(int(is_sum_of_sums(found, x, comm.world))))
    # repeated sums of a tensor grow; zeros do not
    x.zero_()
    _settle(x.device)
    comm.least(0)

    def replay(value: Tensor) -> Tensor:
        graph.replay()
        return value

    return time_us(replay, x, comm) / IN_A_GRAPH, is_right


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def shown(us: float, x: Tensor, world: int) -> str:
    """Time, and the bandwidth of each card's link that a ring would need."""
    moved = 2 * (world - 1) / world * x.nbytes
    return f"{us:.1f} µs, {moved / us / 1e3:.2f} GB/s"


def add_in_graph(call: Timed, x: Tensor, comm: GroupComm, name: str, table: results.Table | None) -> None:
    """A row of the same in a graph, where a step of so many tokens has one."""
    if x.device.type != "cuda" or x.numel() > MOST_IN_A_GRAPH * WIDTH:
        return
    us, is_right = time_in_graph_us(call, x, comm)
    if table is not None:
        table.add(f"{name}, in a graph", _name(comm), shown(us, x, comm.world), is_right)


def by_library(comm: GroupComm, device: torch.device, table: results.Table | None) -> dict[int, float]:
    """NCCL or gloo; microseconds by number of tokens."""
    name, found = "gloo" if device.type == "cpu" else "NCCL", dict[int, float]()
    for tokens in TOKENS:
        x = torch.ones(tokens, WIDTH, dtype=torch.bfloat16, device=device) / 1024
        is_sum = bool((comm.all_reduce(x.clone()) == x * comm.world).all())
        # repeated sums of a tensor grow; zeros do not
        found[tokens], what = (
            time_us(comm.all_reduce, torch.zeros_like(x), comm),
            f"{name}, {tokens} x {WIDTH} bf16",
        )
        if table is not None:
            table.add(what, _name(comm), shown(found[tokens], x, comm.world), is_sum)
        add_in_graph(comm.all_reduce, torch.zeros_like(x), comm, what, table)
    return found


def by_symmetric_memory(
    comm: GroupComm, device: torch.device, table: results.Table | None, beside: dict[int, float]
) -> None:
    """Kernels of torch over memory that all cards see: alone, and with the copies that the engine needs."""
    group = torch.distributed.group.WORLD
    assert group is not None
    memories = [TorchMemory(group, device, kernel) for kernel in (ONE_SHOT, TWO_SHOT)]
    try:
        buffer = memories[0].allocate(max(TOKENS) * WIDTH * 2)
    except RuntimeError as error:
        # the same on all ranks, and nothing was exchanged
        if table is not None and device.type == "cuda":
            table.fail("symmetric memory", _name(comm), error)
        elif table is not None:
            table.add("symmetric memory", _name(comm), f"not run: {error}")
        return
    memories[0].meet(buffer)
    rows = buffer.view(torch.bfloat16)
    small = agree(TorchMemory(group, device), comm.rank, comm.world, comm.least)
    if small is None and table is not None:
        table.fail("sums as the engine makes them", _name(comm), "no symmetric memory, see the log")
    for tokens in TOKENS:
        x = rows[: tokens * WIDTH]
        for memory in memories:
            add_row(memory.add, x, comm, f"{memory.kernel}, {tokens} x {WIDTH} bf16", table, beside[tokens])
        own = torch.zeros(tokens, WIDTH, dtype=torch.bfloat16, device=device)
        if small is not None and small.takes(own):
            name = f"symmetric memory as the engine uses it, {tokens} x {WIDTH} bf16"
            add_row(small.add, own, comm, name, table, beside[tokens])


def add_row(
    call: Timed, x: Tensor, comm: GroupComm, name: str, table: results.Table | None, nccl_us: float
) -> None:
    """Check and time one kind of sum, and the same in a graph."""
    x.fill_(1 / 1024)
    torch.cuda.synchronize(x.device)
    comm.least(0)  # all have filled theirs before anybody reads
    is_sum = bool((call(x) == comm.world / 1024).all())
    comm.least(0)
    x.zero_()
    us = time_us(call, x, comm)
    if table is not None:
        value = f"{shown(us, x, comm.world)}, {nccl_us / us:.2f} times NCCL's rate"
        table.add(name, _name(comm), value, is_sum)
    add_in_graph(call, x, comm, name, table)


def _name(comm: GroupComm) -> str:
    return f"{comm.world} ranks"


def work(options: argparse.Namespace, comm: GroupComm) -> int:
    device = results.device_of(comm.rank, options)
    table = results.Table("reduce", options.out, options.device) if comm.rank == 0 else None
    beside = by_library(comm, device, table)
    by_symmetric_memory(comm, device, table, beside)
    return 0 if table is None else table.status


def main(arguments: list[str]) -> int:
    return results.run_on_all(MODULE, "reduce", __doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

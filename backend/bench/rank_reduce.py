"""Step `reduce`: sums over ranks as a decode and a prefill of K3 need them, by NCCL and by kernels of torch
that read the other cards' memory; called one after the other, and from a CUDA graph.

The kernels are those of symmetric memory that copy between two cards; the ones that let the switch add
(multicast) stay off, see `parallel/groups.py`.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from k3agent.backend.bench import rank_results as results
from k3agent.backend.parallel.comm import GroupComm

MODULE = "k3agent.backend.bench.rank_reduce"
WIDTH = 7168
TOKENS = (1, 8, 32, 256, 2048)
KERNELS = ("one_shot_all_reduce", "two_shot_all_reduce_")
MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
REPEATS, SECONDS = 200, 0.5
"""A measurement is so many calls, fewer when a call takes long."""
IN_A_GRAPH, MOST_IN_A_GRAPH = 56, 32
"""Calls that a graph holds, as many as a step of 16 layers has, and the most tokens of such a step."""

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


def time_in_graph_us(call: Timed, x: Tensor, comm: GroupComm) -> float:
    """Microseconds of one call in a CUDA graph of many, the slowest rank's."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(IN_A_GRAPH):
            call(x)
    comm.least(0)  # all have theirs before anybody replays

    def replay(value: Tensor) -> Tensor:
        graph.replay()
        return value

    return time_us(replay, x, comm) / IN_A_GRAPH


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
    us = time_in_graph_us(call, x, comm)
    if table is not None:
        table.add(f"{name}, in a graph", _name(comm), shown(us, x, comm.world))


def by_library(comm: GroupComm, device: torch.device, table: results.Table | None) -> dict[int, float]:
    """NCCL or gloo; microseconds by number of tokens."""
    name, found = "gloo" if device.type == "cpu" else "NCCL", dict[int, float]()
    for tokens in TOKENS:
        x = torch.ones(tokens, WIDTH, dtype=torch.bfloat16, device=device) / 1024
        is_sum = bool((comm.all_reduce(x.clone()) == x * comm.world).all())
        # repeated sums of a tensor grow; zeros do not
        what = f"{name}, {tokens} x {WIDTH} bf16"
        found[tokens] = time_us(comm.all_reduce, torch.zeros_like(x), comm)
        if table is not None:
            table.add(what, _name(comm), shown(found[tokens], x, comm.world), is_sum)
        add_in_graph(comm.all_reduce, torch.zeros_like(x), comm, what, table)
    return found


def by_symmetric_memory(
    comm: GroupComm, device: torch.device, table: results.Table | None, beside: dict[int, float]
) -> None:
    """Kernels of torch over memory that all cards see."""
    import torch.distributed._symmetric_memory as symmetric  # lazy: only where there are GPUs

    group = torch.distributed.group.WORLD
    assert group is not None
    # the others may use what the switch adds; what torch has chosen itself is not among those it lets choose
    try:
        if symmetric.get_backend(device) != "CUDA":
            symmetric.set_backend("CUDA")
    except RuntimeError as error:
        # the same on all ranks, and nothing was exchanged
        if table is not None:
            found = symmetric.get_backend(device)
            table.fail("symmetric memory", _name(comm), f"torch has {found}: {error}")
        return
    memory = symmetric.empty(max(TOKENS) * WIDTH, dtype=torch.bfloat16, device=device)
    symmetric.rendezvous(memory, group.group_name)
    for tokens in TOKENS:
        x = memory[: tokens * WIDTH]
        for name in KERNELS:
            kernel = getattr(torch.ops.symm_mem, name)

            def call(value: Tensor, kernel: Callable[..., Tensor] = kernel) -> Tensor:
                return kernel(value, "sum", group.group_name)

            x.fill_(1 / 1024)
            torch.cuda.synchronize(device)
            comm.least(0)  # all have filled theirs before anybody reads
            is_sum = bool((call(x) == comm.world / 1024).all())
            comm.least(0)
            x.zero_()
            what, us = f"{name}, {tokens} x {WIDTH} bf16", time_us(call, x, comm)
            if table is not None:
                value = f"{shown(us, x, comm.world)}, {beside[tokens] / us:.2f} times NCCL's rate"
                table.add(what, _name(comm), value, is_sum)
            add_in_graph(call, x, comm, what, table)


def _name(comm: GroupComm) -> str:
    return f"{comm.world} ranks"


def work(options: argparse.Namespace, comm: GroupComm) -> int:
    device = results.device_of(comm.rank, options)
    table = results.Table("reduce", options.out, options.device) if comm.rank == 0 else None
    beside = by_library(comm, device, table)
    if device.type == "cuda" and os.environ.get(MULTICAST) == "1":
        by_symmetric_memory(comm, device, table, beside)
    elif table is not None:
        why = "no GPU" if device.type == "cpu" else f"{MULTICAST} is not 1"
        table.add("symmetric memory", _name(comm), f"not run: {why}")
    return 0 if table is None else table.status


def main(arguments: list[str]) -> int:
    return results.run_on_all(MODULE, "reduce", __doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

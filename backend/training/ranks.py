"""Data-parallel training from the outside: the processes of ranks above 0, and what each rank gets.

Rank 0 is the command itself. Nothing here loads torch: feed workers are to start before it, and a rank's GPU
must be chosen before CUDA starts.
"""

import argparse
import os
import shutil
from collections.abc import MutableMapping
from pathlib import Path

from k3agent.backend.parallel.processes import RankProcesses, end_process

MODULE = "k3agent.backend.training.rank"
SEEDS_PER_RANK = 1000
"""Seeds of a rank's feed workers, those that replace dead ones included."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_of(rank: int, world: int, visible: str | None) -> str:
    """What `CUDA_VISIBLE_DEVICES` is to be for a rank: its own GPU first, the others of the run behind.

    Every rank then computes on GPU 0 of its own count, for which kernels lie compiled in the cache, and NCCL
    still sees its peers.
    """
    shown = visible.split(",") if visible else [str(i) for i in range(world)]
    if len(shown) < world:
        raise ValueError(f"{VISIBLE}={visible} shows {len(shown)} GPUs, --ranks {world} needs as many")
    return ",".join(shown[rank:world] + shown[:rank])


def choose_gpu(options: argparse.Namespace, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make this rank's GPU the first. One rank, or a CPU, is left alone."""
    if options.ranks > 1 and options.device == "cuda":
        environment[VISIBLE] = gpus_of(options.rank, options.ranks, environment.get(VISIBLE))


def cache_of(options: argparse.Namespace) -> Path:
    """The folder of compiled kernels of this rank: two that write into one could disturb each other."""
    cache: Path = options.cache
    return cache.with_name(f"{cache.name}-rank{options.rank}") if options.rank else cache


def num_workers_of(options: argparse.Namespace) -> int:
    """This rank's part of the feed workers, at least one."""
    share, rest = divmod(options.workers, options.ranks)
    return max(share + (options.rank < rest), 1)


def start_ranks(options: argparse.Namespace, started: float) -> RankProcesses:
    """Start ranks 1 and up, each with a copy of the compiled kernels. A rank that dies ends this process."""
    for rank in range(1, options.ranks):
        target = cache_of(argparse.Namespace(cache=options.cache, rank=rank))
        if options.cache.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(options.cache, target)
    processes = RankProcesses(MODULE, options.ranks, end_process)
    processes.tell(options, started)
    return processes

"""Compiles what calls would launch, on all cores at once, and launches nothing.

Kernels are compiled one after the other where they are first launched, each of which takes seconds on one
core. A pass made within `compiling_ahead` leaves them compiled, for this process and in Triton's cache on
disk. What such a pass computes is of no meaning: what kernels would have written is not there.
"""

# pyright: reportMissingImports=none, reportAttributeAccessIssue=none
# Triton is optional

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from k3agent.backend.kernels.gpu import is_interpreting, runs_triton

MOST_WORKERS = 32


def compiles(device: torch.device) -> bool:
    """Does Triton compile for this device? Its interpreter does not."""
    return runs_triton(device) and not is_interpreting()


@contextmanager
def compiling_ahead(device: torch.device) -> Iterator[None]:
    """Within it launches only compile; at its end all is compiled. A kernel that does not compile is told
    when it is launched for real. Does nothing where nothing is compiled: calls then run as ever."""
    if not compiles(device):
        yield
        return
    from triton import AsyncCompileMode
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)

    workers = max(1, min(MOST_WORKERS, (os.cpu_count() or 2) - 1))
    with ThreadPoolExecutor(workers) as pool, AsyncCompileMode(pool, ignore_errors=True):
        JITFunction.run = compile_only
        try:
            yield
        finally:
            JITFunction.run = run

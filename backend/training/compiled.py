"""Compiled kernels: fewer variants to try, all compiled side by side, and packed up for the next machine.

The KDA kernels choose among dozens of launch configurations each, and compiling them one after the other
takes minutes. Here each kernel keeps a few, and processes compile disjoint shares of them into the cache on
disk beforehand.
"""

import logging
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)

MAX_CONFIGS = 4
KERNEL_MODULES = ("fla.ops.kda", "fla.ops.common", "fla.ops.gla", "fla.ops.utils")
ARCHIVE = "cache.tar.xz"
PART_SIZE_BYTES = 15 * 1024 * 1024
INFINITE = [float("inf")] * 3


def autotuners() -> Iterator[Any]:
    """The autotuned kernels that KDA may use."""
    import fla.ops.kda  # lazy: needs triton  # pyright: ignore[reportMissingImports]
    from triton.runtime.autotuner import Autotuner  # lazy: as above  # pyright: ignore[reportMissingImports]

    assert fla.ops.kda
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(KERNEL_MODULES) or module is None:
            continue
        for value in list(vars(module).values()):
            kernel = value
            # Kernels with heuristics wrap the autotuner.
            while not isinstance(kernel, Autotuner) and hasattr(kernel, "fn"):
                kernel = kernel.fn
            if isinstance(kernel, Autotuner) and id(kernel) not in seen:
                seen.add(id(kernel))
                yield kernel


def likely(configs: list[Any], limit: int) -> list[Any]:
    """At most `limit` configurations: usual numbers of warps and stages, spread evenly over the rest."""

    def usual(config: Any) -> bool:
        return config.num_warps in (2, 4, 8) and config.num_stages in (2, 3)

    preferred = sorted((config for config in configs if usual(config)), key=str)
    if len(preferred) < min(limit, 2):
        preferred = sorted(configs, key=str)
    if len(preferred) <= limit:
        return preferred
    return [preferred[i * (len(preferred) - 1) // (limit - 1)] for i in range(limit)]


def trim_autotuners(limit: int = MAX_CONFIGS) -> dict[str, int]:
    """Keep few configurations of each KDA kernel; returns how many, by kernel."""
    left: dict[str, int] = {}
    for tuner in autotuners():
        tuner.configs = likely(tuner.configs, limit)
        left[tuner.base_fn.__name__] = len(tuner.configs)
    return left


def kda_inputs(num_tokens: int, heads: int, width: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Random inputs of the KDA kernel with the shapes and dtypes of training."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device=device)
        return values.to(dtype).requires_grad_()

    inputs = {name: random(num_tokens, heads, width) for name in "qkvz"}
    for name in "qk":
        inputs[name] = torch.nn.functional.normalize(inputs[name].detach(), dim=-1).requires_grad_()
    wide = torch.float32
    return {
        **inputs,
        "b": random(num_tokens, heads),
        "A_log": random(heads, dtype=wide),
        "dt_bias": random(heads * width, dtype=wide),
    }


def even_offsets(num_tokens: int, length: int) -> torch.Tensor:
    edges = [*range(0, num_tokens, length), num_tokens]
    assert all(a < b for a, b in pairwise(edges))
    return torch.tensor(edges, dtype=torch.int64)


def compile_share(share: int, num_shares: int, num_tokens: int, shared: int, heads: int, width: int) -> None:
    """Compile this share of all configurations by running KDA once, forward and backward."""
    from k3agent.backend.training.recurrence import Documents, kda  # lazy: only in these processes

    trim_autotuners()
    for tuner in autotuners():
        tuner.cache_results = False
        order = {str(config): i for i, config in enumerate(tuner.configs)}
        mine = {name for name, i in order.items() if i % num_shares == share % len(order)}
        original = tuner._bench

        def bench(
            *args: Any, config: Any, original: Any = original, mine: set[str] = mine, **meta: Any
        ) -> list[float]:
            return original(*args, config=config, **meta) if str(config) in mine else INFINITE

        def run_once(call: Any, quantiles: Any = None) -> list[float]:
            call()
            return [1.0] * 3

        tuner._bench = bench
        tuner.__dict__["do_bench"] = run_once
    device = torch.device("cuda")
    inputs = kda_inputs(num_tokens, heads, width, device)
    offsets = even_offsets(num_tokens, shared or 700)
    out = kda(**inputs, bound=-5.0, documents=Documents.of(offsets, device, shared))
    out.float().sum().backward()
    torch.cuda.synchronize()


def start_compiling(
    num_shares: int, num_tokens: int, shared: int, heads: int, width: int
) -> list[subprocess.Popen[bytes]]:
    """Processes that compile all configurations of the KDA kernels, a share each. See `wait_all`."""
    code = (
        "import sys; from k3agent.backend.training.compiled import compile_share;"
        "compile_share(*map(int, sys.argv[1:]))"
    )
    environment = {**os.environ, "FLA_CACHE_RESULTS": "0"}
    processes = []
    for share in range(num_shares):
        numbers = map(str, (share, num_shares, num_tokens, shared, heads, width))
        processes.append(subprocess.Popen([sys.executable, "-P", "-c", code, *numbers], env=environment))
    return processes


def wait_all(processes: list[subprocess.Popen[bytes]], timeout_s: float = 150.0) -> int:
    """Wait for the processes; returns how many failed. What they miss is compiled later, one by one."""
    end = time.monotonic() + timeout_s
    failed = 0
    for process in processes:
        try:
            failed += process.wait(max(end - time.monotonic(), 0.1)) != 0
        except subprocess.TimeoutExpired:
            process.kill()
            failed += 1
    return failed


def pack_cache(cache: Path, target: Path) -> list[Path]:
    """Pack the cache folder into parts that fit through the door, `cache.tar.xz.part0` and on."""
    target.mkdir(parents=True, exist_ok=True)
    archive = cache.parent / ARCHIVE
    with tarfile.open(archive, "w:xz", preset=1) as tar:
        tar.add(cache, arcname=".")
    data, parts = archive.read_bytes(), []
    for number, start in enumerate(range(0, len(data), PART_SIZE_BYTES)):
        part = target / f"{ARCHIVE}.part{number}"
        part.write_bytes(data[start : start + PART_SIZE_BYTES])
        parts.append(part)
    return parts


def unpack_cache(source: Path, cache: Path) -> bool:
    """Unpack the parts in `source` into the cache folder; false where there are none."""
    parts = sorted(source.glob(f"{ARCHIVE}.part*"), key=lambda part: int(part.suffix.removeprefix(".part")))
    if not parts:
        log.warning("no %s.part* in %s: kernels are compiled anew", ARCHIVE, source)
        return False
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache.parent / f"received-{ARCHIVE}"
    archive.write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(cache, filter="data")
    return True

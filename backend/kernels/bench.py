"""Times every implementation of every operation: `python -m k3agent.backend.kernels.bench`.

Each row says operation, shape, implementation, the median of at least 20 calls with a cold L2, the same from
a CUDA graph, the floor of the hardware, and how many times the floor it takes. JSON and Markdown.
"""

import argparse
import gc
import json
import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from k3agent.backend.kernels import cases, registry
from k3agent.backend.kernels.ahead import compiling_ahead
from k3agent.backend.kernels.cases import Case, Setting
from k3agent.backend.kernels.gpu import failures_of_trials, gpu_name, has_triton
from k3agent.backend.kernels.pinned import Tuned
from k3agent.backend.kernels.timing import REPEATS, measure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ceiling:
    """What a GPU reached in plain copies and bf16 products; floors are taken from these."""

    bytes_per_s: float
    flops_per_s: float


CEILINGS = {"H200": Ceiling(4.3e12, 790e12), "H100": Ceiling(3.0e12, 790e12)}
"""By part of the GPU's name; measured with PyTorch, bytes read and written both counted."""


@dataclass(frozen=True)
class Row:
    """One line of the table; times in microseconds."""

    op: str
    shape: str
    implementation: str
    median_us: float
    least_us: float
    graph_us: float | None
    floor_us: float | None
    times_floor: float | None
    error: float | None

    @property
    def best_us(self) -> float:
        return min(self.median_us, self.graph_us or self.median_us)


def ceiling_of(gpu: str) -> Ceiling | None:
    """The ceiling of a GPU by its name, if it is known."""
    return next((ceiling for part, ceiling in CEILINGS.items() if part in gpu), None)


def floor_us(case: Case, ceiling: Ceiling | None) -> float | None:
    """The least time that moving the bytes and doing the products can take, whichever is longer."""
    if ceiling is None or not (case.num_bytes or case.num_flops):
        return None
    return max(case.num_bytes / ceiling.bytes_per_s, case.num_flops / ceiling.flops_per_s) * 1e6


def run_case(case: Case, device: torch.device, repeats: int) -> Iterator[Row]:
    """Time each implementation of a case; one that fails is logged and left out."""
    floor = floor_us(case, ceiling_of(gpu_name(device)))
    for name, call in case.calls.items():
        try:
            if name == registry.TRITON:
                with compiling_ahead(device):
                    call()
            eager = measure(call, device, repeats=repeats)
            captured = None
            if device.type == "cuda" and name in case.graphs:
                captured = measure(call, device, graph=True, repeats=repeats).median_ms * 1e3
            error = case.error(name) if case.error is not None else None
        except failures_of_trials() as failure:
            log.warning("%s %s %s: %r", case.op, case.shape, name, failure)
            continue
        best = min(eager.median_ms * 1e3, captured or float("inf"))
        times = best / floor if floor else None
        times_us = (eager.median_ms * 1e3, eager.least_ms * 1e3, captured)
        yield Row(case.op, case.shape, name, *times_us, floor, times, error)


def run(
    ops: Sequence[str],
    setting: Setting,
    repeats: int = REPEATS,
    shape: str = "",
    deadline: float = math.inf,
) -> Iterator[Row]:
    """Time the operations, case by case, until the deadline."""
    for op in ops:
        for case in cases.cases_of(op, setting):
            if time.monotonic() > deadline:
                log.warning("no time is left for %s %s", op, case.shape)
                return
            if shape in case.shape:
                yield from run_case(case, setting.device, repeats)
            del case
            gc.collect()
            if setting.device.type == "cuda":
                torch.cuda.empty_cache()


def faster_ops(rows: Sequence[Row]) -> list[str]:
    """Operations where Triton beat the plain form in the geometric mean over the cases that have both, each
    in a graph where it can be: what `--kernels auto` takes."""
    found: dict[str, float] = {}
    times = {(row.op, row.shape, row.implementation): row for row in rows}
    for (op, shape, name), row in times.items():
        fast = times.get((op, shape, registry.TRITON))
        if name == registry.REFERENCE and fast is not None:
            found[op] = found.get(op, 0.0) + math.log(fast.best_us / row.best_us)
    return sorted(op for op, logarithm in found.items() if logarithm < 0)


def environment(device: torch.device) -> dict[str, str]:
    """The versions and the device that a table belongs to."""
    found = {"device": gpu_name(device), "torch": torch.__version__, "python": sys.version.split()[0]}
    if has_triton():
        found["triton"] = version("triton")
    return found


def markdown(rows: Sequence[Row], versions: dict[str, str]) -> str:
    """The table as Markdown."""
    head = ("operation", "shape", "implementation", "us", "us in a graph", "floor us", "x floor", "error")
    lines = [", ".join(f"{name} {value}" for name, value in versions.items()), "", _line(head)]
    lines.append(_line(["---"] * len(head)))
    for row in rows:
        numbers = (row.median_us, row.graph_us, row.floor_us, row.times_floor)
        cells = ["" if number is None else f"{number:.3g}" for number in numbers]
        error = "" if row.error is None else f"{row.error:.1e}"
        lines.append(_line([row.op, row.shape, row.implementation, *cells, error]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.kernels.bench", description=__doc__)
    parser.add_argument("ops", nargs="*", help="operations to time; none: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="shapes for a test of the command itself")
    parser.add_argument("--no-peers", action="store_true", help="only k3agent's own implementations")
    parser.add_argument("--no-fla", action="store_true", help="not fla, which tunes itself for minutes")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--total", type=float, default=3600.0, help="seconds, at most (default: 3600)")
    parser.add_argument("--shape", default="", help="only cases whose shape contains this")
    parser.add_argument(
        "--faster", type=Path, help="note in this file of tuned kernels what Triton is faster at"
    )
    parser.add_argument("--json", type=Path, help="write the rows here as JSON")
    parser.add_argument("--markdown", type=Path, help="write the table here as well")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when something was timed."""
    options = _arguments(argv)
    cases.load()
    unknown = [op for op in options.ops if op not in cases.ops()]
    if unknown:
        print(f"no operation {', '.join(unknown)}. Known: {', '.join(cases.ops())}.", file=sys.stderr)
        return 2
    device = torch.device(options.device)
    setting = Setting(device, options.tiny, not options.no_peers, not options.no_fla)
    rows: list[Row] = []
    ops, deadline = options.ops or cases.ops(), time.monotonic() + options.total
    for row in run(ops, setting, options.repeats, options.shape, deadline):
        rows.append(row)
        graph = "" if row.graph_us is None else f", in a graph {row.graph_us:.1f} us"
        print(f"{row.op} {row.shape} {row.implementation}: {row.median_us:.1f} us{graph}", file=sys.stderr)
        _write(rows, options, device)
    print(markdown(rows, environment(device)))
    faster = faster_ops(rows)
    print(f"Triton is faster at: {', '.join(faster) or 'none'}")
    if options.faster:
        found = Tuned.read(options.faster) if options.faster.exists() else Tuned()
        kept = set(found.faster.get(gpu_name(device), [])) - {row.op for row in rows}
        found.faster[gpu_name(device)] = sorted(kept | set(faster))
        found.write(options.faster)
    return 0 if rows else 1


def _write(rows: Sequence[Row], options: argparse.Namespace, device: torch.device) -> None:
    """After each row: a run that is cut off has then left what it had."""
    if options.markdown:
        options.markdown.write_text(markdown(rows, environment(device)))
    if options.json:
        content = {"environment": environment(device), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    raise SystemExit(main())

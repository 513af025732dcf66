"""Tries configurations of one operation and prints the row for its table: `python -m
k3agent.backend.kernels.tune OP`.

For each case of the operation in `kernels.cases` the candidates are timed in a CUDA graph; one that does not
compile, does not fit the GPU or errs more than the pinned one is left out.
"""

import argparse
import itertools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence

import torch

from k3agent.backend.kernels import cases, gpu, pinned, registry
from k3agent.backend.kernels.cases import Case, Setting
from k3agent.backend.kernels.gpu import gpu_name, runs_triton
from k3agent.backend.kernels.timing import measure

log = logging.getLogger(__name__)

MOST_ERROR_GROWTH = 4.0
"""A candidate may err so many times as much as the pinned configuration."""


def combinations(candidates: Mapping[str, Sequence[int | str]]) -> Iterator[dict[str, int | str]]:
    """Every combination of the candidates of each value."""
    for values in itertools.product(*candidates.values()):
        yield dict(zip(candidates, values, strict=True))


def time_candidate(
    case: Case, table: str, values: pinned.Values, device: torch.device
) -> tuple[float, float | None]:
    """Microseconds and error of the Triton implementation under these values."""
    with pinned.override(table, values):
        elapsed = measure(case.calls[registry.TRITON], device, graph=device.type == "cuda").median_ms * 1e3
        return elapsed, case.error(registry.TRITON) if case.error is not None else None


def tune_case(case: Case, table: str, device: torch.device) -> tuple[pinned.Values, float] | None:
    """The fastest configuration for a case and its time; None when none ran."""
    try:
        _, pinned_error = time_candidate(case, table, case_values(case, table, device), device)
    except gpu.failures() as error:  # a pinned row may not suit a new GPU
        log.warning("the pinned configuration fails on %s: %s", case.shape, error)
        pinned_error = None
    best: tuple[pinned.Values, float] | None = None
    for values in combinations(pinned.candidates(table)):
        try:
            elapsed, error = time_candidate(case, table, values, device)
        except gpu.failures() as failure:
            print(f"  {values}: {type(failure).__name__}", file=sys.stderr)
            continue
        print(f"  {values}: {elapsed:.1f} us, error {error}", file=sys.stderr)
        if pinned_error and error and error > MOST_ERROR_GROWTH * pinned_error:
            continue
        if best is None or elapsed < best[1]:
            best = values, elapsed
    return best


def case_values(case: Case, table: str, device: torch.device) -> pinned.Values:
    """What the table says for a case."""
    return pinned.pick(table, gpu_name(device), **case.limits)


def row_text(values: pinned.Values, gpu: str, limits: Mapping[str, int]) -> str:
    """The row as it stands in a table."""
    most = ", ".join(f'"{name}": {limit}' for name, limit in limits.items())
    content = ", ".join(f'"{name}": {value!r}' for name, value in values.items())
    return f'Row({{{content}}}, gpu="{gpu}", most={{{most}}}),'


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.kernels.tune", description=__doc__)
    parser.add_argument("op", help="operation, as in the table of kernels.bench")
    parser.add_argument("--table", help="which of its tables of configurations; none: the one of its name")
    parser.add_argument("--shape", default="", help="only cases whose shape contains this")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="shapes for a test of the command itself")
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    if not runs_triton(device):
        print(f"Triton does not run on {device}; nothing to tune.", file=sys.stderr)
        return 1
    cases.load()
    registry.load_triton(options.op)
    table = options.table or options.op
    for case in cases.cases_of(options.op, Setting(device, options.tiny, peers=False)):
        if options.shape not in case.shape or registry.TRITON not in case.calls:
            continue
        print(f"{options.op} {case.shape}", file=sys.stderr)
        best = tune_case(case, table, device)
        if best is not None:
            print(f"# {case.shape}: {best[1]:.1f} us")
            print(row_text(best[0], gpu_name(device), case.limits))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

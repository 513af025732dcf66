"""Tries configurations of one operation and prints the row for its table: `python -m
k3agent.backend.kernels.tune OP`.

For each case of the operation in `kernels.cases` one value of the pinned configuration after another is
changed, and each candidate timed in a CUDA graph; one that does not compile, does not fit the GPU or errs
much more than the pinned one is left out.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from k3agent.backend.kernels import cases, gpu, pinned, registry
from k3agent.backend.kernels.cases import Case, Setting
from k3agent.backend.kernels.gpu import gpu_name, runs_triton
from k3agent.backend.kernels.timing import measure

MOST_ERROR_GROWTH = 4.0
"""A candidate may err so many times as much as the pinned configuration."""
ENOUGH_GAIN = 0.99
"""Another round is made when the last one got the time below this part of what it was."""


def changes(
    values: pinned.Values, candidates: Mapping[str, Sequence[int | str]], name: str
) -> Iterator[pinned.Values]:
    """The configuration with another candidate for one of its values."""
    for candidate in candidates[name]:
        if candidate != values[name]:
            yield {**values, name: candidate}


def time_candidate(
    case: Case, table: str, values: pinned.Values, device: torch.device
) -> tuple[float, float | None]:
    """Microseconds and error of the Triton implementation under these values."""
    with pinned.override(table, values):
        elapsed = (
            measure(
                case.calls[registry.TRITON],
                device,
                graph=device.type == "cuda" and registry.TRITON in case.graphs,
            ).median_ms
            * 1e3
        )
        return elapsed, case.error(registry.TRITON) if case.error is not None else None


@dataclass
class Search:
    """The best configuration of one case so far, starting from the pinned one."""

    case: Case
    table: str
    device: torch.device
    best: pinned.Values
    time_us: float = math.inf
    most_error: float = math.inf

    def try_out(self, values: pinned.Values) -> None:
        """Time a configuration and keep it when it is faster; one that fails or errs too much is left out."""
        try:
            elapsed, error = time_candidate(self.case, self.table, values, self.device)
        except gpu.failures() as failure:
            print(f"  {dict(values)}: {type(failure).__name__}", file=sys.stderr)
            return
        print(f"  {dict(values)}: {elapsed:.1f} us, error {error}", file=sys.stderr)
        if self.most_error == math.inf and error:
            self.most_error = MOST_ERROR_GROWTH * error
        if elapsed < self.time_us and (error or 0.0) <= self.most_error:
            self.best, self.time_us = values, elapsed

    def descend(self, deadline: float) -> None:
        """Change one value after another, and go round until nothing gets better or the time is over."""
        self.try_out(self.best)
        candidates = pinned.candidates(self.table)
        while True:
            before = self.time_us
            for name in candidates:
                for values in list(changes(self.best, candidates, name)):
                    if time.monotonic() > deadline:
                        return
                    self.try_out(values)
            if not self.time_us < before * ENOUGH_GAIN:
                return


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
    parser.add_argument("--seconds", type=float, default=120.0, help="at most for each case (default: 120)")
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
        search = Search(case, table, device, case_values(case, table, device))
        search.descend(time.monotonic() + options.seconds)
        if search.time_us < math.inf:
            print(f"# {case.shape}: {search.time_us:.1f} us")
            print(row_text(search.best, gpu_name(device), case.limits), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Tries configurations of operations and keeps the best: `python -m k3agent.backend.kernels.tune OP..`.

Cases of an operation that share a row of its tables are one search, in which one value of the configuration
after another is changed and each candidate timed in a CUDA graph; what counts is the geometric mean over the
cases. Candidates are compiled side by side. One that does not compile, does not fit the GPU or errs much more
than the pinned one is left out. With --write the rows go into a file that `kernels.pinned` reads, after each
search.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch

from k3agent.backend.kernels import cases, gpu, pinned, registry
from k3agent.backend.kernels.ahead import compiles, compiling_ahead
from k3agent.backend.kernels.cases import Case, Setting
from k3agent.backend.kernels.gpu import gpu_name, runs_triton
from k3agent.backend.kernels.pinned import Row, Tuned
from k3agent.backend.kernels.timing import measure

MOST_ERROR_GROWTH = 4.0
"""A candidate may err so many times as much as the pinned configuration."""
ENOUGH_GAIN = 0.99
"""Another round is made when the last one got the time below this part of what it was."""
TABLES = {"moe_experts": ("moe_experts", "moe_gate_up", "moe_down")}
"""Operations with more than the table of their name."""
AMOUNTS = ("choices", "rows", "sequences", "tokens")
"""What of a shape is an upper limit in a row; the rest says which model it is."""
DERIVED = {"moe_experts": ("each", "rows")}
"""What follows from the rest, or from another table."""
REPEATS = 15

Config = Mapping[str, pinned.Values]
"""By table."""


def neighbours(config: Config, table: str, name: str) -> Iterator[Config]:
    """The configuration with another candidate for one of its values."""
    for candidate in pinned.candidates(table)[name]:
        if candidate != config[table][name]:
            yield {**config, table: {**config[table], name: candidate}}


def all_neighbours(config: Config) -> Iterator[Config]:
    """Those for every value."""
    for table, values in config.items():
        for name in values:
            if name in pinned.candidates(table):
                yield from neighbours(config, table, name)


def overridden(config: Config) -> ExitStack:
    """A context in which its tables say this."""
    stack = ExitStack()
    for table, values in config.items():
        stack.enter_context(pinned.override(table, values))
    return stack


def time_candidate(case: Case, config: Config, device: torch.device) -> tuple[float, float | None]:
    """Microseconds and error of the Triton implementation under this configuration."""
    call = case.calls[registry.TRITON]
    is_graph = device.type == "cuda" and registry.TRITON in case.graphs
    with overridden(config):
        elapsed = measure(call, device, graph=is_graph, repeats=REPEATS).median_ms * 1e3
        return elapsed, case.error(registry.TRITON) if case.error is not None else None


@dataclass
class Search:
    """The best configuration of some cases so far, starting from the pinned one."""

    cases: Sequence[Case]
    device: torch.device
    best: Config
    times_us: list[float] = field(default_factory=list)
    most_error: float = math.inf
    seen: set[str] = field(default_factory=set)

    @property
    def mean_us(self) -> float:
        """Of the best one, over the cases."""
        return _mean(self.times_us)

    def try_out(self, config: Config) -> None:
        """Time a configuration and keep it when it is faster; one that fails or errs too much is left out."""
        if str(config) in self.seen:
            return
        self.seen.add(str(config))
        shown = " ".join(f"{value}" for values in config.values() for value in values.values())
        try:
            found = [time_candidate(case, config, self.device) for case in self.cases]
        except gpu.failures_of_trials() as failure:
            print(f"  {shown}: {type(failure).__name__}", file=sys.stderr)
            return
        times, error = [elapsed for elapsed, _ in found], max((e or 0.0 for _, e in found), default=0.0)
        print(f"  {shown}: {_mean(times):.1f} us, error {error:.1e}", file=sys.stderr, flush=True)
        if self.most_error == math.inf and error:
            self.most_error = MOST_ERROR_GROWTH * error
        if _mean(times) < self.mean_us and error <= self.most_error:
            self.best, self.times_us = config, times

    def compile(self, configs: Sequence[Config], deadline: float) -> None:
        """All of these side by side."""
        if not compiles(self.device):
            return
        with compiling_ahead(self.device):
            for config in configs:
                if time.monotonic() > deadline:
                    return
                with overridden(config):
                    for case in self.cases:
                        try:
                            case.calls[registry.TRITON]()
                        except gpu.failures_of_trials():
                            break

    def descend(self, deadline: float) -> None:
        """Change one value after another, and go round until nothing gets better or the time is over."""
        self.compile([self.best, *all_neighbours(self.best)], deadline)
        self.try_out(self.best)
        while True:
            before = self.mean_us
            for table, values in list(self.best.items()):
                for name in values:
                    if name not in pinned.candidates(table):
                        continue
                    configs = list(neighbours(self.best, table, name))
                    self.compile([c for c in configs if str(c) not in self.seen], deadline)
                    for config in configs:
                        if time.monotonic() > deadline:
                            return
                        self.try_out(config)
            if not self.mean_us < before * ENOUGH_GAIN:
                return


def _mean(times: Sequence[float]) -> float:
    """Geometric; infinite for none."""
    return math.exp(sum(map(math.log, times)) / len(times)) if times else math.inf


def pinned_config(case: Case, device: torch.device) -> Config:
    """What the tables say for a case."""
    tables = TABLES.get(case.op, (case.op,))
    return {table: pinned.pick(table, gpu_name(device), **case.limits) for table in tables}


def row_of(case: Case, values: pinned.Values, device: torch.device) -> Row:
    """The row that holds these values for shapes like that of a case."""
    shape = {name: v for name, v in case.limits.items() if name not in DERIVED.get(case.op, ())}
    most = {name: v for name, v in shape.items() if name in AMOUNTS}
    return Row(dict(values), gpu_name(device), most, {n: v for n, v in shape.items() if n not in most})


def tune(op: str, setting: Setting, shape: str, seconds: float, deadline: float) -> Iterator[Search]:
    """The searches of one operation, one after the other, until the deadline."""
    chosen = (case for case in cases.cases_of(op, setting) if shape in case.shape and case.limits)
    for _, group in groupby(chosen, key=lambda case: case.limits):
        some = [case for case in group if registry.TRITON in case.calls]
        if not some:
            continue
        if time.monotonic() > deadline:
            return
        print(f"{op} {', '.join(case.shape for case in some)}", file=sys.stderr, flush=True)
        search = Search(some, setting.device, pinned_config(some[0], setting.device))
        search.descend(min(time.monotonic() + seconds, deadline))
        yield search


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.kernels.tune", description=__doc__)
    parser.add_argument("ops", nargs="+", help="operations, as in the table of kernels.bench")
    parser.add_argument("--shape", default="", help="only cases whose shape contains this")
    parser.add_argument("--seconds", type=float, default=60.0, help="at most for a search (default: 60)")
    parser.add_argument("--total", type=float, default=3600.0, help="at most for all (default: 3600)")
    parser.add_argument("--write", type=Path, help="add the rows to this file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="shapes for a test of the command itself")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when something was tuned."""
    options = _arguments(argv)
    device = torch.device(options.device)
    if not runs_triton(device):
        print(f"Triton does not run on {device}; nothing to tune.", file=sys.stderr)
        return 1
    cases.load()
    setting, deadline = Setting(device, options.tiny, peers=False), time.monotonic() + options.total
    found = Tuned.read(options.write) if options.write and options.write.exists() else Tuned()
    num_rows = 0
    for op in options.ops:
        registry.load_triton(op)
        for search in tune(op, setting, options.shape, options.seconds, deadline):
            if not search.times_us:
                continue
            each = zip(search.cases, search.times_us, strict=True)
            print(f"# {op} {', '.join(f'{case.shape} {elapsed:.1f} us' for case, elapsed in each)}")
            for table, values in search.best.items():
                row = row_of(search.cases[0], values, device)
                print(f"{table}: {row}", flush=True)
                found.add(table, row)
                num_rows += 1
            if options.write:
                found.write(options.write)
    return 0 if num_rows else 1


if __name__ == "__main__":
    raise SystemExit(main())

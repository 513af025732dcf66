"""Measures a model of random weights and real shape: `python -m k3agent.backend.bench.standin NAME`.

Time to the first token cold and behind a cached prefix, prefill, decode, what checkpoints cost, and resumes
compared bit by bit with cold runs; each beside its floor and, where transformers and fla are installed,
beside theirs. JSON and Markdown, written after each figure: a run that is cut off leaves what it had.
"""

import argparse
import gc
import json
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from k3agent.backend.bench import peers, standins
from k3agent.backend.bench.floors import Floors
from k3agent.backend.bench.standin_runs import (
    Figure,
    Plan,
    Session,
    checkpoints,
    chunks,
    decodes,
    exactness,
    first_tokens,
    prefills,
)
from k3agent.backend.cli import byte_size
from k3agent.backend.disk_cache import kernels_folder
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.engine.runner import Runner
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels.ahead import compiling_ahead
from k3agent.backend.kernels.bench import Ceiling, ceiling_of, environment
from k3agent.backend.kernels.gpu import failures_of_trials, gpu_name
from k3agent.backend.kernels.registry import CHOICES

PARTS = ("first", "prefill", "decode", "chunks", "checkpoint", "exact")
TARGETS = {
    "kimi-linear": {
        "cold": 2400.0,
        "warm+64": 30.0,
        "warm+512": 45.0,
        "warm+2048": 90.0,
        "prefill": 35_000.0,
        "decode1": 200.0,
        "decode8": 700.0,
        "decode32": 1300.0,
    }
}
"""By stand-in, as serving a model on one H200 ought to be: milliseconds and tokens a second."""
TINY = Plan(
    context=256,
    suffixes=(5, 64),
    prefills=(64, 200),
    chunks=(64, 128),
    users=(1, 3),
    decode_context=70,
    decode_tokens=8,
    repeats=2,
    cold_repeats=1,
    exact_points=3,
    exact_length=300,
)
_NO_GPU = Ceiling(50e9, 200e9)
"""Where nothing is known of the device: floors are then of no meaning, but the same code runs."""


def figures(
    session: Session, plan: Plan, floors: Floors, parts: Sequence[str], deadline: float = math.inf
) -> Iterator[Figure]:
    """Everything that is asked for, one after the other; a part that fails is told and left out."""
    makers: dict[str, Callable[[], Iterator[Figure]]] = {
        "first": lambda: first_tokens(session, plan, floors, tell),
        "prefill": lambda: prefills(session, plan, floors, tell),
        "decode": lambda: decodes(session, plan, floors, tell),
        "chunks": lambda: chunks(session, plan, floors, tell),
        "checkpoint": lambda: checkpoints(session, plan, tell),
        "exact": lambda: exactness(session, plan, tell, deadline),
    }
    for part in parts:
        try:
            yield from makers[part]()
        except (*failures_of_trials(), BackendError) as error:
            # memory that does not suffice for one part may do for the next
            tell(f"{part} failed: {type(error).__name__} {error}")


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def make_session(options: argparse.Namespace, folder: str) -> tuple[Session, Floors]:
    """The model on the device, warm."""
    device = torch.device(options.device)
    standin = standins.find(options.name)
    torch.manual_seed(0)
    begun = time.perf_counter()
    model = standins.build(standin, device, kernels=options.kernels)
    tell(f"{standin.title}: drawn in {time.perf_counter() - begun:.1f} s")
    settings = EngineSettings(
        model_dir=folder,
        device=str(device),
        cache_bytes=options.cache_bytes,
        max_model_len=options.max_model_len,
        max_running=max(options.plan.users),
        graphs=options.graphs,
        speculation="off",
    )
    runner = Runner(model, settings)
    begun = time.perf_counter()
    runner.prepare(lambda done, count, what: tell(f"warming up, {done} of {count}: {what}") if what else None)
    session = Session(runner, options.chunk, options.plan.seed)
    # compiles what passes of a whole chunk need
    with compiling_ahead(device):
        session.first_token_s(session.draw(2 * options.chunk + 1), keep=False)
    session.cache.clear()
    session.first_token_s(session.draw(2 * options.chunk + 1), keep=True)
    session.cache.clear()
    tell(f"warm after {time.perf_counter() - begun:.1f} s; graphs: {runner.has_graphs}")
    targets = TARGETS.get(standin.name, {})
    return session, Floors.of(model, ceiling_of(gpu_name(device)) or _NO_GPU, targets)


def markdown(title: str, rows: Sequence[Figure], others: dict[str, float], versions: dict[str, str]) -> str:
    """The table of one stand-in."""
    lines = [f"### {title}", "", ", ".join(f"{name} {value}" for name, value in versions.items()), ""]
    lines += ["| what | k3agent | floor | transformers + fla | target |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        cells = [f"{row.value:.4g} {row.unit}"]
        for number in (row.floor, others.get(row.name), row.target):
            cells.append("" if number is None else f"{number:.4g}")
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m k3agent.backend.bench.standin", description=__doc__)
    add = made.add_argument
    add("name", choices=list(standins.STANDINS))
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--kernels", choices=CHOICES, default="auto")
    add("--graphs", choices=["auto", "off", "padded"], default="auto")
    add("--chunk", type=int, default=4096, help="tokens of a prefill pass, and the grid (default: 4096)")
    add("--parts", default=",".join(PARTS), help=f"what to measure (default: {','.join(PARTS)})")
    add("--points", type=int, help="random points of the exactness check (default: 100)")
    add("--seed", type=int, help="of the prompts and points (default: 0)")
    add("--repeats", type=int, help="of each warm measurement (default: 20)")
    add("--context", type=int, help="tokens of the cached prefix (default: 65536)")
    add("--cache-bytes", type=byte_size, help="for pages and states (default: what is free)")
    add("--max-model-len", type=int, default=131072)
    add("--no-peers", action="store_true", help="only k3agent")
    add("--only-peers", action="store_true", help="not k3agent")
    add("--beside", type=Path, help="figures of k3agent, as --json wrote them, to show with --only-peers")
    add("--total", type=float, default=3600.0, help="seconds, at most (default: 3600)")
    add("--json", type=Path, help="write the figures here")
    add("--markdown", type=Path, help="write the table here")
    return made


def _plan(options: argparse.Namespace) -> Plan:
    plan = TINY if options.name.startswith("tiny") else Plan()
    given = {
        "exact_points": options.points,
        "repeats": options.repeats,
        "context": options.context,
        "seed": options.seed,
    }
    return replace(plan, **{name: value for name, value in given.items() if value is not None})


@dataclass
class Table:
    """What was found so far, and where it is written."""

    options: argparse.Namespace
    rows: list[Figure] = field(default_factory=list)
    others: dict[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return markdown(standins.find(self.options.name).title, self.rows, self.others, self._versions())

    def _versions(self) -> dict[str, str]:
        options = self.options
        versions = environment(torch.device(options.device))
        return versions | {"kernels": options.kernels, "chunk": str(options.chunk)}

    def add(self, row: Figure) -> None:
        self.rows.append(row)
        self.write()

    def note(self, name: str, value: float) -> None:
        """A figure of a peer."""
        tell(f"transformers: {name}: {value:.1f}")
        self.others[name] = value
        self.write()

    def write(self) -> None:
        if self.options.markdown:
            self.options.markdown.write_text(self.text)
        if self.options.json:
            figures = [asdict(row) for row in self.rows]
            content = {"environment": self._versions(), "figures": figures, "peers": self.others}
            self.options.json.write_text(json.dumps(content, indent=1))


def measure(table: Table, parts: Sequence[str], deadline: float) -> None:
    """Ours, then theirs, as far as they are wanted. Raises BackendError when ours cannot be run."""
    options = table.options
    if not options.only_peers:
        with tempfile.TemporaryDirectory() as folder:
            session, floors = make_session(options, folder)
            for row in figures(session, options.plan, floors, parts, deadline):
                table.add(row)
            del session, floors
        gc.collect()
    elif options.beside and options.beside.exists():
        table.rows = [Figure(**row) for row in json.loads(options.beside.read_text())["figures"]]
    if not options.no_peers:
        peers.measure(options.name, options.plan, options.device, parts, tell, table.note, deadline)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 when resumes were not seen to be exact, or nothing was measured, 2 for what cannot
    be run.
    """
    logging.basicConfig(level=logging.WARNING)
    options = parser().parse_args(argv)
    parts, deadline = options.parts.split(","), time.monotonic() + options.total
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"--parts {','.join(unknown)}: known are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    options.plan = _plan(options)
    os.environ.setdefault("TRITON_CACHE_DIR", str(kernels_folder()))
    table = Table(options)
    try:
        measure(table, parts, deadline)
    except BackendError as error:
        print(f"standin {options.name}: {error}", file=sys.stderr)
        return 2
    print(table.text)
    resumes = [row for row in table.rows if row.name.startswith("bitwise")]
    is_exact = all(row.value == row.target for row in resumes)
    is_told = bool(resumes) or options.only_peers or "exact" not in parts
    return 0 if is_exact and is_told and (table.rows or table.others) else 1


if __name__ == "__main__":
    sys.exit(main())

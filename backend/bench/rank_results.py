"""What the steps of `bench.ranks` share: their flags, the table each writes, and ranks that run one program.

A step writes its table anew with every row, so that one that is cut off leaves what it had.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from k3agent.backend.errors import PeerLostError
from k3agent.backend.kernels.bench import environment
from k3agent.backend.parallel import groups
from k3agent.backend.parallel.comm import GroupComm
from k3agent.backend.parallel.processes import RankProcesses, attach, end_process

OK, DIFFERS, SHOWN = "ok", "DIFFERS", ""
"""Verdicts; a row that is only shown has none."""


@dataclass(frozen=True)
class Row:
    """One finding."""

    what: str
    layout: str
    value: str
    verdict: str = SHOWN


@dataclass
class Table:
    """The findings of one step, in STEP.json and STEP.md of a folder."""

    step: str
    folder: Path
    device: str
    rows: list[Row] = field(default_factory=list)

    def add(self, what: str, layout: str, value: str, is_good: bool | None = None) -> None:
        """One more row, on paper at once; `is_good` None: not judged."""
        verdict = SHOWN if is_good is None else OK if is_good else DIFFERS
        self.rows.append(Row(what, layout, value, verdict))
        print(f"{self.step}: {layout}: {what}: {value} {verdict}".rstrip(), flush=True)
        versions = environment(torch.device(self.device))
        found = {"step": self.step, **versions, "rows": [asdict(row) for row in self.rows]}
        (self.folder / f"{self.step}.json").write_text(json.dumps(found, indent=1), "utf-8")
        (self.folder / f"{self.step}.md").write_text(self.markdown(), "utf-8")

    def markdown(self) -> str:
        lines = ["| what | layout | value | |", "| --- | --- | --- | --- |"]
        lines += [f"| {row.what} | {row.layout} | {row.value} | {row.verdict} |" for row in self.rows]
        return "\n".join(lines) + "\n"

    @property
    def status(self) -> int:
        """The exit status: 1 if a row differs, or if there is none."""
        return int(not self.rows or any(row.verdict == DIFFERS for row in self.rows))


def parser(step: str, description: str | None) -> argparse.ArgumentParser:
    """The flags of a step."""
    made = argparse.ArgumentParser(
        prog=f"python -m k3agent.backend.bench.rank_{step}", description=description
    )
    add = made.add_argument
    add("--ranks", type=int, default=2)
    add("--device", default="cuda")
    add("--out", type=Path, required=True, help="folder for the table")
    add("--fixtures", type=Path, help="folder of tiny models")
    add("--limit-s", type=float, default=300.0, help="seconds, at most, as far as the step can tell")
    add("--tiny", action="store_true", help="tiny shapes, for a test of the command itself")
    return made


def layouts(ranks: int) -> list[tuple[int, int]]:
    """Ranks and groups of experts: experts cut by width, and dealt out whole."""
    return [(ranks, 1), (ranks, ranks)]


def name_of(ranks: int, groups_: int) -> str:
    """A layout for people."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks, experts {'whole' if groups_ == ranks else 'cut'}"


def device_of(rank: int, options: argparse.Namespace) -> torch.device:
    return groups.device_of(rank, options.ranks, options.device)


def lead(module: str, options: argparse.Namespace) -> tuple[RankProcesses, GroupComm]:
    """Start ranks 1 and up, which run `module`, and meet them as rank 0."""
    groups.set_environment()
    device = device_of(0, options)
    store = groups.open_store(options.ranks)
    processes = RankProcesses(module, options.ranks, end_process)
    processes.tell(options, store.port)
    backend = groups.backend_for(options.device)
    try:
        return processes, groups.join_group(store, 0, options.ranks, backend, device)
    except (RuntimeError, PeerLostError) as error:
        processes.lose(f"the ranks did not meet: {error}")


def follow(arguments: Sequence[str]) -> tuple[Connection, argparse.Namespace, GroupComm]:
    """The same as a rank above 0, started as `python -m module RANK COMMANDS_FD LIFE_FD`."""
    rank = int(arguments[0])
    commands, _life = attach(*arguments[1:3])
    first: tuple[argparse.Namespace, int] = commands.recv()
    options, port = first
    groups.set_environment()
    device = device_of(rank, options)
    store = groups.join_store(options.ranks, port)
    backend = groups.backend_for(options.device)
    return commands, options, groups.join_group(store, rank, options.ranks, backend, device)


def finish(processes: RankProcesses) -> None:
    """All ranks leave; NCCL takes a group down when all do."""
    processes.ask_to_stop()
    groups.leave_group()
    processes.close()


def wait_for_end(commands: Connection) -> None:
    """A rank above 0 waits until rank 0 is done: its own end would look like a death."""
    commands.recv()
    groups.leave_group()


def is_rank(arguments: Sequence[str]) -> bool:
    """Was the program started as a rank above 0?"""
    return bool(arguments) and arguments[0].isdigit()


def gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def seconds_text(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) + " s"


Json = dict[str, Any]

"""What the steps of `bench.ranks` share: their flags, the table each writes, and ranks that run one program.

A step writes its table anew with every row, so that one that is cut off leaves what it had.
"""

import argparse
import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from k3agent.backend.errors import PeerLostError
from k3agent.backend.kernels.bench import environment
from k3agent.backend.parallel import groups
from k3agent.backend.parallel.comm import Comm, GroupComm
from k3agent.backend.parallel.processes import Raised, RankProcesses, attach, end_process

log = logging.getLogger(__name__)

Work = Callable[[argparse.Namespace, GroupComm], int]
"""What each rank does in a step; the status counts from rank 0."""
OK, DIFFERS, FAILED, SHOWN = "ok", "DIFFERS", "FAILED", ""
"""Verdicts; a row that is only shown has none, and one that could not be found out has failed."""


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
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, what: str, layout: str, value: str, is_good: bool | None = None) -> None:
        """One more row, on paper at once; `is_good` None: not judged."""
        self._write(Row(what, layout, value, SHOWN if is_good is None else OK if is_good else DIFFERS))

    def fail(self, what: str, layout: str, why: object) -> None:
        """A row about something that could not be found out."""
        self._write(Row(what, layout, " ".join(str(why).split())[:600], FAILED))

    def _write(self, row: Row) -> None:
        print(f"{self.step}: {row.layout}: {row.what}: {row.value} {row.verdict}".rstrip(), flush=True)
        versions = environment(torch.device(self.device))
        with self._lock:
            self.rows.append(row)
            found = {"step": self.step, **versions, "rows": [asdict(row) for row in self.rows]}
            (self.folder / f"{self.step}.json").write_text(json.dumps(found, indent=1), "utf-8")
            (self.folder / f"{self.step}.md").write_text(self.markdown(), "utf-8")

    def markdown(self) -> str:
        lines = ["| what | layout | value | |", "| --- | --- | --- | --- |"]
        lines += [f"| {row.what} | {row.layout} | {row.value} | {row.verdict} |" for row in self.rows]
        return "\n".join(lines) + "\n"

    @property
    def status(self) -> int:
        """The exit status: 1 if a row differs or failed, or if there is none."""
        return int(not self.rows or any(row.verdict in (DIFFERS, FAILED) for row in self.rows))


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
    add("--sums", choices=["auto", "symmetric"], default="auto", help="of `graphs` and `rates`")
    add("--tiny", action="store_true", help="tiny shapes, for a test of the command itself")
    return made


def layouts(ranks: int) -> list[tuple[int, int]]:
    """Ranks and groups of experts: experts cut by width, and dealt out whole."""
    return [(ranks, 1), (ranks, ranks)]


def name_of(ranks: int, groups_: int) -> str:
    """A layout for people."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks, experts {'whole' if groups_ == ranks else 'cut'}"


def is_symmetric(comm: Comm) -> bool:
    """Are small sums made through symmetric memory?"""
    return isinstance(comm, GroupComm) and comm.small_sums is not None


def device_of(rank: int, options: argparse.Namespace) -> torch.device:
    return groups.device_of(rank, options.ranks, options.device)


def run_on_all(module: str, step: str, description: str | None, work: Work, arguments: Sequence[str]) -> int:
    """The main function of a step that all ranks run: rank 0 is the command, and starts the others as
    `python -m module RANK COMMANDS_FD LIFE_FD`. Returns rank 0's status.

    An error ends the process at once: a rank that goes by the usual way may wait for its peers.
    """
    if arguments and arguments[0].isdigit():
        return _follow(int(arguments[0]), work, *attach(*arguments[1:3]))
    options = parser(step, description).parse_args(arguments)
    processes, comm = _lead(module, options)
    try:
        status = work(options, comm)
    except Exception as error:
        log.exception("rank 0 cannot go on")
        processes.fail(error)
    processes.ask_to_stop()
    # NCCL takes a group down when all ranks do
    groups.leave_group()
    processes.close()
    return status


def _lead(module: str, options: argparse.Namespace) -> tuple[RankProcesses, GroupComm]:
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


def _follow(rank: int, work: Work, commands: Connection, life: Connection) -> int:
    first: tuple[argparse.Namespace, int] = commands.recv()
    options, port = first
    try:
        groups.set_environment()
        device = device_of(rank, options)
        store = groups.join_store(options.ranks, port)
        backend = groups.backend_for(options.device)
        work(options, groups.join_group(store, rank, options.ranks, backend, device))
    except Exception as error:
        log.exception("rank %d cannot go on", rank)
        with contextlib.suppress(OSError):
            life.send(Raised(f"{type(error).__name__}: {error}", isinstance(error, PeerLostError)))
        os._exit(1)
    # until rank 0 says stop, this end would look like a death
    commands.recv()
    groups.leave_group()
    return 0


def gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"

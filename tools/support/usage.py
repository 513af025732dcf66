"""How much memory and how many processes a command uses, with all that it has started."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from k3agent.tools.support.processes import PROC

PAGE = os.sysconf("SC_PAGE_SIZE")
SHARE_OF_MEMORY = 0.75
MAX_PROCESSES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`memory` in bytes; both for one command with all its processes."""

    memory: int
    processes: int = MAX_PROCESSES


def command_limits(memory_mb: int | None = None, processes: int = MAX_PROCESSES) -> Limits:
    """Without `memory_mb` a part of the machine's memory, or of that which this process may use."""
    if memory_mb is None:
        return Limits(memory=_usual_memory(), processes=processes)
    return Limits(memory=memory_mb << 20, processes=processes)


@functools.cache
def _usual_memory() -> int:
    return int(SHARE_OF_MEMORY * min(_machine_memory(), *_memory_of_group()))


def _machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * PAGE


def _memory_of_group() -> Iterable[int]:
    """The limit of a container, where the control groups show one."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)
    yield 1 << 62


@dataclass(frozen=True, slots=True)
class Usage:
    pids: frozenset[int]
    memory: int


def usage(leader: int) -> Usage:
    """Of the processes of the session of `leader` and of its descendants. Pages that several processes share
    are counted for each.
    """
    rows = [row for path in PROC.glob("[0-9]*") if (row := _row(path))]
    children: dict[int, list[int]] = {}
    for pid, parent, _, _ in rows:
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid, _, session, _ in rows if leader in (session, pid)]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return Usage(frozenset(found), sum(pages for pid, _, _, pages in rows if pid in found) * PAGE)


def _row(path: Path) -> tuple[int, int, int, int] | None:
    """(pid, parent, session, resident pages)."""
    try:
        fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(path.name), int(fields[1]), int(fields[3]), int(fields[21])


def excess(leader: int, limits: Limits) -> str:
    """ "" or by what the command of `leader` passes its limits, as the end of the sentence "killed: ..."."""
    used = usage(leader)
    if len(used.pids) > limits.processes:
        return f"more than {limits.processes} processes"
    if used.memory > limits.memory and _own_memory(used.pids) > limits.memory:
        return f"more than {limits.memory >> 20} MB of memory"
    return ""


def _own_memory(pids: Iterable[int]) -> int:
    """Like `Usage.memory`, with each shared page counted once; slower."""
    total = 0
    for pid in pids:
        try:
            text = (PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
    return total

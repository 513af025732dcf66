"""Child processes that nothing can hang on and nothing survives.

Each command runs in a session of its own: no terminal, no input, no pager, no editor. Its output goes
straight to a file, so a server that it leaves behind holds no pipe of ours. The session id finds all its
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

MARK = "K3AGENT_JOB"
GRACE_S = 1.0
MAX_KILLS = 50
# The session of a command that is about to be started: only its mark finds it.
NOT_KNOWN = 0
PROC = Path("/proc")
QUIET: Mapping[str, str] = {
    # `true` as git's editor keeps a message that git has prepared; an empty one fails at once.
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "SUDO_ASKPASS": "/bin/false",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "BAT_PAGER": "cat",
    "DELTA_PAGER": "cat",
    "AWS_PAGER": "",
    "DEBIAN_FRONTEND": "noninteractive",
    "GH_PROMPT_DISABLED": "1",
    "PIP_NO_INPUT": "1",
    "PYTHONUNBUFFERED": "1",
    "TERM": "dumb",
    "NO_COLOR": "1",
}
NOISY = ("FORCE_COLOR", "CLICOLOR_FORCE", "DISPLAY", "WAYLAND_DISPLAY", "BASH_ENV", "ENV")


def child_environ(environ: Mapping[str, str], mark: str) -> dict[str, str]:
    """`environ` for a command that can ask nobody. `mark` is found again in the processes it leaves."""
    kept = {name: value for name, value in environ.items() if name not in NOISY}
    return {**kept, **QUIET, MARK: mark}


def shell_argv(command: str) -> list[str]:
    shell = next((path for path in ("/bin/bash", "/usr/bin/bash") if os.access(path, os.X_OK)), "/bin/sh")
    return [shell, "-c", command]


async def start(
    argv: list[str], *, cwd: Path, environ: dict[str, str], output: Path
) -> asyncio.subprocess.Process:
    """Run `argv` as the leader of a new session with stdout and stderr in `output`."""
    output.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
        )
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A row of /proc: `started` in clock ticks after boot, `cpu` in ticks used so far."""

    pid: int
    session: int
    state: str
    started: int
    cpu: int


def process_info(pid: int) -> ProcessInfo | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError):
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessInfo(pid, int(fields[3]), fields[0], int(fields[19]), int(fields[11]) + int(fields[12]))


def members(session: int, mark: str = "", since: int = 0) -> list[ProcessInfo]:
    """The living processes of a session; without /proc only one entry that stands for its group. With `mark`
    also those that left the session (`setsid`) but carry it; they began at `since` or later.
    """
    if not PROC.joinpath("self").exists():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if session != NOT_KNOWN:
                os.killpg(session, 0)
                return [ProcessInfo(session, session, "?", 0, 0)]
        return []
    pids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    found = (info for pid in pids if (info := process_info(pid)))
    alive = [info for info in found if info.state not in "ZX"]
    text = f"{MARK}={mark}".encode()
    return [
        info
        for info in alive
        if (info.session == session and session != NOT_KNOWN)
        or (mark and info.started >= since and text in _environ(info.pid))
    ]


def send(session: int, number: signal.Signals, mark: str = "", since: int = 0) -> None:
    """Send a signal to every process of the session; `mark` and `since` as for `members`."""
    # First to all of the leader's group at once: a shell that outlives its children would report their death.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if session != NOT_KNOWN:
            os.killpg(session, number)
    for info in members(session, mark, since):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(info.pid, number)


async def end_session(session: int, grace_s: float = GRACE_S, *, mark: str = "", since: int = 0) -> None:
    """End all processes of a session: asked first, then killed. `mark` and `since` as for `members`."""
    send(session, signal.SIGTERM, mark, since)
    deadline = time.monotonic() + grace_s
    delay = 0.01
    while members(session, mark, since) and time.monotonic() < deadline:
        await asyncio.sleep(delay)
        delay = min(delay * 2, 0.1)
    # Again while there are any: one that forks all the time may be missed by a single look.
    for _ in range(MAX_KILLS):
        send(session, signal.SIGKILL, mark, since)
        if not members(session, mark, since):
            break
        await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One command's session as noted on disk, so that the next start can end what a killed agent left.

    `started` is that of its leader; `seen` are pid and start of the processes that the leader left behind.
    """

    session: int
    started: int
    mark: str
    command: str
    seen: tuple[tuple[int, int], ...] = ()

    def members(self) -> list[ProcessInfo]:
        """Its living processes. The number of a session that is over may be given to a new one; that one has
        neither our leader, nor a process seen before, nor our mark.
        """
        found = members(self.session, self.mark, self.started)
        known = {(self.session, self.started), *self.seen}
        mark = f"{MARK}={self.mark}".encode()
        is_ours = any((info.pid, info.started) in known or mark in _environ(info.pid) for info in found)
        return found if is_ours else []

    def end(self, grace_s: float = 0.5) -> bool:
        """End its processes, asked first, then killed; whether there were any."""
        found = bool(self.members())
        for number in (signal.SIGTERM, signal.SIGKILL) if found else ():
            send(self.session, number, self.mark, self.started)
            deadline = time.monotonic() + grace_s
            while self.members() and time.monotonic() < deadline:
                time.sleep(0.01)
        return found


class SessionLog:
    """The sessions that may still have processes, in a file of this agent process under `folder`; `name`
    tells several of one process apart.
    """

    def __init__(self, folder: Path, name: str = "") -> None:
        own = process_info(os.getpid())
        self._owner = {"pid": os.getpid(), "started": own.started if own else 0, "boot": _boot_id()}
        self._path = folder / f"processes-{os.getpid()}-{self._owner['started']}{name}.json"
        self._records: dict[int, SessionRecord] = {}
        self._starting: dict[str, SessionRecord] = {}

    @property
    def records(self) -> tuple[SessionRecord, ...]:
        return tuple(self._records.values())

    def begin(self, mark: str, command: str) -> None:
        """Note a command before its process is there: a kill in between would leave it unknown."""
        self._starting[mark] = SessionRecord(NOT_KNOWN, 0, mark, command[:200])
        self._save()

    def add(self, session: int, mark: str, command: str) -> None:
        self._starting.pop(mark, None)
        info = process_info(session)
        self._records[session] = SessionRecord(session, info.started if info else 0, mark, command[:200])
        self._save()

    def left_behind(self, session: int) -> bool:
        """Note which processes go on after the leader's end; whether there are any."""
        record = self._records.get(session)
        found = members(session, record.mark, record.started) if record else []
        if record is not None and found:
            seen = tuple((info.pid, info.started) for info in found)
            self._records[session] = replace(record, seen=seen)
            self._save()
        elif record is not None:
            self.remove(session)
        return bool(found)

    def marks(self, session: int) -> dict[str, Any]:
        """What finds the processes that left `session`: keywords for `members` and `end_session`."""
        record = self._records.get(session)
        return {"mark": record.mark, "since": record.started} if record else {}

    def remove(self, session: int) -> None:
        if self._records.pop(session, None):
            self._save()

    def drop(self, mark: str) -> None:
        """The command could not be started."""
        if self._starting.pop(mark, None):
            self._save()

    def _save(self) -> None:
        records = [*self._records.values(), *self._starting.values()]
        if not records:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        rows = [asdict(record) for record in records]
        temporary.write_text(json.dumps({"owner": self._owner, "sessions": rows}), encoding="utf-8")
        temporary.replace(self._path)


@dataclass(frozen=True, slots=True)
class Orphan:
    """A command of an agent that is gone. `was_running`: processes of it were left, and have been ended."""

    command: str
    output: Path
    was_running: bool


def reap_orphans(folder: Path) -> list[Orphan]:
    """End what agents that are gone have left running, and tell what they ran. Call once at every start."""
    found: list[Orphan] = []
    for path in sorted(folder.glob("**/processes-*.json")):
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            owner, rows = saved["owner"], [_record(row) for row in saved["sessions"]]
            is_this_boot = owner["boot"] == _boot_id()
            if is_this_boot and _is_alive(owner):
                continue
        except (OSError, ValueError, KeyError, TypeError):
            rows, is_this_boot = [], False
        for row in rows:
            output = next(path.parent.glob(f"output-*-{row.mark[:6]}.txt"), path.parent / "none")
            # The numbers of processes mean nothing after a restart of the computer.
            found.append(Orphan(row.command, output, is_this_boot and row.end()))
        path.unlink(missing_ok=True)
    return found


def _is_alive(owner: dict[str, Any]) -> bool:
    info = process_info(int(owner["pid"]))
    return info is not None and info.started == owner["started"] and info.state not in "ZX"


def _record(row: dict[str, Any]) -> SessionRecord:
    """Raises ValueError or its like for a row that is none of ours: it names what is to be killed."""
    seen = tuple((int(pid), int(started)) for pid, started in row["seen"])
    found = SessionRecord(int(row["session"]), int(row["started"]), row["mark"], str(row["command"]), seen)
    if not re.fullmatch("[0-9a-f]+", found.mark):
        raise ValueError(f"{found.mark!r} is no mark of a command")
    return found


def _environ(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _boot_id() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def running_for(since: float) -> str:
    seconds = int(time.monotonic() - since)
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"

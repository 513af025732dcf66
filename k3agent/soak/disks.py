"""Disks that fail: full, refusing to sync, cut off by a power failure, and really full.

Faults of system calls come at random commits of the scripted task: each life ends by itself with an error
that names the store, and the next one goes on as after a kill. A power cut is a store whose log was written
in part: what is read back is a beginning of what was written, whole row by whole row.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from k3agent.providers.scripted import Step, serving
from k3agent.soak import faulty
from k3agent.soak.comparing import differences
from k3agent.soak.kills import Run
from k3agent.soak.proof import ProofFailed
from k3agent.store.database import FILE_NAME, find_damage
from k3agent.store.records import StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import Message, MessageId, Origin, Role, SessionId, TextPart

MAX_COMMITS = 12
SECTOR = 512
CUT_SESSION = SessionId("cut")
# The whole disk of the store in the run on a full file system.
DISK_BYTES = 6 << 20
# What is left of it in the first run: less than the answer takes.
ROOM_BYTES = 1 << 20


class FaultyRun(Run):
    """The task, with a disk that breaks in each of the first lives. `faults`: kind and number of a commit."""

    def __init__(self, root: Path, num_chapters: int, faults: list[tuple[str, int]]) -> None:
        super().__init__(root, num_chapters, [], {})
        self._faults = faults
        self._fault = ""

    def _program(self) -> list[str]:
        if not self._faults:
            self._fault = ""
            return super()._program()
        self._fault, commit = self._faults.pop(0)
        return [sys.executable, "-m", "k3agent.soak.faulty", self._fault, str(commit)]

    def _life_ended(self, code: int, output: bytes) -> None:
        """A life on a broken disk says so, unless it had nothing more to store."""
        super()._life_ended(code, output)
        self._check_store()
        if not self._fault:
            return
        if code == 0:
            self.counts[f"{self._fault}: not reached"] += 1
        elif code == 1 and b"session store" in output:
            self.counts[f"{self._fault}: told"] += 1
        else:
            raise ProofFailed(f"{self.root}: {self._fault} gave exit {code}: {output[-1500:]!r}")


def prove_faults(
    root: Path, *, num_faults: int, num_chapters: int, per_task: int, seed: int, say: Callable[[str], None]
) -> Counter[str]:
    """Disk-full and sync errors at random commits. Raises ProofFailed."""
    if not faulty.is_possible():
        raise ProofFailed("faults of the disk need Linux on x86-64 or ARM")
    whole = Run(root / "whole", num_chapters, [], {}).play()
    chance = random.Random(seed)
    total: Counter[str] = Counter()
    left, number = num_faults, 0
    while left > 0:
        count = min(per_task, left)
        faults = [(chance.choice(("fsync", "full")), chance.randint(1, MAX_COMMITS)) for _ in range(count)]
        folder = root / f"f{number:04d}"
        played = FaultyRun(folder, num_chapters, faults).play()
        problems = differences(played, whole)
        if problems:
            raise ProofFailed(f"seed {seed}, round {number} ({folder}): " + "; ".join(problems))
        total += played.counts
        shutil.rmtree(folder)
        say(f"round {number}: {dict(played.counts)}")
        left, number = left - count, number + 1
    return total


# --- power cuts ---------------------------------------------------------------------------------------------


def prove_power_cuts(root: Path, *, num_cuts: int, seed: int, say: Callable[[str], None]) -> Counter[str]:
    """The log of the store is cut at a random byte, or random sectors from there on are lost."""
    store = SessionStore(root / "live")
    store.create(StoredSession(id=CUT_SESSION, cwd="/w"))
    before: MessageId | None = None
    chance = random.Random(seed)
    for number in range(60):
        message = _message(number, before, chance.randint(10, 20_000))
        store.add_message(CUT_SESSION, message)
        before = message.id
    # The open connection keeps the log from being written back.
    wanted = store.messages(CUT_SESSION)
    main, log = (root / "live" / name for name in (FILE_NAME, f"{FILE_NAME}-wal"))
    data = log.read_bytes()
    done: Counter[str] = Counter()
    for number in range(num_cuts):
        folder = root / f"cut{number}"
        folder.mkdir()
        shutil.copy(main, folder / FILE_NAME)
        (folder / log.name).write_bytes(_cut(data, chance))
        done[f"{_check_cut(folder, wanted) * 4 // (len(wanted) + 1)}/4 of the rows"] += 1
        shutil.rmtree(folder)
    store.close()
    say(f"{num_cuts} power cuts: {dict(done)}")
    return done


def _cut(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    if chance.random() < 0.5:
        return data[:at]
    # Sectors reach the disk in any order: some of those after the last sync are missing.
    torn = bytearray(data)
    for start in range(at - at % SECTOR, len(data), SECTOR):
        if chance.random() < 0.3:
            torn[start : start + SECTOR] = bytes(len(torn[start : start + SECTOR]))
    return bytes(torn)


def _check_cut(folder: Path, wanted: list[Message]) -> int:
    """How many messages are there; they must be the first ones, whole."""
    store = SessionStore(folder)
    try:
        found = store.messages(CUT_SESSION) if store.exists(CUT_SESSION) else []
    finally:
        store.close()
    damage = find_damage(folder / FILE_NAME)
    if damage:
        raise ProofFailed(f"{folder}: {damage}")
    if found != wanted[: len(found)]:
        raise ProofFailed(f"{folder}: what is read back is no beginning of what was written")
    return len(found)


def _message(number: int, parent: MessageId | None, size: int) -> Message:
    return Message(
        id=MessageId(f"m{number}"), parent=parent, role=Role.USER, origin=Origin.HUMAN,
        parts=(TextPart(text=f"{number} " + "ä" * size),), created_at=datetime.now(UTC),
    )  # fmt: skip


# --- a file system that is full -----------------------------------------------------------------------------

_INSIDE = """
mount -t tmpfs -o size={size} tmpfs {home} || exit 77
head -c {ballast} /dev/zero > {home}/ballast
{program} run fill --session-id {session} {flags} > {home}/../first.json; echo $? > {home}/../first
rm {home}/ballast
{program} run --resume {session} {flags} > {home}/../second.json; echo $? > {home}/../second
"""


def is_mountable() -> bool:
    """Whether this user may mount a file system of their own in a namespace of their own."""
    if shutil.which("unshare") is None:
        return False
    argv = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def prove_full(root: Path, environ: dict[str, str]) -> Counter[str]:
    """The store on a small file system that is full: the run says so; with room again it comes to its end."""
    home = root / "data"
    home.mkdir(parents=True)
    (root / "workspace").mkdir()
    script = _INSIDE.format(
        size=DISK_BYTES,
        ballast=DISK_BYTES - ROOM_BYTES,
        home=home,
        program=f"{sys.executable} -m k3agent.cli",
        session="00000000-0000-4000-8000-0000000f0110",
        flags="--base-url URL --model scripted --output-format json",
    )
    steps = [Step(text="Done.", reasoning="y" * (2 * ROOM_BYTES), piece=1 << 16), Step(text="Done.")]
    with serving(steps) as server:
        subprocess.run(
            ["unshare", "-rm", "sh", "-c", script.replace("URL", server.url)],
            cwd=root / "workspace",
            env={**os.environ, **environ, "K3AGENT_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=300,
        )
    first, second = (json.loads((root / f"{name}.json").read_text()) for name in ("first", "second"))
    if first["exit_code"] != 1 or not any("full; free some space" in text for text in first["errors"]):
        raise ProofFailed(f"a full disk gave {first['exit_code']}: {first['errors']}")
    if second["exit_code"] != 0 or second["session_id"] != first["session_id"]:
        raise ProofFailed(f"with room again the run gave {second['exit_code']}: {second['errors']}")
    return Counter({"full, then resumed": 1})

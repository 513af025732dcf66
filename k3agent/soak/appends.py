"""Several processes that append to one session of one store at the same time, one of them killed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from k3agent import codec
from k3agent.errors import StoreError
from k3agent.soak.proof import ProofFailed
from k3agent.store.database import FILE_NAME, find_damage
from k3agent.store.records import StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import Message, MessageId, Origin, Role, SessionId, TextPart

SESSION = SessionId("shared")
VICTIM = "victim"


def prove(
    root: Path, *, num_appends: int, num_processes: int, seed: int, say: Callable[[str], None]
) -> Counter[str]:
    """All rows are there and can be read, each in a place of its own. Raises ProofFailed."""
    store = SessionStore(root)
    store.create(StoredSession(id=SESSION, cwd="/w"))
    share = num_appends // num_processes
    argv = [sys.executable, "-m", "k3agent.soak.appends", str(root), str(share)]
    writers = [subprocess.Popen([*argv, str(number)]) for number in range(num_processes)]
    # It would write on and on; it is killed while it does.
    victim = subprocess.Popen([*argv[:-1], str(1_000_000), VICTIM])
    while victim.poll() is None and not _has_written(root / FILE_NAME, VICTIM):
        time.sleep(0.02)
    time.sleep(random.Random(seed).uniform(0.0, 0.3))
    victim.kill()
    victim.wait()
    while any(writer.poll() is None for writer in writers):
        # A reader in between sees whole rows only.
        store.messages(SESSION)
        time.sleep(0.2)
    if any(writer.returncode for writer in writers):
        raise ProofFailed(f"writers ended with {[writer.returncode for writer in writers]}")
    store.close()
    by_writer: Counter[str] = Counter()
    rows = _rows(root / FILE_NAME)
    for _, body in rows:
        message = codec.message_from_json(body)
        name, _, number = message.id.partition("-")
        if message.text != _text(name, int(number)):
            raise ProofFailed(f"message {message.id} came back changed")
        by_writer[name] += 1
    places = [seq for seq, _ in rows]
    if places != list(range(1, len(places) + 1)):
        raise ProofFailed("messages share a place, or one is missing")
    lost = [number for number in range(num_processes) if by_writer[str(number)] != share]
    damage = find_damage(root / FILE_NAME)
    if lost or damage:
        raise ProofFailed(f"writers {lost} lost rows; {damage or 'the file is whole'}")
    _check_lock(root)
    say(f"{len(places)} rows of {num_processes} writers, and one that was killed: all readable")
    return by_writer


def _rows(path: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(
            "SELECT seq, body FROM messages WHERE session_id = ? ORDER BY seq", (SESSION,)
        ).fetchall()


def _has_written(path: Path, name: str) -> bool:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT 1 FROM messages WHERE id = ?", (f"{name}-0",)).fetchone() is not None


def _check_lock(root: Path) -> None:
    """Of two that go on with one session the second is told who has it."""
    holder = SessionStore(root)
    lock = holder.lock(SESSION)
    other = SessionStore(root)
    try:
        other.lock(SESSION).release()
    except StoreError as error:
        if "in use by process" not in str(error):
            raise ProofFailed(f"the lock says: {error}") from error
    else:
        raise ProofFailed("two have the same session")
    finally:
        lock.release()
        holder.close()
        other.close()


def _text(name: str, number: int) -> str:
    return f"{name} {number} " + "ä\u2028\n" * (number % 700)


def main(argv: Sequence[str]) -> None:
    """One writer: FOLDER COUNT NAME."""
    store = SessionStore(Path(argv[0]))
    for number in range(int(argv[1])):
        message = Message(
            id=MessageId(f"{argv[2]}-{number}"), parent=None, role=Role.USER, origin=Origin.HUMAN,
            parts=(TextPart(text=_text(argv[2], number)),), created_at=datetime.now(UTC),
        )  # fmt: skip
        store.add_message(SESSION, message)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1:])

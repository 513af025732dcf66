"""The session store used by several processes, and several times by one of them: no row is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from k3agent.store.records import StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import SessionId

OTHER = """
import sys
from pathlib import Path
from k3agent.store.sessions import SessionStore
store = SessionStore(Path(sys.argv[1]))
print(*sorted(row.id for row in store.list_sessions()))
store.close()
"""


def session(name: str) -> StoredSession:
    return StoredSession(
        id=SessionId(name),
        cwd="/w",
        provider="p",
        model="m",
        profile="full",
        effort="high",
        system="s",
        tools=(),
    )


def in_another_process(home: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(home)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


def test_a_second_connection_does_not_give_the_log_away(tmp_path: Path) -> None:
    """Opened and closed a second time in one process, then by another: the writer's log must stay its own."""
    writer = SessionStore(tmp_path)
    writer.create(session("first"))
    SessionStore(tmp_path).close()
    assert in_another_process(tmp_path) == ["first"]
    assert (tmp_path / "k3agent.db-wal").exists(), "the other process took itself for the last one"
    writer.create(session("second"))
    SessionStore(tmp_path).close()
    assert in_another_process(tmp_path) == ["first", "second"]
    writer.close()
    assert in_another_process(tmp_path) == ["first", "second"]


def test_the_file_is_the_owners_alone_also_when_two_make_it(tmp_path: Path) -> None:
    stores = [SessionStore(tmp_path) for _ in range(3)]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("k3agent.db*")} == {0o600}
    for store in stores:
        store.close()

"""An older database is brought to the tables of a new one, and keeps what was in it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from k3agent.store import migrations
from k3agent.store.database import FILE_NAME, open_database
from k3agent.store.sessions import SessionStore
from k3agent.types import SessionId, Usage

VERSION_1 = Path(__file__).parent / "data" / "version_1.sql"
COLUMNS = "session_id, turn, outcome, input_tokens, output_tokens, cost_usd, started_at"


def old_database(home: Path) -> None:
    home.mkdir()
    connection = sqlite3.connect(home / FILE_NAME)
    connection.executescript(VERSION_1.read_text())
    connection.execute(
        "INSERT INTO sessions (id, cwd, created_at, updated_at) VALUES ('s', '/w', '2026', '2026')"
    )
    for outcome, tokens in (("ok", 100), ("interrupted", 0), ("ok", 0)):
        connection.execute(
            f"INSERT INTO requests ({COLUMNS}) VALUES ('s', 1, ?, ?, 5, 0.5, '')", (outcome, tokens)
        )
    connection.commit()
    connection.close()


def tables_of(home: Path) -> dict[str, Any]:
    connection = open_database(home)
    rows = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    ).fetchall()
    found: dict[str, Any] = {"all": sorted(rows)}
    for kind, name in rows:
        pragma = {"table": "table_xinfo", "index": "index_xinfo"}.get(kind)
        if pragma is not None:
            found[name] = connection.execute(f"PRAGMA {pragma}({name})").fetchall()
    connection.close()
    return found


def test_both_ways_end_in_the_same_tables(tmp_path: Path) -> None:
    old_database(tmp_path / "old")
    assert tables_of(tmp_path / "old") == tables_of(tmp_path / "new")


def test_what_was_recorded_stays_and_unknown_usage_is_unknown(tmp_path: Path) -> None:
    old_database(tmp_path / "old")
    store = SessionStore(tmp_path / "old")
    assert [row.id for row in store.list_sessions()] == ["s"]
    requests = store.requests(SessionId("s"))
    assert [request.usage for request in requests] == [
        Usage(input_tokens=100, output_tokens=5),
        None,
        Usage(output_tokens=5),
    ]
    assert [request.cost_usd for request in requests] == [0.5, None, 0.5]
    store.close()
    connection = sqlite3.connect(tmp_path / "old" / FILE_NAME)
    assert connection.execute("PRAGMA user_version").fetchone() == (migrations.VERSION,)
    connection.close()

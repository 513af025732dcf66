"""The tables, and one function per change of them.

A new database gets `SCHEMA`, the tables as they are now. An older one goes through the functions in
`STEPS`, which may use sqlite-utils (its `transform` rebuilds a table); it takes 0.1 s to import, so only an
old file pays for it. Released steps are never edited. A test checks that both ways end in the same tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from k3agent.errors import StoreError

COMPACTIONS = """
CREATE TABLE compactions (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, cause TEXT NOT NULL, body TEXT NOT NULL,
  summary TEXT NOT NULL, method TEXT NOT NULL, last_dropped_id TEXT NOT NULL, leaf_id TEXT NOT NULL,
  num_dropped INTEGER NOT NULL, num_kept INTEGER NOT NULL, tokens_before INTEGER NOT NULL,
  tokens_after INTEGER NOT NULL, cost_usd REAL NOT NULL DEFAULT 0, created_at TEXT NOT NULL, undone_at TEXT,
  PRIMARY KEY (session_id, seq)
);
"""
SNAPSHOTS = """
CREATE TABLE snapshots (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, turn INTEGER NOT NULL,
  message_id TEXT NOT NULL, call_id TEXT NOT NULL, tool TEXT NOT NULL, summary TEXT NOT NULL,
  commits TEXT NOT NULL, details TEXT NOT NULL DEFAULT '{}', target INTEGER, is_done INTEGER NOT NULL,
  told_at TEXT, created_at TEXT NOT NULL, PRIMARY KEY (session_id, seq)
);
"""
MEMORIES = """
CREATE TABLE memories (
  id INTEGER PRIMARY KEY AUTOINCREMENT, root TEXT NOT NULL, text TEXT NOT NULL, by TEXT NOT NULL,
  session_id TEXT NOT NULL DEFAULT '', created_at TEXT NOT NULL
);
"""
SCHEMA = f"""
CREATE TABLE sessions (
  id TEXT PRIMARY KEY, cwd TEXT NOT NULL, title TEXT NOT NULL DEFAULT '', provider TEXT NOT NULL DEFAULT '',
  model TEXT NOT NULL DEFAULT '', profile TEXT NOT NULL DEFAULT 'full', effort TEXT NOT NULL DEFAULT '',
  system TEXT NOT NULL DEFAULT '', tools TEXT NOT NULL DEFAULT '[]', meta TEXT NOT NULL DEFAULT '{{}}',
  parent_id TEXT, fork_message_id TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
);
CREATE INDEX sessions_by_cwd ON sessions (cwd, updated_at);
CREATE TABLE messages (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, parent_id TEXT, body TEXT NOT NULL,
  PRIMARY KEY (session_id, seq), UNIQUE (session_id, id)
);
CREATE TRIGGER messages_are_never_updated BEFORE UPDATE ON messages
BEGIN SELECT RAISE(ABORT, 'messages are written once'); END;
CREATE TABLE calls (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, turn INTEGER NOT NULL, message_id TEXT NOT NULL,
  call_id TEXT NOT NULL,
  tool TEXT NOT NULL, arguments TEXT NOT NULL, access TEXT NOT NULL DEFAULT '{{}}',
  hashes TEXT NOT NULL DEFAULT '{{}}',
  state TEXT NOT NULL, result TEXT, digest TEXT,
  files TEXT NOT NULL DEFAULT '[]', seen TEXT NOT NULL DEFAULT '{{}}',
  started_at TEXT NOT NULL, ended_at TEXT,
  PRIMARY KEY (session_id, seq), UNIQUE (session_id, call_id)
);
CREATE TABLE turns (
  session_id TEXT NOT NULL, seq INTEGER NOT NULL, message_id TEXT NOT NULL, started_at TEXT NOT NULL,
  ended_at TEXT, outcome TEXT, detail TEXT NOT NULL DEFAULT '', restarts INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (session_id, seq)
);
CREATE TABLE requests (
  id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, turn INTEGER NOT NULL, message_id TEXT,
  outcome TEXT NOT NULL,
  model TEXT NOT NULL DEFAULT '', input_tokens INTEGER, cached_tokens INTEGER, output_tokens INTEGER,
  reasoning_tokens INTEGER, cost_usd REAL,
  started_at TEXT NOT NULL, duration_s REAL NOT NULL DEFAULT 0, retries INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX requests_by_session ON requests (session_id, turn);
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, call_id TEXT NOT NULL, tool TEXT NOT NULL,
  subject TEXT NOT NULL,
  action TEXT NOT NULL, reason TEXT NOT NULL, by TEXT NOT NULL, at TEXT NOT NULL
);
CREATE INDEX decisions_by_session ON decisions (session_id);
CREATE TABLE tasks (
  session_id TEXT NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
  state TEXT NOT NULL,
  data TEXT NOT NULL DEFAULT '{{}}', updated_at TEXT NOT NULL, PRIMARY KEY (session_id, kind, position)
);
CREATE TABLE drafts (session_id TEXT PRIMARY KEY, body TEXT NOT NULL, updated_at TEXT NOT NULL);
{COMPACTIONS}{SNAPSHOTS}{MEMORIES}"""

USAGE_COLUMNS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost_usd")


def _unknown_usage(connection: sqlite3.Connection) -> None:
    """Version 2: a model call that did not get to its end has no usage, which is not a usage of 0."""
    import sqlite_utils  # lazy: 0.15 s, only for a file of an older release

    database = sqlite_utils.Database(connection, execute_plugins=False)
    database.table("requests").transform(
        not_null=dict.fromkeys(USAGE_COLUMNS, False),
        # A default that is not named again would come back as a text.
        defaults={**dict.fromkeys(USAGE_COLUMNS), "duration_s": 0},
    )
    nothing = ", ".join(f"{name} = NULL" for name in USAGE_COLUMNS)
    connection.execute(f"UPDATE requests SET {nothing} WHERE outcome <> 'ok' AND input_tokens = 0")


def _compactions(connection: sqlite3.Connection) -> None:
    """Version 3: what the context of a session was made short to, and when."""
    connection.execute(COMPACTIONS)


def _snapshots(connection: sqlite3.Connection) -> None:
    """Version 4: which saved file states belong to which step."""
    connection.execute(SNAPSHOTS)


def _retries(connection: sqlite3.Connection) -> None:
    """Version 5: how often a model call was begun again, and a turn gone on with."""
    connection.execute("ALTER TABLE requests ADD COLUMN retries INTEGER NOT NULL DEFAULT 0")
    connection.execute("ALTER TABLE turns ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0")


def _memories(connection: sqlite3.Connection) -> None:
    """Version 6: facts that outlast a session."""
    connection.execute(MEMORIES)


STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {
    2: _unknown_usage,
    3: _compactions,
    4: _snapshots,
    5: _retries,
    6: _memories,
}
"""Version reached by a step, and the step. Version 1 is the first: it has none."""

VERSION = 6


def upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the database to VERSION, in one transaction. Raises StoreError for one from a newer program."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == VERSION:
        return
    if version > VERSION:
        raise StoreError(
            f"the session store {path} has version {version}, this k3agent knows {VERSION}: update k3agent"
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it between the first look and the lock.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in _statements(SCHEMA):
                connection.execute(statement)
        else:
            for step in range(version + 1, VERSION + 1):
                STEPS[step](connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """The script's statements: `executescript` would commit the open transaction."""
    found: list[str] = []
    pending = ""
    for line in script.strip().splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    return found

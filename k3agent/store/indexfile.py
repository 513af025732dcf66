"""The file beside the sessions that holds what can be made again from them and from the repository: a search
index and the symbols of files. It may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

FILE_NAME = "index.db"
VERSION = 1
BUSY_TIMEOUT_S = 10.0
SCHEMA = """
CREATE TABLE indexed (session_id TEXT PRIMARY KEY, seq INTEGER NOT NULL);
CREATE VIRTUAL TABLE texts USING fts5(
  body, session_id UNINDEXED, message_id UNINDEXED, cwd UNINDEXED, role UNINDEXED, at UNINDEXED,
  tokenize = "unicode61 remove_diacritics 2 tokenchars '_'"
);
CREATE TABLE symbols (hash TEXT PRIMARY KEY, found TEXT NOT NULL);
CREATE TABLE stamps (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, hash TEXT NOT NULL);
"""


def open_index(home: Path) -> sqlite3.Connection:
    """For one thread. A file of another version, or one that is broken, is begun anew. Raises sqlite3.Error
    where SQLite lacks full-text search or the disk fails.
    """
    path = home / FILE_NAME
    # A search may be the first thing that is done here.
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for attempt in (1, 2):
        try:
            return _open(path)
        except sqlite3.OperationalError:
            # Locked, or a full disk: the file is good.
            raise
        except sqlite3.DatabaseError:
            if attempt == 2:
                raise
            remove_index(home)
    raise AssertionError("unreachable")


def remove_index(home: Path) -> None:
    for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
        with contextlib.suppress(FileNotFoundError):
            (home / name).unlink()


def _open(path: Path) -> sqlite3.Connection:
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        # What is deleted is overwritten: a session that was removed leaves no words behind.
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"version {version} of the index is not known")
        if version == 0:
            for statement in SCHEMA.strip().split(";\n"):
                connection.execute(statement.rstrip(";"))
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection

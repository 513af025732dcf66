"""Symbols of files, in the index beside the sessions: by path and stamp, and by the hash of the content."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from k3agent.store.indexfile import open_index


class SymbolCache:
    """For any thread: each call has a connection of its own. What fails here costs only time: a file that is
    locked or full is as good as an empty one.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def known(self, root: str) -> dict[str, tuple[str, str]]:
        """What is known of files below `root`: path to (stamp, symbols)."""
        try:
            with closing(open_index(self._home)) as index:
                rows = index.execute(
                    "SELECT path, stamp, found FROM stamps JOIN symbols USING (hash)"
                    " WHERE path >= ? AND path < ?",
                    (f"{root}/", f"{root}0"),
                )
                return {path: (stamp, found) for path, stamp, found in rows}
        except sqlite3.Error:
            return {}

    def by_hash(self, hashes: Sequence[str]) -> dict[str, str]:
        """The symbols of files with these contents, wherever they lay."""
        try:
            with closing(open_index(self._home)) as index:
                marks = ",".join("?" * len(hashes))
                return dict(index.execute(f"SELECT hash, found FROM symbols WHERE hash IN ({marks})", hashes))
        except sqlite3.Error:
            return {}

    def keep(self, found: Sequence[tuple[str, str, str, str]], gone: Sequence[str] = ()) -> None:
        """Take up (path, stamp, hash, symbols); forget the paths that are `gone`, and contents that no path
        has any more.
        """
        try:
            with closing(open_index(self._home)) as index:
                index.execute("BEGIN IMMEDIATE")
                index.execute("CREATE TEMP TABLE before (hash TEXT)")
                paths = [(row[0],) for row in found] + [(path,) for path in gone]
                index.executemany("INSERT INTO before SELECT hash FROM stamps WHERE path = ?", paths)
                index.executemany("DELETE FROM stamps WHERE path = ?", paths)
                index.executemany(
                    "INSERT OR REPLACE INTO symbols (hash, found) VALUES (?, ?)",
                    [(digest, text) for _, _, digest, text in found],
                )
                index.executemany(
                    "INSERT INTO stamps (path, stamp, hash) VALUES (?, ?, ?)", [row[:3] for row in found]
                )
                index.execute(
                    "DELETE FROM symbols WHERE hash IN (SELECT hash FROM before)"
                    " AND hash NOT IN (SELECT hash FROM stamps)"
                )
                index.execute("COMMIT")
        except sqlite3.Error:
            return

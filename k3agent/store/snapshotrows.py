"""The table `snapshots`: which saved states belong to which step of a session, and what was restored."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from k3agent.store.database import transaction
from k3agent.store.journal import Journal, now, stored_time, whole_rows
from k3agent.types import JsonObject, SessionId

COLUMNS = "seq, kind, turn, message_id, call_id, tool, summary, commits, details, target, is_done, created_at"

COMMIT = re.compile("[0-9a-f]{40,64}")


class SnapshotKind(StrEnum):
    CALL = "call"  # before a call with effects
    TURN_END = "turn_end"  # what a turn left
    UNDO = "undo"  # before a restore


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """`commits`: the saved state by folder; `target`: the step a restore went back to; `is_done`: it was
    finished. `details` of a call: {refs, stashes, unsaved} by folder; of a restore: {files}.
    """

    seq: int
    kind: SnapshotKind
    turn: int
    commits: dict[str, str]
    message_id: str = ""
    call_id: str = ""
    tool: str = ""
    summary: str = ""
    details: JsonObject = field(default_factory=dict)
    target: int | None = None
    is_done: bool = True
    created_at: datetime


class SnapshotRows(Journal):
    """Rows are added and never deleted but with their session."""

    def add_snapshot(
        self,
        session_id: SessionId,
        kind: SnapshotKind,
        commits: Mapping[str, str],
        *,
        turn: int = 0,
        message_id: str = "",
        call_id: str = "",
        tool: str = "",
        summary: str = "",
        details: JsonObject | None = None,
        target: int | None = None,
        is_told: bool = True,
    ) -> int:
        """Returns the step's number, from 1. `is_told`: the model need not be told of it."""
        with transaction(self._db) as db:
            row = db.execute(
                "INSERT INTO snapshots (session_id, seq, kind, turn, message_id, call_id, tool, summary,"
                " commits, details, target, is_done, told_at, created_at) VALUES"
                " (?, (SELECT coalesce(max(seq), 0) + 1 FROM snapshots WHERE session_id = ?),"
                " ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq",
                (
                    session_id,
                    session_id,
                    kind.value,
                    turn,
                    message_id,
                    call_id,
                    tool,
                    summary,
                    json.dumps(dict(commits)),
                    json.dumps(details or {}),
                    target,
                    kind is not SnapshotKind.UNDO,
                    now().isoformat() if is_told else None,
                    now().isoformat(),
                ),
            ).fetchone()
        return int(row[0])

    def snapshots(self, session_id: SessionId) -> list[SnapshotRow]:
        """Oldest first."""
        rows = self._all(f"SELECT {COLUMNS} FROM snapshots WHERE session_id = ? ORDER BY seq", (session_id,))
        with whole_rows("a step", session_id):
            return [_snapshot(row) for row in rows]

    def end_restore(self, session_id: SessionId, seq: int) -> None:
        """The restore has brought back all that it said."""
        with transaction(self._db) as db:
            db.execute("UPDATE snapshots SET is_done = 1 WHERE session_id = ? AND seq = ?", (session_id, seq))

    def take_untold_restores(self, session_id: SessionId) -> list[SnapshotRow]:
        """Restores that the model has not been told of; from now on it has."""
        if not self._one(
            "SELECT 1 FROM snapshots WHERE session_id = ? AND kind = 'undo' AND told_at IS NULL LIMIT 1",
            (session_id,),
        ):
            return []
        with transaction(self._db) as db:
            told = _mark_told(db, session_id)
        return [row for row in self.snapshots(session_id) if row.seq in told]


def _snapshot(row: Sequence[Any]) -> SnapshotRow:
    return SnapshotRow(
        seq=row[0],
        kind=SnapshotKind(row[1]),
        turn=row[2],
        message_id=row[3],
        call_id=row[4],
        tool=row[5],
        summary=row[6],
        commits=_commits(json.loads(row[7])),
        details=_by_name(json.loads(row[8])),
        target=row[9],
        is_done=bool(row[10]),
        created_at=stored_time(row[11]),
    )


def _by_name(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"an object was stored, not {value!r}")
    return value


def _commits(value: Any) -> dict[str, str]:
    """They become arguments of git."""
    commits = _by_name(value)
    if not all(isinstance(commit, str) and COMMIT.fullmatch(commit) for commit in commits.values()):
        raise ValueError(f"commits were stored, not {value!r}")
    return commits


def _mark_told(db: sqlite3.Connection, session_id: SessionId) -> set[int]:
    rows = db.execute(
        "UPDATE snapshots SET told_at = ? WHERE session_id = ? AND kind = 'undo' AND told_at IS NULL"
        " RETURNING seq",
        (now().isoformat(), session_id),
    ).fetchall()
    return {int(row[0]) for row in rows}

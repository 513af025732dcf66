"""What happened in a session besides its messages: calls, model requests, decisions, tasks.

A call's intent is committed before its effect, so that after a crash one can look whether the effect took
place.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from k3agent import codec
from k3agent.errors import StoreError
from k3agent.store.database import FAILURES, open_database, path_of, shortened, store_error, transaction
from k3agent.store.records import CallRow, CallState, CompactionRow, DecisionRow, JournalBatch, RequestRow
from k3agent.types import JsonObject, MessageId, SessionId, ToolResult, Usage

EPOCH = datetime.fromtimestamp(0, UTC)


def now() -> datetime:
    return datetime.now(UTC)


class Journal:
    """The base of `SessionStore`: opens the database and keeps everything that is not a session or a
    message.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        # What keeps secrets out of plans and tasks; a session sets it. Messages and calls come masked.
        self.mask: Callable[[Any], Any] = lambda value: value
        self._db = open_database(home)

    def close(self) -> None:
        self._db.close()

    # --- calls, requests, decisions -----------------------------------------------------------------------

    def record(self, session_id: SessionId, batch: JournalBatch) -> None:
        """Commit the rows. An intent must have been recorded before its effect."""
        with transaction(self._db) as db:
            self._insert_batch(db, session_id, batch)

    def _insert_batch(self, db: sqlite3.Connection, session_id: SessionId, batch: JournalBatch) -> None:
        for row in batch.starts:
            self._insert_call(db, session_id, row)
        for row in batch.ends:
            self._end_call(db, session_id, row)
        at = now().isoformat()
        db.executemany(
            "INSERT INTO decisions (session_id, call_id, tool, subject, action, reason, by, at)"
            " VALUES (?,?,?,?,?,?,?,?)",
            [
                (session_id, row.call_id, row.tool, row.subject, row.action, row.reason, row.by, at)
                for row in batch.decisions
            ],
        )

    def _insert_call(self, db: sqlite3.Connection, session_id: SessionId, row: CallRow) -> None:
        db.execute(
            "INSERT INTO calls (session_id, seq, turn, message_id, call_id, tool, arguments, access,"
            " hashes, state,"
            " started_at) VALUES (?, (SELECT coalesce(max(seq), 0) + 1 FROM calls WHERE session_id = ?),"
            " ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (session_id, call_id) DO NOTHING",
            (
                session_id,
                session_id,
                row.turn,
                row.message_id,
                row.call_id,
                row.tool,
                row.arguments,
                codec.dump(row.access),
                codec.dump(row.hashes),
                row.state.value,
                now().isoformat(),
            ),
        )

    def _end_call(self, db: sqlite3.Connection, session_id: SessionId, row: CallRow) -> None:
        self._insert_call(db, session_id, row)
        result = None if row.result is None else codec.dump(codec.result_to_dict(row.result))
        db.execute(
            "UPDATE calls SET state = ?, result = ?, digest = ?, files = ?, seen = ?, ended_at = ?"
            " WHERE session_id = ? AND call_id = ?",
            (
                row.state.value,
                result,
                row.digest,
                codec.dump(list(row.files)),
                codec.dump(row.seen),
                now().isoformat(),
                session_id,
                row.call_id,
            ),
        )

    def calls(self, session_id: SessionId, *, turn: int | None = None, skip: int = 0) -> list[CallRow]:
        """In the order in which they were started, without the first `skip`."""
        rows = self._all(
            "SELECT turn, message_id, call_id, tool, arguments, state, access, hashes, result, digest,"
            " files, seen FROM calls"
            " WHERE session_id = ? AND (? IS NULL OR turn = ?) ORDER BY seq LIMIT -1 OFFSET ?",
            (session_id, turn, turn, skip),
        )
        with whole_rows("a call", session_id):
            return [_call(row) for row in rows]

    def has_call(self, session_id: SessionId, call_id: str) -> bool:
        row = self._one("SELECT 1 FROM calls WHERE session_id = ? AND call_id = ?", (session_id, call_id))
        return row is not None

    def changed_files(self, session_id: SessionId) -> list[str]:
        """The files that calls changed, those changed last first."""
        rows = self._all(
            "SELECT files FROM calls WHERE session_id = ? AND files <> '[]' ORDER BY seq DESC", (session_id,)
        )
        with whole_rows("a call", session_id):
            return list(dict.fromkeys(path for row in rows for path in json.loads(row[0])))

    def seen_files(self, session_id: SessionId) -> dict[str, str]:
        """What the model has seen of each file, put together from the calls of the session."""
        rows = self._all(
            "SELECT seen FROM calls WHERE session_id = ? AND seen <> '{}' ORDER BY seq", (session_id,)
        )
        seen: dict[str, str] = {}
        with whole_rows("a call", session_id):
            for row in rows:
                seen.update(json.loads(row[0]))
        return seen

    def add_request(self, session_id: SessionId, request: RequestRow) -> None:
        with transaction(self._db) as db:
            self._insert_request(db, session_id, request)

    def _insert_request(self, db: sqlite3.Connection, session_id: SessionId, request: RequestRow) -> None:
        db.execute(
            "INSERT INTO requests (session_id, turn, message_id, outcome, model, input_tokens, cached_tokens,"
            " output_tokens, reasoning_tokens, cost_usd, started_at, duration_s, retries) VALUES"
            " (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                session_id,
                request.turn,
                request.message_id,
                request.outcome,
                request.model,
                *_tokens(request.usage),
                request.cost_usd,
                request.started_at.isoformat(),
                request.duration_s,
                request.retries,
            ),
        )

    def requests(self, session_id: SessionId) -> list[RequestRow]:
        rows = self._all(
            "SELECT turn, outcome, started_at, duration_s, message_id, model, input_tokens, cached_tokens,"
            " output_tokens, reasoning_tokens, cost_usd, retries FROM requests WHERE session_id = ?"
            " ORDER BY id",
            (session_id,),
        )
        return [
            RequestRow(
                turn=row[0],
                outcome=row[1],
                started_at=stored_time(row[2]),
                duration_s=row[3],
                message_id=row[4],
                model=row[5],
                usage=_usage(*row[6:10]),
                cost_usd=row[10],
                retries=row[11],
            )
            for row in rows
        ]

    def decisions(self, session_id: SessionId) -> list[DecisionRow]:
        rows = self._all(
            "SELECT call_id, tool, subject, action, reason, by FROM decisions WHERE session_id = ?"
            " ORDER BY id",
            (session_id,),
        )
        return [
            DecisionRow(call_id=row[0], tool=row[1], subject=row[2], action=row[3], reason=row[4], by=row[5])
            for row in rows
        ]

    # --- tasks --------------------------------------------------------------------------------------------

    def set_tasks(
        self, session_id: SessionId, kind: str, items: Sequence[tuple[str, str] | tuple[str, str, JsonObject]]
    ) -> None:
        """Replace the list of one kind by (text, state), or (text, state, data)."""
        at = now().isoformat()
        with transaction(self._db) as db:
            db.execute("DELETE FROM tasks WHERE session_id = ? AND kind = ?", (session_id, kind))
            db.executemany(
                "INSERT INTO tasks (session_id, position, kind, text, state, data, updated_at) VALUES"
                " (?,?,?,?,?,?,?)",
                [
                    (session_id, index, kind, text, state, codec.dump(data[0] if data else {}), at)
                    for index, (text, state, *data) in enumerate(self.mask(list(items)))
                ],
            )

    def tasks(self, session_id: SessionId, kind: str) -> list[tuple[str, str]]:
        rows = self._all(
            "SELECT text, state FROM tasks WHERE session_id = ? AND kind = ? ORDER BY position",
            (session_id, kind),
        )
        return [(row[0], row[1]) for row in rows]

    def put_tasks(
        self, session_id: SessionId, kind: str, rows: Sequence[tuple[int, str, str, JsonObject]]
    ) -> None:
        """Insert or replace (position, text, state, data) rows of one kind, in one commit."""
        at = now().isoformat()
        with transaction(self._db) as db:
            db.executemany(
                "INSERT OR REPLACE INTO tasks (session_id, position, kind, text, state, data, updated_at)"
                " VALUES (?,?,?,?,?,?,?)",
                [
                    (session_id, row[0], kind, row[1], row[2], codec.dump(row[3]), at)
                    for row in self.mask(list(rows))
                ],
            )

    def task_rows(self, session_id: SessionId, kind: str) -> list[tuple[int, str, str, JsonObject]]:
        """(position, text, state, data) by position."""
        rows = self._all(
            "SELECT position, text, state, data FROM tasks WHERE session_id = ? AND kind = ?"
            " ORDER BY position",
            (session_id, kind),
        )
        with whole_rows("a task", session_id):
            return [(row[0], row[1], row[2], json.loads(row[3])) for row in rows]

    # --- compactions --------------------------------------------------------------------------------------

    def add_compaction(self, session_id: SessionId, row: CompactionRow) -> None:
        with transaction(self._db) as db:
            db.execute(
                "INSERT INTO compactions (session_id, seq, cause, body, summary, method, last_dropped_id,"
                " leaf_id, num_dropped, num_kept, tokens_before, tokens_after, cost_usd, created_at) VALUES"
                " (?, (SELECT coalesce(max(seq), 0) + 1 FROM compactions WHERE session_id = ?),"
                " ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    session_id,
                    session_id,
                    row.cause,
                    codec.message_to_json(row.message),
                    row.summary,
                    row.method,
                    row.last_dropped,
                    row.leaf,
                    row.num_dropped,
                    row.num_kept,
                    row.tokens_before,
                    row.tokens_after,
                    row.cost_usd,
                    now().isoformat(),
                ),
            )

    def compactions(self, session_id: SessionId) -> list[CompactionRow]:
        """All of them, oldest first, those that were undone included."""
        rows = self._all(
            "SELECT seq, cause, body, summary, method, last_dropped_id, leaf_id, num_dropped, num_kept,"
            " tokens_before, tokens_after, cost_usd, undone_at FROM compactions WHERE session_id = ?"
            " ORDER BY seq",
            (session_id,),
        )
        found: list[CompactionRow] = []
        for seq, cause, body, summary, method, dropped, leaf, *numbers, cost, undone_at in rows:
            try:
                message = codec.message_from_json(body)
            except codec.FormatError as error:
                raise StoreError(f"compaction {seq} of session {session_id}: {error}") from error
            found.append(
                CompactionRow(
                    cause=cause,
                    message=message,
                    summary=summary,
                    method=method,
                    last_dropped=MessageId(dropped),
                    leaf=MessageId(leaf),
                    num_dropped=numbers[0],
                    num_kept=numbers[1],
                    tokens_before=numbers[2],
                    tokens_after=numbers[3],
                    cost_usd=cost,
                    is_undone=undone_at is not None,
                )
            )
        return found

    def undo_compaction(self, session_id: SessionId) -> bool:
        """The newest compaction that counts does so no longer; its row stays. False if there is none."""
        with transaction(self._db) as db:
            done = db.execute(
                "UPDATE compactions SET undone_at = ? WHERE session_id = ? AND seq = (SELECT max(seq) FROM"
                " compactions WHERE session_id = ? AND undone_at IS NULL)",
                (now().isoformat(), session_id, session_id),
            )
        return bool(done.rowcount)

    # --- reading ------------------------------------------------------------------------------------------

    def _all(self, query: str, values: Sequence[Any]) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except FAILURES as error:
            raise store_error("read", error, path_of(self._db)) from error

    def _one(self, query: str, values: Sequence[Any]) -> Any:
        rows = self._all(query, values)
        return rows[0] if rows else None


@contextlib.contextmanager
def whole_rows(what: str, session_id: SessionId) -> Iterator[None]:
    """Where stored JSON is taken apart: what damage made of it raises StoreError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{what} of session {session_id} is damaged in the store ({shortened(repr(error))}): go on in a"
            " new session; `k3agent doctor` looks the store through"
        ) from error


def stored_time(text: Any) -> datetime:
    """A stored time; the epoch where it is unreadable, so that a broken row still lists."""
    with contextlib.suppress(ValueError, TypeError):
        time = datetime.fromisoformat(text)
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    return EPOCH


def _call(row: Sequence[Any]) -> CallRow:
    return CallRow(
        turn=row[0],
        message_id=MessageId(row[1]),
        call_id=row[2],
        tool=row[3],
        arguments=row[4],
        state=CallState(row[5]),
        access=json.loads(row[6]),
        hashes=json.loads(row[7]),
        result=None if row[8] is None else _result(row[8]),
        digest=row[9] or "",
        files=tuple(json.loads(row[10])),
        seen=json.loads(row[11]),
    )


def _result(text: str) -> ToolResult:
    return codec.result_from_dict(json.loads(text))


def _tokens(usage: Usage | None) -> tuple[int | None, ...]:
    if usage is None:
        return None, None, None, None
    return usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens


def _usage(given: int | None, cached: int | None, made: int | None, reasoning: int | None) -> Usage | None:
    if given is None and made is None:
        return None
    return Usage(
        input_tokens=given or 0,
        cached_tokens=cached or 0,
        output_tokens=made or 0,
        reasoning_tokens=reasoning or 0,
    )

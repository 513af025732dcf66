"""The tables `messages`, `turns` and `drafts`: what was said, in which turn, and what is still being said."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from k3agent import codec
from k3agent.errors import StoreError
from k3agent.store.database import shortened, transaction
from k3agent.store.journal import Journal, now
from k3agent.store.records import JournalBatch, RequestRow, TurnRow
from k3agent.types import Message, MessageId, SessionId


class TurnRows(Journal):
    """A base of `SessionStore`. A message is inserted and never updated."""

    def messages(self, session_id: SessionId, *, leaf: MessageId | None = None) -> list[Message]:
        """The transcript, from the first message to `leaf` (None: the newest one)."""
        rows = self._all("SELECT seq, body FROM messages WHERE session_id = ? ORDER BY seq", (session_id,))
        by_id: dict[MessageId, Message] = {}
        last: Message | None = None
        for seq, body in rows:
            try:
                last = codec.message_from_json(body)
            except codec.FormatError as error:
                raise StoreError(f"message {seq} of session {session_id}: {error}") from error
            by_id[last.id] = last
            if last.id == leaf:
                break
        path: list[Message] = []
        while last is not None:
            path.append(last)
            if last.parent is None:
                break
            # Each message is taken once: one that follows itself has no beginning.
            before = by_id.pop(last.parent, None)
            if before is None:
                raise StoreError(
                    f"message {last.id} of session {session_id} follows {shortened(last.parent)!r}, which is"
                    " not in the store: the store is damaged; go on in a new session"
                )
            last = before
        return path[::-1]

    def add_message(
        self,
        session_id: SessionId,
        message: Message,
        *,
        request: RequestRow | None = None,
        batch: JournalBatch | None = None,
    ) -> None:
        """Insert a message, with the row of the call that made it and the ends of calls it answers, in one
        commit. The draft, if there is one, is gone with it.
        """
        with transaction(self._db) as db:
            self._insert_message(db, session_id, message)
            if request is not None:
                self._insert_request(db, session_id, request)
                db.execute("DELETE FROM drafts WHERE session_id = ?", (session_id,))
            if batch is not None:
                self._insert_batch(db, session_id, batch)

    def _insert_message(self, db: sqlite3.Connection, session_id: SessionId, message: Message) -> None:
        db.execute(
            "INSERT INTO messages (session_id, seq, id, parent_id, body) VALUES"
            " (?, (SELECT coalesce(max(seq), 0) + 1 FROM messages WHERE session_id = ?), ?, ?, ?)",
            (session_id, session_id, message.id, message.parent, codec.message_to_json(message)),
        )
        db.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", (now().isoformat(), session_id))

    def start_turn(self, session_id: SessionId, messages: Sequence[Message], *, title: str = "") -> int:
        """Insert the messages that open a turn and the turn itself. Returns the turn's number, from 1."""
        with transaction(self._db) as db:
            for message in messages:
                self._insert_message(db, session_id, message)
            row = db.execute(
                "INSERT INTO turns (session_id, seq, message_id, started_at) VALUES"
                " (?, (SELECT coalesce(max(seq), 0) + 1 FROM turns WHERE session_id = ?), ?, ?)"
                " RETURNING seq",
                (session_id, session_id, messages[-1].id, now().isoformat()),
            ).fetchone()
            if title:
                db.execute("UPDATE sessions SET title = ? WHERE id = ? AND title = ''", (title, session_id))
        return int(row[0])

    def end_turn(self, session_id: SessionId, turn: int, outcome: str, detail: str) -> None:
        """Note how the turn ended. A draft that is still there belongs to an answer that was given up."""
        with transaction(self._db) as db:
            db.execute(
                "UPDATE turns SET ended_at = ?, outcome = ?, detail = ? WHERE session_id = ? AND seq = ?",
                (now().isoformat(), outcome, detail, session_id, turn),
            )
            db.execute("DELETE FROM drafts WHERE session_id = ?", (session_id,))

    def reopen_turn(self, session_id: SessionId, turn: int) -> None:
        """The turn is to go on: it has no end any more."""
        with transaction(self._db) as db:
            db.execute(
                "UPDATE turns SET ended_at = NULL, outcome = NULL, detail = '' WHERE session_id = ?"
                " AND seq = ?",
                (session_id, turn),
            )

    def note_restart(self, session_id: SessionId, turn: int) -> None:
        """The turn is gone on with by another process, or once more."""
        with transaction(self._db) as db:
            db.execute(
                "UPDATE turns SET restarts = restarts + 1 WHERE session_id = ? AND seq = ?",
                (session_id, turn),
            )

    def last_turn(self, session_id: SessionId) -> TurnRow | None:
        rows = self._turns(session_id, "DESC LIMIT 1")
        return rows[0] if rows else None

    def unfinished(self) -> set[SessionId]:
        """Sessions whose newest turn has no end: it runs, or its process was killed."""
        # SQLite takes the other columns from the row with the greatest seq.
        rows = self._all("SELECT session_id, outcome, max(seq) FROM turns GROUP BY session_id", ())
        return {SessionId(row[0]) for row in rows if row[1] is None}

    def turns(self, session_id: SessionId) -> list[TurnRow]:
        return self._turns(session_id, "")

    def _turns(self, session_id: SessionId, order: str) -> list[TurnRow]:
        rows = self._all(
            "SELECT seq, message_id, outcome, detail, restarts FROM turns WHERE session_id = ?"
            f" ORDER BY seq {order}",
            (session_id,),
        )
        return [
            TurnRow(seq=row[0], message_id=row[1], outcome=row[2], detail=row[3], restarts=row[4])
            for row in rows
        ]

    def save_draft(self, session_id: SessionId, text: str) -> None:
        """What has been streamed of an answer that is not finished: for people, never for the model."""
        with transaction(self._db) as db:
            db.execute(
                "INSERT INTO drafts VALUES (?, ?, ?) ON CONFLICT (session_id) DO UPDATE"
                " SET body = excluded.body, updated_at = excluded.updated_at",
                (session_id, text, now().isoformat()),
            )

    def draft(self, session_id: SessionId) -> str | None:
        row = self._one("SELECT body FROM drafts WHERE session_id = ?", (session_id,))
        return None if row is None else str(row[0])

    def drop_draft(self, session_id: SessionId) -> None:
        with transaction(self._db) as db:
            db.execute("DELETE FROM drafts WHERE session_id = ?", (session_id,))

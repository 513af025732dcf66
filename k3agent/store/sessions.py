"""Rows in, transcript out: everything the agent keeps.

Laws: a message is inserted and never updated; a call's intent is committed before its effect; nothing is
deleted without `delete`. What can be derived is not stored, so a lost or broken `sessions` row never hides
a transcript.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

from k3agent import codec
from k3agent.errors import StoreError
from k3agent.store import blobs
from k3agent.store.database import SessionLock, transaction
from k3agent.store.journal import now, stored_time
from k3agent.store.memories import MemoryRows
from k3agent.store.records import SessionRow, StoredSession
from k3agent.store.snapshotrows import SnapshotRows
from k3agent.store.turnrows import TurnRows
from k3agent.types import JsonObject, MessageId, SessionId, ToolSpec

# The session whose subagent a row of `sessions s` is; a row that cannot be read is nobody's.
OWNER = "CASE WHEN json_valid(s.meta) THEN json_extract(s.meta, '$.task.parent') END"
# The kind of task that is a run which begins later, and its state where the session does not exist yet.
WAITING, NEW = "waiting", "new"
UNUSED_AGE = timedelta(days=1)
# Deleted together with a session; the order does not matter.
TABLES = (
    "messages",
    "calls",
    "turns",
    "requests",
    "decisions",
    "tasks",
    "drafts",
    "compactions",
    "snapshots",
)


class SessionStore(TurnRows, SnapshotRows, MemoryRows):
    """All sessions of one data folder. Use from one thread. Reading needs no lock; writing to a session
    needs its `lock`, which is the caller's duty.
    """

    def lock(self, session_id: SessionId) -> SessionLock:
        """Raises StoreError while another process (or another Session of this one) has it."""
        return SessionLock(self.home, session_id)

    def create(self, session: StoredSession) -> None:
        with transaction(self._db) as db:
            self._insert_session(db, session)

    def begin_waiting(self, session: StoredSession, until: datetime) -> None:
        """A run of this session begins later. One that is not there yet gets a row, to be found by."""
        with transaction(self._db) as db:
            self._end_waiting(db, session.id)
            is_new = not self.exists(session.id)
            if is_new:
                self._insert_session(db, session)
            db.execute(
                "INSERT INTO tasks (session_id, position, kind, text, state, data, updated_at) VALUES"
                " (?, 0, ?, ?, ?, '{}', ?)",
                (session.id, WAITING, until.isoformat(), NEW if is_new else "", now().isoformat()),
            )

    def end_waiting(self, session_id: SessionId) -> None:
        """It begins, or never will: a row that `begin_waiting` made is gone again."""
        with transaction(self._db) as db:
            self._end_waiting(db, session_id)

    def _end_waiting(self, db: sqlite3.Connection, session_id: SessionId) -> None:
        db.execute(
            "DELETE FROM sessions WHERE id = ? AND id IN (SELECT session_id FROM tasks WHERE kind = ? AND"
            " state = ?)",
            (session_id, WAITING, NEW),
        )
        db.execute("DELETE FROM tasks WHERE session_id = ? AND kind = ?", (session_id, WAITING))

    def waiting(self) -> dict[SessionId, datetime]:
        """Until when runs wait, or waited before their process was killed."""
        rows = self._all("SELECT session_id, text FROM tasks WHERE kind = ?", (WAITING,))
        return {SessionId(row[0]): stored_time(row[1]) for row in rows}

    def _insert_session(self, db: sqlite3.Connection, session: StoredSession) -> None:
        self._end_waiting(db, session.id)
        at = now().isoformat()
        try:
            db.execute(
                "INSERT INTO sessions (id, cwd, title, provider, model, profile, effort, system,"
                " tools, meta, parent_id,"
                " fork_message_id, created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    session.id,
                    session.cwd,
                    session.title,
                    session.provider,
                    session.model,
                    session.profile,
                    session.effort,
                    session.system,
                    codec.dump([codec.spec_to_dict(spec) for spec in session.tools]),
                    codec.dump(session.meta),
                    session.parent_id,
                    session.fork_message_id,
                    at,
                    at,
                ),
            )
        except sqlite3.IntegrityError as error:
            raise StoreError(
                f"session {session.id} exists already; resume it or choose another id"
            ) from error

    def exists(self, session_id: SessionId) -> bool:
        row = self._one(
            "SELECT 1 FROM sessions WHERE id = ? UNION SELECT 1 FROM messages WHERE session_id = ? LIMIT 1",
            (session_id, session_id),
        )
        return row is not None

    def resolve(self, prefix: str) -> SessionId:
        """The one session whose id starts with `prefix`. Raises StoreError for none or several."""
        rows = self._all(
            "SELECT id FROM sessions WHERE substr(id, 1, ?) = ?"
            " UNION SELECT session_id FROM messages WHERE substr(session_id, 1, ?) = ? LIMIT 5",
            (len(prefix), prefix, len(prefix), prefix),
        )
        if len(rows) == 1:
            return SessionId(rows[0][0])
        if any(row[0] == prefix for row in rows):
            return SessionId(prefix)
        if not rows or not prefix:
            raise StoreError(f"no session {prefix!r}; `k3agent sessions list` shows them")
        raise StoreError(f"{prefix!r} fits several sessions: {', '.join(row[0] for row in rows)}")

    def load(self, session_id: SessionId) -> StoredSession:
        """The frozen part. Unreadable metadata gives defaults and a warning, never an error (the
        conversation is what counts). Raises StoreError when there is neither a row nor a message.
        """
        row = self._one(
            "SELECT cwd, title, provider, model, profile, effort, system, tools, meta, parent_id,"
            " fork_message_id"
            " FROM sessions WHERE id = ?",
            (session_id,),
        )
        if row is None:
            if not self.exists(session_id):
                raise StoreError(f"no session {session_id!r}; `k3agent sessions list` shows them")
            return StoredSession(
                id=session_id, cwd="", warnings=(f"session {session_id} has no metadata; defaults are used",)
            )
        warnings: list[str] = []
        tools: tuple[ToolSpec, ...] = ()
        meta: JsonObject = {}
        try:
            tools = tuple(codec.spec_from_dict(spec) for spec in json.loads(row[7]))
        except (ValueError, KeyError, TypeError) as error:
            warnings.append(
                f"the tool list of session {session_id} is unreadable ({error!r}); the present one is used"
            )
        try:
            meta = dict(json.loads(row[8]))
        except (ValueError, TypeError) as error:
            warnings.append(
                f"the metadata of session {session_id} is unreadable ({error!r}); defaults are used"
            )
        return StoredSession(
            id=session_id,
            cwd=str(row[0]),
            title=str(row[1]),
            provider=str(row[2]),
            model=str(row[3]),
            profile=str(row[4]),
            effort=str(row[5]),
            system=str(row[6]),
            tools=tools,
            meta=meta,
            parent_id=row[9],
            fork_message_id=row[10],
            warnings=tuple(warnings),
        )

    def list_sessions(self, cwd: Path | str | None = None) -> list[SessionRow]:
        """Newest first. Sessions that have lost their row are listed too, from their messages."""
        rows = self._all(
            "SELECT s.id, s.cwd, s.title, s.model, s.created_at, s.updated_at, count(m.seq), s.parent_id,"
            f" {OWNER} FROM sessions s LEFT JOIN messages m ON m.session_id = s.id GROUP BY s.id"
            " UNION ALL SELECT session_id, '', '', '', '', '', count(*), NULL, '' FROM messages"
            " WHERE session_id NOT IN (SELECT id FROM sessions) GROUP BY session_id",
            (),
        )
        found = [
            SessionRow(
                id=SessionId(row[0]),
                cwd=str(row[1]),
                title=str(row[2]),
                model=str(row[3]),
                created_at=stored_time(row[4]),
                updated_at=stored_time(row[5]),
                num_messages=row[6],
                parent_id=row[7],
                owner=str(row[8] or ""),
            )
            for row in rows
        ]
        if cwd is not None:
            # Sessions keep the folder's real name, whatever link it was reached by.
            wanted = str(Path(cwd).resolve())
            found = [row for row in found if row.cwd == wanted]
        return sorted(found, key=lambda row: row.updated_at, reverse=True)

    def shown_sessions(
        self, cwd: Path | str | None = None, *, with_subagents: bool = False
    ) -> list[SessionRow]:
        """Those of `list_sessions` that say something to a person: nothing was ever said in an editor's new
        thread that was left at once; a run that waits for its time will speak.
        """
        waiting = self.waiting()
        return [
            row
            for row in self.list_sessions(cwd)
            if (row.num_messages or row.id in waiting) and (with_subagents or not row.owner)
        ]

    def prune_unused(self, age: timedelta = UNUSED_AGE) -> list[SessionId]:
        """Remove sessions that are older than this, open nowhere, and never had a message; their ids."""
        waiting, before, found = self.waiting(), now() - age, list[SessionId]()
        for row in self.list_sessions():
            if row.num_messages or row.owner or row.id in waiting or row.updated_at > before:
                continue
            if self.last_turn(row.id) is not None:
                # Its messages are lost, which is not the same.
                continue
            with contextlib.suppress(StoreError):
                self.delete(row.id)
                found.append(row.id)
        return found

    def latest(self, cwd: Path | str) -> SessionRow | None:
        """The session of this folder that was used last; sessions without any message, and those of
        subagents, do not count.
        """
        return next((row for row in self.shown_sessions(cwd) if row.num_messages), None)

    def fork(self, source_id: SessionId, new_id: SessionId, cwd: str = "") -> StoredSession:
        """A new session with the same frozen part and copies of the messages and calls so far. `cwd`: its
        folder, if not the same.
        """
        source = self.load(source_id)
        leaf = self._one(
            "SELECT id FROM messages WHERE session_id = ? ORDER BY seq DESC LIMIT 1", (source_id,)
        )
        forked = StoredSession(
            id=new_id,
            cwd=cwd or source.cwd,
            provider=source.provider,
            model=source.model,
            profile=source.profile,
            effort=source.effort,
            system=source.system,
            tools=source.tools,
            title=source.title,
            meta={key: value for key, value in source.meta.items() if key != "task"},
            parent_id=source_id,
            fork_message_id=None if leaf is None else MessageId(leaf[0]),
        )
        with transaction(self._db) as db:
            self._insert_session(db, forked)
            for table, columns in (
                ("messages", "seq, id, parent_id, body"),
                ("turns", "seq, message_id, started_at, ended_at, outcome, detail"),
                (
                    "calls",
                    "seq, turn, message_id, call_id, tool, arguments, access, hashes, state, result,"
                    " digest, files, seen,"
                    " started_at, ended_at",
                ),
                ("tasks", "position, kind, text, state, data, updated_at"),
                (
                    "compactions",
                    "seq, cause, body, summary, method, last_dropped_id, leaf_id, num_dropped, num_kept,"
                    " tokens_before, tokens_after, cost_usd, created_at, undone_at",
                ),
            ):
                db.execute(
                    f"INSERT INTO {table} (session_id, {columns}) SELECT ?, {columns} FROM {table}"
                    f" WHERE session_id = ?",
                    (new_id, source_id),
                )
            # The subagents stay with the session that started them, and so does what waits.
            db.execute(
                "DELETE FROM tasks WHERE session_id = ? AND kind IN ('subagent', ?)", (new_id, WAITING)
            )
        return forked

    def rename(self, session_id: SessionId, title: str) -> None:
        """Give the session another title. Raises StoreError for an unknown one."""
        with transaction(self._db) as db:
            done = db.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session_id))
            if not done.rowcount:
                raise StoreError(f"no session {session_id!r}; `k3agent sessions list` shows them")

    def delete(self, session_id: SessionId) -> None:
        """Remove the session with those of its subagents, its file snapshots, the outputs of its commands and
        its blobs (those that a fork may point to stay). Only ever on a command, or where nothing was said.
        """
        from k3agent.store.search import forget_session  # lazy: only to delete
        from k3agent.store.snapshots import delete_session  # lazy: subprocess, only to delete

        if not self.exists(session_id):
            raise StoreError(f"no session {session_id!r}; `k3agent sessions list` shows them")
        lock = self.lock(session_id)
        try:
            for child in self.subagents(session_id):
                self.delete(child)
            delete_session(self.home, session_id)
            forget_session(self.home, session_id)
            with transaction(self._db) as db:
                for table in TABLES:
                    db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
                db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            if self._one("SELECT 1 FROM sessions WHERE parent_id = ?", (session_id,)) is None:
                shutil.rmtree(blobs.folder_of(self.home, session_id), ignore_errors=True)
            # A register of processes that a killed agent left is still needed to end them.
            for path in (self.home / "outputs" / session_id).glob("*"):
                if path.is_file() and not path.name.startswith("processes-"):
                    path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                (self.home / "outputs" / session_id).rmdir()
        finally:
            lock.release()

    def subagents(self, session_id: SessionId) -> list[SessionId]:
        """The sessions of its subagents."""
        rows = self._all(f"SELECT id FROM sessions s WHERE {OWNER} = ? ORDER BY created_at", (session_id,))
        return [SessionId(row[0]) for row in rows]

    def subtree(self, session_id: SessionId) -> list[SessionId]:
        """The session, its subagents, theirs, and so on."""
        found = [session_id]
        for one in found:
            found += [child for child in self.subagents(one) if child not in found]
        return found


def newest_session(home: Path, cwd: Path) -> SessionId:
    """The id of the newest session of the folder `cwd`. Raises StoreError when there is none."""
    store = SessionStore(home)
    try:
        row = store.latest(cwd)
    finally:
        store.close()
    if row is None:
        raise StoreError(f"no session of {cwd} to continue; `k3agent sessions list` shows all")
    return row.id

"""Full-text search over all sessions. The index follows the messages when somebody searches, never while a
session works; it is a file of its own and can be made again.
"""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from k3agent import codec
from k3agent.errors import StoreError
from k3agent.store import database
from k3agent.store.indexfile import FILE_NAME, open_index
from k3agent.types import Message, Origin, Role

MAX_RESULT_CHARS = 2_000
MAX_ARGUMENT_CHARS = 1_000
MAX_BODY_CHARS = 50_000
# What is not indexed by then is left for the next search; the newest sessions come first.
PATIENCE_S = 5.0
BATCH = 500
BRACKETS = ("[", "]")
# Around what was found, for those who show it in another way than by brackets, which a text may have too.
MARKS = ("\x01", "\x02")
_WORD = re.compile(r"\w+")
_MARKED = re.compile("\x01([^\x01\x02]*)\x02")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """`role`: user, assistant or tool; `at`: when, in ISO format; `excerpt` has the marks of the search
    around what was found.
    """

    session_id: str
    message_id: str
    cwd: str
    role: str
    at: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`num_waiting`: sessions that were not looked through, because that would have taken too long."""

    hits: tuple[Hit, ...]
    num_waiting: int = 0


def search(
    home: Path,
    words: str,
    *,
    root: str = "",
    without: str = "",
    limit: int = 10,
    marks: tuple[str, str] = BRACKETS,
) -> Found:
    """The messages that hold all of `words`, or where there are none, some of them; the best first. `root`:
    only sessions of this folder and below; `without`: a session that is left out; `marks`: what stands around
    what was found. For any thread.

    Raises StoreError where that is not possible here.
    """
    asked = _WORD.findall(words)
    if not asked:
        raise StoreError(f"{words!r} has no word to search for")
    try:
        with closing(open_index(home)) as index:
            waiting = _follow(index, home)
            find = partial(_hits, index, root=root, without=without, limit=limit, marks=marks)
            hits = find(" AND ".join(map(_quoted, asked)))
            if not hits and len(asked) > 1:
                hits = find(" OR ".join(map(_quoted, asked)))
    except OSError as error:
        raise StoreError(
            f"cannot search in {home}: {error.strerror or error}; make the folder writable, or name another"
            " one in K3AGENT_HOME"
        ) from error
    except sqlite3.Error as error:
        raise StoreError(
            f"cannot search in {home}: {error}; delete {home / FILE_NAME} and try again"
        ) from error
    return Found(hits=tuple(hits), num_waiting=waiting)


def forget_session(home: Path, session_id: str) -> None:
    """A session was deleted: nothing of it stays in the index."""
    if not (home / FILE_NAME).exists():
        return
    try:
        with closing(open_index(home)) as index:
            if index.execute("SELECT 1 FROM indexed WHERE session_id = ?", (session_id,)).fetchone() is None:
                return
            _forget(index, session_id)
    except sqlite3.Error as error:
        raise StoreError(f"cannot clear {home / FILE_NAME}: {error}; delete that file") from error


def _forget(index: sqlite3.Connection, session_id: str) -> None:
    index.execute("BEGIN IMMEDIATE")
    index.execute("DELETE FROM texts WHERE session_id = ?", (session_id,))
    index.execute("DELETE FROM indexed WHERE session_id = ?", (session_id,))
    index.execute("COMMIT")
    # Deleted words would stay in the lists of the index until they are merged.
    index.execute("INSERT INTO texts (texts) VALUES ('optimize')")


def _quoted(word: str) -> str:
    return f'"{word}"*'


def pieces(excerpt: str) -> list[tuple[str, bool]]:
    """The parts of an excerpt with MARKS, each with whether it was found."""
    return [(part, index % 2 == 1) for index, part in enumerate(_MARKED.split(excerpt)) if part]


def _hits(
    index: sqlite3.Connection, query: str, *, root: str, without: str, limit: int, marks: tuple[str, str]
) -> list[Hit]:
    rows = index.execute(
        "SELECT session_id, message_id, cwd, role, at, snippet(texts, 0, ?, ?, '…', 32) FROM texts"
        " WHERE texts MATCH ? AND session_id <> ?"
        " AND (? = '' OR cwd = ? OR substr(cwd, 1, ?) = ?) ORDER BY bm25(texts), at DESC",
        (*marks, query, without, root, root, len(root) + 1, root + "/"),
    )
    found: dict[str, Hit] = {}
    for session_id, message_id, cwd, role, at, excerpt in rows:
        # A fork has copies of the messages that it began with.
        found.setdefault(
            message_id,
            Hit(
                session_id=session_id,
                message_id=message_id,
                cwd=cwd,
                role=role,
                at=at,
                excerpt=" ".join(excerpt.split()),
            ),
        )
        if len(found) == limit:
            break
    return list(found.values())


# --- following the sessions -------------------------------------------------------------------------------


def _follow(index: sqlite3.Connection, home: Path) -> int:
    """Take up messages that are new; how many sessions are left."""
    path = home / database.FILE_NAME
    if not path.exists():
        return 0
    end = time.monotonic() + PATIENCE_S
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as sessions:
        there = _there(sessions, path)
        known = dict(index.execute("SELECT session_id, seq FROM indexed"))
        # Those that were deleted while a search took them up.
        for session_id in known.keys() - {session_id for session_id, _, _ in there}:
            _forget(index, session_id)
        behind = [(session_id, cwd) for session_id, seq, cwd in there if seq > known.get(session_id, 0)]
        for at, (session_id, cwd) in enumerate(behind):
            if not _follow_session(index, sessions, session_id, cwd, known.get(session_id, 0), end):
                return len(behind) - at
    return 0


def _there(sessions: sqlite3.Connection, path: Path) -> list[tuple[str, int, str]]:
    """(id, newest message, folder) of each session, the newest session first: one look at the index of
    messages, which each search takes. What is wrong with the sessions is not mended by a new index.
    """
    try:
        return sessions.execute(
            "SELECT m.session_id, m.newest, coalesce(s.cwd, '') FROM"
            " (SELECT session_id, max(seq) AS newest FROM messages GROUP BY session_id) m"
            " LEFT JOIN sessions s ON s.id = m.session_id ORDER BY coalesce(s.updated_at, '') DESC"
        ).fetchall()
    except sqlite3.OperationalError:
        # Locked, or not there yet.
        raise
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"the session store {path} cannot be read: {error}; `k3agent doctor` says what to do"
        ) from error


def _follow_session(
    index: sqlite3.Connection, sessions: sqlite3.Connection, session_id: str, cwd: str, seq: int, end: float
) -> bool:
    """False when time ran out in the middle; what was done counts."""
    while time.monotonic() < end:
        index.execute("BEGIN IMMEDIATE")
        try:
            # Another search may have come further meanwhile.
            done = index.execute("SELECT seq FROM indexed WHERE session_id = ?", (session_id,)).fetchone()
            seq = max(seq, done[0]) if done else seq
            rows = sessions.execute(
                "SELECT seq, body FROM messages WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
                (session_id, seq, BATCH),
            ).fetchall()
            if not rows:
                index.execute("ROLLBACK")
                return True
            for number, body in rows:
                seq = number
                _take_up(index, session_id, cwd, body)
            index.execute(
                "INSERT INTO indexed (session_id, seq) VALUES (?, ?)"
                " ON CONFLICT (session_id) DO UPDATE SET seq = excluded.seq",
                (session_id, seq),
            )
            index.execute("COMMIT")
        except BaseException:
            index.execute("ROLLBACK")
            raise
    return False


def _take_up(index: sqlite3.Connection, session_id: str, cwd: str, body: str) -> None:
    try:
        message = codec.message_from_json(body)
    except codec.FormatError:
        return
    text = _text_of(message)
    if text:
        index.execute(
            "INSERT INTO texts (body, session_id, message_id, cwd, role, at) VALUES (?,?,?,?,?,?)",
            (text, session_id, message.id, cwd, message.role.value, message.created_at.isoformat()),
        )


def _text_of(message: Message) -> str:
    """What people and the model said, what was called, and the beginnings of results; not k3agent's words."""
    if message.origin is Origin.HARNESS:
        return ""
    if message.role is Role.TOOL:
        parts = [result.text[:MAX_RESULT_CHARS] for result in message.results]
    else:
        parts = [message.text]
        parts += [f"{call.name} {call.arguments[:MAX_ARGUMENT_CHARS]}" for call in message.calls]
    return "\n".join(part for part in parts if part)[:MAX_BODY_CHARS]

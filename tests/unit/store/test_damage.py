"""A damaged store: whatever stands in a cell or page, reads give rows or an error that says what to do."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from k3agent.agent.undo import Undo
from k3agent.errors import StoreError
from k3agent.store.database import FILE_NAME
from k3agent.store.records import CallRow, CallState, JournalBatch, RequestRow, StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.store.snapshotrows import SnapshotKind
from k3agent.types import Message, MessageId, Origin, Role, SessionId, TextPart, ToolResult

ID = SessionId("s")
GARBAGE: tuple[Any, ...] = (
    *("", "x", "{", "[]", "{}", "[1]", "null", '"a"', "5", '{"v":99}', "\x1b[31m", '{"r": 5}', '{"r": "x"}'),
    *(None, 7, 1.5, b"\xff\xfe"),
)


def _fill(home: Path) -> None:
    store = SessionStore(home)
    store.create(StoredSession(id=ID, cwd="/w", title="t", model="m", system="be brief"))
    messages = [
        Message(
            id=MessageId(f"m{number}"),
            parent=MessageId(f"m{number - 1}") if number else None,
            role=Role.USER,
            origin=Origin.HUMAN,
            parts=(TextPart(text=f"{number} " + "é" * 3000),),
            created_at=datetime.now(UTC),
        )
        for number in range(3)
    ]
    store.start_turn(ID, messages[:1])
    for message in messages[1:]:
        store.add_message(ID, message)
    call = CallRow(
        turn=1, message_id=MessageId("m1"), call_id="c", tool="shell", arguments="{}", state=CallState.DONE,
        result=ToolResult(call_id="c", content=(TextPart(text="ok"),)), files=("/w/a",),
        seen={"/w/a": "h"},
    )  # fmt: skip
    store.record(ID, JournalBatch(ends=(call,)))
    store.add_request(ID, RequestRow(turn=1, outcome="ok", started_at=datetime.now(UTC), duration_s=1.0))
    store.add_snapshot(ID, SnapshotKind.CALL, {"/w": "a" * 40}, tool="shell")
    store.add_snapshot(ID, SnapshotKind.UNDO, {"/w": "b" * 40}, target=1)
    store.put_tasks(ID, "plan", [(0, "x", "open", {"a": 1})])
    store.save_draft(ID, "half")
    store.add_memory("/w", "a fact", "user")
    store.close()


def _read_all(store: SessionStore) -> int:
    """How many of the reads say that something is wrong; anything but a StoreError is a failure."""
    num_told = 0
    for read in (
        store.list_sessions,
        lambda: store.load(ID),
        lambda: store.messages(ID),
        lambda: store.calls(ID),
        lambda: store.requests(ID),
        lambda: store.decisions(ID),
        lambda: store.turns(ID),
        lambda: store.changed_files(ID),
        lambda: store.seen_files(ID),
        lambda: store.compactions(ID),
        lambda: store.task_rows(ID, "plan"),
        lambda: store.memories(None),
        lambda: store.subtree(ID),
        lambda: Undo(store, ID).steps(),
        store.waiting,
    ):
        try:
            read()
        except StoreError as error:
            num_told += 1
            assert str(error).isprintable(), error
            assert len(str(error)) < 700
    return num_told


def _cells(home: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(home / FILE_NAME)) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        full = [
            name
            for name in names
            if not name.startswith("sqlite") and any(db.execute(f"SELECT 1 FROM {name}"))
        ]
        return [(name, row[1]) for name in full for row in db.execute(f"PRAGMA table_info({name})")]


def test_garbage_in_any_cell_is_told(tmp_path: Path) -> None:
    _fill(tmp_path)
    whole = (tmp_path / FILE_NAME).read_bytes()
    num_told = num_tried = 0
    for table, column in _cells(tmp_path):
        for value in GARBAGE:
            for file in tmp_path.glob(f"{FILE_NAME}*"):
                file.unlink()
            (tmp_path / FILE_NAME).write_bytes(whole)
            with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
                db.execute("PRAGMA synchronous=OFF")
                db.execute("DROP TRIGGER messages_are_never_updated")
                place = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
                try:
                    db.execute(
                        f"UPDATE {table} SET {column} = {place}"
                        f" WHERE rowid = (SELECT min(rowid) FROM {table})",
                        (value,),
                    )
                except sqlite3.Error:
                    continue
                db.commit()
            store = SessionStore(tmp_path)
            num_told += _read_all(store)
            num_tried += 1
            store.close()
    assert num_tried > 700
    assert num_told > 100


@pytest.mark.parametrize("seed", range(40))
def test_random_bytes_in_the_file_are_told(tmp_path: Path, seed: int) -> None:
    _fill(tmp_path)
    path = tmp_path / FILE_NAME
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    if seed % 2:
        start = chance.randrange(len(data) // 4096) * 4096
        data[max(start, 100) : start + 4096] = chance.randbytes(start + 4096 - max(start, 100))
    else:
        for _ in range(40):
            data[chance.randrange(100, len(data))] = chance.randrange(256)
    path.write_bytes(data)
    try:
        store = SessionStore(tmp_path)
    except StoreError as error:
        assert str(path) in str(error)
        assert ".recover" in str(error) or "newer" in str(error) or "update k3agent" in str(error)
        return
    _read_all(store)
    store.close()


def test_a_transcript_with_a_hole_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    _fill(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.execute("DELETE FROM messages WHERE id = 'm1'")
        db.commit()
    store = SessionStore(tmp_path)
    with pytest.raises(StoreError, match=r"message m2 of session s follows 'm1'"):
        store.messages(ID)
    store.close()


def test_a_message_that_follows_itself_ends(tmp_path: Path) -> None:
    _fill(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.execute("DROP TRIGGER messages_are_never_updated")
        db.execute('UPDATE messages SET body = replace(body, \'"parent":"m1"\', \'"parent":"m2"\')')
        db.commit()
    store = SessionStore(tmp_path)
    with pytest.raises(StoreError, match=r"message m2"):
        store.messages(ID)
    store.close()

"""The store: what is written stays, is listed, and survives damage around it."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from k3agent.errors import StoreError
from k3agent.store import migrations
from k3agent.store.blobs import BlobStore, folder_of
from k3agent.store.database import FILE_NAME, open_database
from k3agent.store.journal import now
from k3agent.store.records import CallRow, CallState, DecisionRow, JournalBatch, RequestRow, StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import (
    Message,
    MessageId,
    Origin,
    Role,
    SessionId,
    TextPart,
    ToolResult,
    ToolSpec,
    Usage,
)

ONE = SessionId("11111111-aaaa")
TWO = SessionId("22222222-bbbb")


@pytest.fixture
def store(tmp_path: Path):
    store = SessionStore(tmp_path / "home")
    yield store
    store.close()


def message(number: int, parent: int | None = None, text: str = "") -> Message:
    return Message(
        id=MessageId(f"m{number}"),
        parent=None if parent is None else MessageId(f"m{parent}"),
        role=Role.USER,
        origin=Origin.HUMAN,
        parts=(TextPart(text=text or f"text {number}"),),
        created_at=datetime.now(UTC),
    )


def filled(store: SessionStore, session_id: SessionId = ONE, cwd: str = "/w") -> list[Message]:
    spec = ToolSpec(name="read", description="Read.", parameters={"type": "object"})
    store.create(StoredSession(id=session_id, cwd=cwd, model="m", system="S", tools=(spec,), meta={"a": 1}))
    written = [message(1), message(2, 1), message(3, 2)]
    for item in written:
        store.add_message(session_id, item)
    return written


def raw(store: SessionStore) -> sqlite3.Connection:
    return sqlite3.connect(store.home / FILE_NAME, isolation_level=None)


def test_a_session_comes_back_as_it_was_written(store: SessionStore) -> None:
    written = filled(store)
    assert store.messages(ONE) == written
    loaded = store.load(ONE)
    assert (loaded.cwd, loaded.system, loaded.meta, loaded.warnings) == ("/w", "S", {"a": 1}, ())
    assert loaded.tools[0].name == "read"


def test_reopening_gives_the_same(store: SessionStore) -> None:
    written = filled(store)
    store.close()
    again = SessionStore(store.home)
    assert again.messages(ONE) == written
    again.close()


def test_a_message_cannot_be_changed_in_place(store: SessionStore) -> None:
    filled(store)
    with pytest.raises(sqlite3.IntegrityError, match="written once"):
        raw(store).execute("UPDATE messages SET body = '{}'")


def test_the_same_message_is_not_taken_twice(store: SessionStore) -> None:
    filled(store)
    with pytest.raises(StoreError, match="UNIQUE"):
        store.add_message(ONE, message(3, 2))
    assert len(store.messages(ONE)) == 3


def test_the_list_is_newest_first_and_by_folder(store: SessionStore) -> None:
    filled(store, ONE, "/w")
    filled(store, TWO, "/w")
    other = SessionId("33333333")
    filled(store, other, "/elsewhere")
    assert [row.id for row in store.list_sessions("/w")] == [TWO, ONE]
    assert len(store.list_sessions()) == 3
    store.add_message(ONE, message(4, 3))
    latest = store.latest("/w")
    assert latest is not None and (latest.id, latest.num_messages) == (ONE, 4)
    assert store.latest("/nowhere") is None


def test_a_session_without_messages_is_not_the_latest(store: SessionStore) -> None:
    filled(store)
    store.create(StoredSession(id=TWO, cwd="/w"))
    latest = store.latest("/w")
    assert latest is not None and latest.id == ONE


def test_sessions_that_nobody_wrote_to_are_not_shown_and_go(store: SessionStore) -> None:
    filled(store)
    for name in ("unused", "turned", "open", "waiting", "child"):
        meta = {"task": {"parent": str(ONE), "number": 1}} if name == "child" else {}
        store.create(StoredSession(id=SessionId(name), cwd="/w", meta=meta))
    store.begin_waiting(StoredSession(id=SessionId("waiting"), cwd="/w"), now() + timedelta(hours=1))
    assert {row.id for row in store.shown_sessions("/w")} == {ONE, "waiting"}
    assert store.prune_unused() == []
    raw(store).execute(
        "INSERT INTO turns (session_id, seq, message_id, started_at) VALUES ('turned', 1, 'm', '')"
    )
    raw(store).execute("UPDATE sessions SET updated_at = '2020-01-01T00:00:00+00:00'")
    lock = store.lock(SessionId("open"))
    assert store.prune_unused() == ["unused"]
    lock.release()
    assert {row.id for row in store.list_sessions()} == {ONE, "turned", "open", "waiting", "child"}
    assert store.prune_unused(timedelta(0)) == ["open"]


def test_a_lost_row_loses_no_conversation(store: SessionStore) -> None:
    written = filled(store)
    raw(store).execute("DELETE FROM sessions")
    assert [(row.id, row.num_messages) for row in store.list_sessions()] == [(ONE, 3)]
    loaded = store.load(ONE)
    assert loaded.system == "" and "no metadata" in loaded.warnings[0]
    assert store.messages(ONE) == written
    assert store.resolve("1111") == ONE


@pytest.mark.parametrize("column", ["tools", "meta"])
@pytest.mark.parametrize("garbage", ["{torn", "[1, 2", "null", '[{"name": 3}]', ""])
def test_corrupt_metadata_gives_defaults_and_a_warning(
    store: SessionStore, column: str, garbage: str
) -> None:
    written = filled(store)
    raw(store).execute(f"UPDATE sessions SET {column} = ?", (garbage,))
    loaded = store.load(ONE)
    assert len(loaded.warnings) == 1 and ONE in loaded.warnings[0]
    assert store.messages(ONE) == written


def test_a_broken_time_does_not_hide_the_session(store: SessionStore) -> None:
    filled(store)
    raw(store).execute("UPDATE sessions SET created_at = 'soon', updated_at = 17")
    assert [row.id for row in store.list_sessions()] == [ONE]


def test_an_unreadable_message_is_named(store: SessionStore) -> None:
    filled(store)
    raw(store).execute("INSERT INTO messages VALUES (?, 9, 'x', 'm3', '{torn')", (ONE,))
    with pytest.raises(StoreError, match=f"message 9 of session {ONE}"):
        store.messages(ONE)


def test_ids_are_found_by_their_beginning(store: SessionStore) -> None:
    filled(store, ONE)
    filled(store, SessionId("11112222"))
    assert store.resolve("11111") == ONE
    with pytest.raises(StoreError, match="several"):
        store.resolve("1111")
    for missing in ("9", ""):
        with pytest.raises(StoreError, match=r"no session|several"):
            store.resolve(missing)
    with pytest.raises(StoreError, match="no session"):
        store.resolve("%")


def test_a_fork_is_a_copy_that_does_not_touch_its_source(store: SessionStore) -> None:
    written = filled(store)
    store.record(ONE, JournalBatch(starts=[_call("c1")], ends=[_call("c1", CallState.DONE)]))
    forked = store.fork(ONE, TWO)
    assert store.messages(TWO) == written == store.messages(ONE)
    assert (forked.parent_id, forked.fork_message_id, forked.system) == (ONE, "m3", "S")
    assert [row.call_id for row in store.calls(TWO)] == ["c1"]
    store.add_message(TWO, message(4, 3))
    assert len(store.messages(ONE)) == 3


def test_deleting_takes_one_session_and_its_blobs_only(store: SessionStore) -> None:
    filled(store, ONE)
    written = filled(store, TWO)
    for session_id in (ONE, TWO):
        BlobStore(folder_of(store.home, session_id)).put(b"data")
    store.delete(ONE)
    assert not store.exists(ONE) and not folder_of(store.home, ONE).exists()
    assert store.messages(TWO) == written and folder_of(store.home, TWO).exists()
    with pytest.raises(StoreError, match="no session"):
        store.delete(ONE)


def test_deleting_keeps_blobs_that_a_fork_points_to(store: SessionStore) -> None:
    filled(store)
    path = BlobStore(folder_of(store.home, ONE)).put(b"data")
    store.fork(ONE, TWO)
    store.delete(ONE)
    assert path.read_bytes() == b"data" and len(store.messages(TWO)) == 3


def test_outputs_go_with_the_session_but_not_what_ends_its_processes(store: SessionStore) -> None:
    for name in (ONE, TWO):
        folder = store.home / "outputs" / name
        folder.mkdir(parents=True)
        (folder / "output-0001-ab.txt").write_text("said")
    filled(store, ONE)
    filled(store, TWO)
    (store.home / "outputs" / TWO / "processes-1-1.json").write_text("{}")
    store.delete(ONE)
    store.delete(TWO)
    assert [path.name for path in (store.home / "outputs").rglob("*")] == [TWO, "processes-1-1.json"]


def test_a_session_in_use_is_not_deleted(store: SessionStore) -> None:
    filled(store)
    lock = store.lock(ONE)
    with pytest.raises(StoreError, match="in use"):
        store.delete(ONE)
    lock.release()
    assert store.exists(ONE)


def test_an_id_is_not_given_twice(store: SessionStore) -> None:
    filled(store)
    with pytest.raises(StoreError, match="exists already"):
        store.create(StoredSession(id=ONE, cwd="/w"))


# --- calls, turns, requests ---------------------------------------------------------------------------------


def _call(call_id: str, state: CallState = CallState.STARTED) -> CallRow:
    done = state is not CallState.STARTED
    return CallRow(
        turn=1,
        message_id=MessageId("m2"),
        call_id=call_id,
        tool="edit",
        arguments='{"path": "a"}',
        state=state,
        access={"writes": ["/w/a"]},
        hashes={"/w/a": "00"},
        result=ToolResult(call_id=call_id, content=(TextPart(text="ok"),)) if done else None,
        digest="d" if done else "",
        files=("a",) if done else (),
        seen={"/w/a": "s"} if done else {},
    )


def test_an_intent_is_kept_and_then_ended(store: SessionStore) -> None:
    filled(store)
    store.record(ONE, JournalBatch(starts=[_call("c1")]))
    assert store.calls(ONE) == [_call("c1")]
    store.record(ONE, JournalBatch(ends=[_call("c1", CallState.DONE)]))
    assert store.calls(ONE) == [_call("c1", CallState.DONE)]
    assert store.calls(ONE, turn=2) == []


def test_message_and_ends_are_one_commit(store: SessionStore) -> None:
    filled(store)
    store.record(ONE, JournalBatch(starts=[_call("c1")]))
    with pytest.raises(StoreError, match="UNIQUE"):
        store.add_message(ONE, message(3, 2), batch=JournalBatch(ends=[_call("c1", CallState.DONE)]))
    assert store.calls(ONE) == [_call("c1")]


def test_turns_open_and_close(store: SessionStore) -> None:
    filled(store)
    assert store.last_turn(ONE) is None
    assert store.start_turn(ONE, [message(4, 3)], title="first") == 1
    turn = store.last_turn(ONE)
    assert turn is not None and (turn.message_id, turn.outcome) == ("m4", None)
    store.end_turn(ONE, 1, "success", "")
    assert store.start_turn(ONE, [message(5, 4), message(6, 5)], title="second") == 2
    turn = store.last_turn(ONE)
    assert turn is not None and (turn.seq, turn.message_id) == (2, "m6")
    assert store.load(ONE).title == "first"


def test_drafts_are_outside_the_transcript_and_go_with_the_message(store: SessionStore) -> None:
    written = filled(store)
    store.save_draft(ONE, "half")
    store.save_draft(ONE, "half a sentence")
    assert store.draft(ONE) == "half a sentence" and store.messages(ONE) == written
    request = RequestRow(
        turn=1, outcome="ok", started_at=datetime.now(UTC), duration_s=1.5, usage=Usage(input_tokens=3)
    )
    store.add_message(ONE, message(4, 3), request=request)
    assert store.draft(ONE) is None
    assert store.requests(ONE) == [request]


def test_the_end_of_a_turn_takes_the_draft_with_it(store: SessionStore) -> None:
    filled(store)
    turn = store.start_turn(ONE, [message(4, 3)])
    store.save_draft(ONE, "half")
    store.end_turn(ONE, turn, "error_provider", "")
    assert store.draft(ONE) is None
    store.reopen_turn(ONE, turn)
    last = store.last_turn(ONE)
    assert last is not None and (last.seq, last.outcome) == (turn, None)


def test_decisions_and_tasks_are_kept_in_order(store: SessionStore) -> None:
    filled(store)
    rows = [
        DecisionRow(call_id=f"c{n}", tool="shell", subject="$ ls", action="allow", reason="r", by="mode")
        for n in range(3)
    ]
    store.record(ONE, JournalBatch(decisions=rows))
    assert store.decisions(ONE) == rows
    store.set_tasks(ONE, "todo", [("a", "done"), ("b", "active")])
    store.set_tasks(ONE, "todo", [("b", "done")])
    assert store.tasks(ONE, "todo") == [("b", "done")]


# --- files, locks, versions ---------------------------------------------------------------------------------


def test_files_are_for_the_user_alone(store: SessionStore) -> None:
    filled(store)
    blob = BlobStore(folder_of(store.home, ONE)).put("grün".encode())
    lock = store.lock(ONE)
    files = [path for path in store.home.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {FILE_NAME, f"{FILE_NAME}-wal", blob.name, lock.path.name}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(store.home.stat().st_mode) == 0o700
    lock.release()


def test_durability_settings_hold(store: SessionStore) -> None:
    assert store._db.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_equal_blobs_are_one_file(store: SessionStore) -> None:
    blobs = BlobStore(folder_of(store.home, ONE))
    assert blobs.put(b"x") == blobs.put(b"x") != blobs.put(b"y")
    assert {path.name for path in blobs.folder.iterdir()} == {blobs.put(b"x").name, blobs.put(b"y").name}


def test_the_second_lock_is_refused_and_names_the_holder(store: SessionStore) -> None:
    lock = store.lock(ONE)
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        store.lock(ONE)
    store.lock(TWO).release()
    lock.release()
    lock.release()
    store.lock(ONE).release()


def test_a_dead_process_holds_no_lock(store: SessionStore) -> None:
    program = (
        "import sys, time; from pathlib import Path; from k3agent.store.database import SessionLock;"
        f"lock = SessionLock(Path({str(store.home)!r}), {ONE!r}); print('locked', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "locked\n"
        with pytest.raises(StoreError, match=f"process {child.pid}"):
            store.lock(ONE)
    finally:
        child.kill()
        child.wait()
    store.lock(ONE).release()


def test_many_writers_at_once_lose_nothing(store: SessionStore, tmp_path: Path) -> None:
    """Four processes append to four sessions of one file while a fifth reads."""
    count = 250
    program = (
        "import sys; sys.path.insert(0, sys.argv[3]);"
        "from pathlib import Path; from test_sessions import message;"
        "from k3agent.store.sessions import SessionStore; from k3agent.store.records import StoredSession\n"
        "store = SessionStore(Path(sys.argv[1])); store.create(StoredSession(id=sys.argv[2], cwd='/w'))\n"
        f"for n in range({count}): store.add_message(sys.argv[2], message(n, n - 1 if n else None))"
    )
    here = str(Path(__file__).parent)
    names = [f"s{n}" for n in range(4)]
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(store.home), name, here]) for name in names
    ]
    while any(child.poll() is None for child in children):
        for row in store.list_sessions():
            assert len(store.messages(row.id)) <= count
    assert [child.returncode for child in children] == [0] * 4
    for name in names:
        assert [item.id for item in store.messages(SessionId(name))] == [f"m{n}" for n in range(count)]


def test_a_newer_database_is_refused_untouched(tmp_path: Path) -> None:
    open_database(tmp_path).execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"version 99.*update k3agent"):
        SessionStore(tmp_path)


def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a database, but somebody's file" * 40)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="cannot be used"):
        SessionStore(tmp_path)
    assert path.read_bytes() == before


def test_every_version_has_its_step() -> None:
    assert sorted(migrations.STEPS) == list(range(2, migrations.VERSION + 1))


def test_opening_does_not_load_sqlite_utils(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from k3agent.store.sessions import SessionStore;"
        f"SessionStore(Path({str(tmp_path)!r})).list_sessions(); assert 'sqlite_utils' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_full_disk_asks_for_space(store: SessionStore) -> None:
    store._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StoreError, match=r"full; free some space for .*home, or name another folder"):
        for number in range(200):
            store.create(StoredSession(id=SessionId(f"s{number}"), cwd="/w", title="x" * 3000))


def test_what_stands_in_the_way_of_a_lock_is_named(store: SessionStore) -> None:
    (store.home / "locks").write_text("")
    with pytest.raises(StoreError, match=r"look at .*locks"):
        store.lock(ONE)

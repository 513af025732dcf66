"""Full-text search over sessions: complete, incremental, and gone with what is deleted."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from k3agent.errors import StoreError
from k3agent.store.indexfile import FILE_NAME
from k3agent.store.records import StoredSession
from k3agent.store.search import MARKS, pieces, search
from k3agent.store.sessions import SessionStore
from k3agent.types import Message, MessageId, Origin, Role, SessionId, TextPart, ToolCall, ToolResult


def say(
    store: SessionStore,
    session: str,
    number: int,
    text: str,
    *,
    role: Role = Role.USER,
    origin: Origin = Origin.HUMAN,
) -> None:
    parts: tuple[TextPart | ToolCall | ToolResult, ...] = (TextPart(text=text),)
    if role is Role.TOOL:
        parts = (ToolResult(call_id="c", content=(TextPart(text=text),), is_error=False),)
    store.add_message(
        SessionId(session),
        Message(
            id=MessageId(f"{session}-{number}"),
            parent=MessageId(f"{session}-{number - 1}") if number > 1 else None,
            role=role,
            origin=origin,
            parts=parts,
            created_at=datetime(2026, 1, number, tzinfo=UTC),
        ),
    )


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    store = SessionStore(tmp_path)
    for session, cwd in (("one", "/w/a"), ("two", "/w/a/sub"), ("three", "/w/ab")):
        store.create(StoredSession(id=SessionId(session), cwd=cwd))
    return store


def test_words_are_found_where_they_stand(store: SessionStore) -> None:
    say(store, "one", 1, "The parser drops my_token at the end of Café files.")
    say(store, "two", 1, "parser", role=Role.TOOL, origin=Origin.TOOL)
    say(store, "three", 1, "parser elsewhere")
    say(store, "one", 2, "parser facts", origin=Origin.HARNESS)
    found = search(store.home, "parser", root="/w/a")
    assert sorted((hit.session_id, hit.role) for hit in found.hits) == [("one", "user"), ("two", "tool")]
    assert search(store.home, "parser").hits[0].excerpt.count("[parser]") == 1
    assert len(search(store.home, "parser", limit=1).hits) == 1
    marked = search(store.home, "parser", marks=MARKS).hits[0].excerpt
    assert "[" not in marked and [part for part, is_hit in pieces(marked) if is_hit] == ["parser"]
    assert "".join(part for part, _ in pieces(marked)) == marked.replace("\x01", "").replace("\x02", "")
    assert {hit.session_id for hit in search(store.home, "parser", without="one").hits} == {"two", "three"}
    assert [hit.session_id for hit in search(store.home, "cafe my_tok").hits] == ["one"]
    # All words if possible, else some.
    assert [hit.session_id for hit in search(store.home, "elsewhere café").hits] != []
    assert not search(store.home, "token_").hits
    store.close()


def test_what_comes_later_is_found_and_nothing_twice(store: SessionStore) -> None:
    say(store, "one", 1, "first word")
    assert len(search(store.home, "word").hits) == 1
    say(store, "one", 2, "second word")
    assert len(search(store.home, "word").hits) == 2
    store.fork(SessionId("one"), SessionId("copy"))
    assert len(search(store.home, "word").hits) == 2
    store.close()


def test_a_deleted_session_leaves_no_word_in_the_file(store: SessionStore) -> None:
    say(store, "one", 1, "confidentialword stays")
    say(store, "two", 1, "something else")
    assert search(store.home, "confidentialword").hits
    store.delete(SessionId("one"))
    assert not search(store.home, "confidentialword").hits
    assert search(store.home, "something").hits
    with closing(sqlite3.connect(store.home / FILE_NAME)) as index:
        index.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"confidentialword" not in (store.home / FILE_NAME).read_bytes()
    store.close()


def test_a_broken_index_is_made_again(store: SessionStore) -> None:
    say(store, "one", 1, "lasting word")
    assert search(store.home, "lasting").hits
    (store.home / FILE_NAME).write_bytes(b"this is no database" * 100)
    assert search(store.home, "lasting").hits
    assert (store.home / FILE_NAME).stat().st_mode & 0o077 == 0
    store.close()


@pytest.mark.parametrize("words", ['"', "a OR", "NEAR(", "col:x", "*", "-x", "'; DROP TABLE texts"])
def test_no_words_are_syntax(store: SessionStore, words: str) -> None:
    say(store, "one", 1, "plain")
    try:
        assert isinstance(search(store.home, words).hits, tuple)
    except StoreError as error:
        assert "no word" in str(error)
    assert search(store.home, "plain").hits
    store.close()


def test_facts_are_kept_once_changed_and_removed(store: SessionStore) -> None:
    first = store.add_memory("/w/a", "  tea\n not coffee ", "user")
    assert store.add_memory("/w/a", "tea not coffee", "model").id == first.id
    other = store.add_memory("", "everywhere", "model")
    assert [memory.id for memory in store.memories("/w/a")] == [first.id, other.id]
    assert [memory.id for memory in store.memories("/w/b")] == [other.id]
    store.change_memory(other.id, "now this")
    assert (store.memory(other.id).text, store.memory(other.id).by) == ("now this", "user")
    store.remove_memory(first.id)
    with pytest.raises(StoreError, match=f"no memory {first.id}"):
        store.remove_memory(first.id)
    with pytest.raises(StoreError, match="1 to 1000"):
        store.add_memory("", "x" * 1001, "user")
    # A number is never given to another fact.
    assert store.add_memory("/w/a", "new", "user").id > other.id
    store.close()


def test_searches_at_once_take_up_each_message_once(store: SessionStore) -> None:
    for number in range(1, 28):
        say(store, "one", number, f"common word {number}")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: search(store.home, "common"), range(8)))
    with closing(sqlite3.connect(store.home / FILE_NAME)) as index:
        assert index.execute("SELECT count(*) FROM texts").fetchone() == (27,)
    store.close()


def test_what_a_search_took_up_of_a_session_that_was_deleted_meanwhile_goes(store: SessionStore) -> None:
    say(store, "one", 1, "confidentialword")
    say(store, "two", 1, "something else")
    assert search(store.home, "confidentialword").hits
    # As if the search had come between the index and the rows.
    store._db.execute("DELETE FROM messages WHERE session_id = 'one'")
    assert not search(store.home, "confidentialword").hits
    store.close()


def test_a_search_looks_at_the_messages_once_where_none_is_new(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(store, "one", 1, "a first word")
    assert search(store.home, "first").hits
    asked, connect = list[str](), sqlite3.connect

    def listening(*words: Any, **more: Any) -> sqlite3.Connection:
        made = connect(*words, **more)
        made.set_trace_callback(asked.append)
        return made

    monkeypatch.setattr(sqlite3, "connect", listening)
    assert search(store.home, "first").hits
    assert len([one for one in asked if "FROM messages" in one]) == 1


def test_what_is_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / "k3agent.db").write_text("no database")
    with pytest.raises(StoreError, match=r"session store .*k3agent\.db cannot be read"):
        search(tmp_path, "word")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="make the folder writable"):
        search(tmp_path / "file" / "home", "word")

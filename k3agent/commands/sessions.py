"""`k3agent sessions`: earlier sessions, listed, shown, exported, forked and deleted."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from k3agent.agent.sockets import is_heard
from k3agent.commands.actions import add_scope, find_action
from k3agent.commands.asking import add_yes, is_agreed
from k3agent.config.paths import data_home
from k3agent.errors import StoreError
from k3agent.events import TurnEnded
from k3agent.export import FORMATS, export_session, row_to_dict
from k3agent.headless.arguments import Parser, check_file
from k3agent.headless.output import print_foreign
from k3agent.store.records import SessionRow
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, SessionId

# How long a run that was asked to stop may take to end in good order.
STOP_S = 30.0


def sessions(argv: Sequence[str]) -> int:
    """`k3agent sessions list|show|export|fork|stop|uncompact|rm`."""
    actions = {"list": _list, "show": _show, "export": _export, "fork": _fork}
    actions.update({"stop": _stop, "uncompact": _uncompact, "rm": _remove})
    action, rest = find_action("sessions", "earlier sessions", argv, actions)
    store = SessionStore(data_home(os.environ))
    try:
        return action(store, rest)
    finally:
        store.close()


def _row(store: SessionStore, prefix: str) -> SessionRow:
    found = store.resolve(prefix)
    row = next((row for row in store.list_sessions() if row.id == found), None)
    if row is None:
        raise StoreError(f"no session {prefix!r}; `k3agent sessions list` shows them")
    return row


def _list(store: SessionStore, argv: Sequence[str]) -> int:
    about = (
        "All sessions, newest first; ● marks those that run now, ○ those that wait for their time, ⊘ those"
        " whose process was killed in a turn: `k3agent run --resume ID` goes on with it."
    )
    parser = Parser("sessions list", about)
    parser.add_argument("--json", action="store_true", help="one JSON array")
    add_scope(parser, "those", "this folder", "all folders", is_here=False)
    parser.add_argument("--subagents", action="store_true", help="also those of subagents")
    args = parser.parse(argv)
    rows = store.shown_sessions(Path.cwd() if args.is_here else None, with_subagents=args.subagents)
    home, waiting, unfinished = data_home(os.environ), store.waiting(), store.unfinished()
    states = [_State.of(store, home, row.id, waiting.get(row.id), row.id in unfinished) for row in rows]
    if args.json:
        found = [{**row_to_dict(row), **state.line} for row, state in zip(rows, states, strict=True)]
        print(json.dumps(found, ensure_ascii=False, indent=1))
        return 0
    for row, state in zip(rows, states, strict=True):
        title = state.mark + " ".join(row.title.split())[:60]
        print(
            f"{row.id}  {row.updated_at:%Y-%m-%d %H:%M}  {row.num_messages:4} messages  {row.model:<14}  "
            f"{title}  ({row.cwd})"
        )
    if any(state.is_interrupted for state in states):
        print("⊘: killed in a turn; `k3agent run --resume ID` goes on with it.", file=sys.stderr)
    if not rows:
        nothing = (
            "No sessions of this folder; --all shows those of all folders."
            if args.is_here
            else "No sessions yet."
        )
        print(nothing, file=sys.stderr)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """Whether a process runs the session, until when it waits, and whether one was killed in its turn."""

    is_heard: bool
    waits_until: datetime | None
    is_interrupted: bool

    @classmethod
    def of(
        cls,
        store: SessionStore,
        home: Path,
        session_id: SessionId,
        waits_until: datetime | None,
        is_unfinished: bool,
    ) -> _State:
        heard = is_heard(home, session_id)
        is_left = is_unfinished and not heard and waits_until is None and not _is_open(store, session_id)
        return cls(is_heard=heard, waits_until=waits_until, is_interrupted=is_left)

    @property
    def line(self) -> JsonObject:
        until = None if self.waits_until is None else self.waits_until.isoformat()
        return {
            "is_running": self.is_heard and until is None,
            "is_waiting": self.is_heard and until is not None,
            "is_interrupted": self.is_interrupted,
            "waits_until": until,
        }

    @property
    def mark(self) -> str:
        if self.is_interrupted:
            return "⊘ interrupted: "
        if self.waits_until is None:
            return "● " if self.is_heard else ""
        at = f"{self.waits_until.astimezone():%Y-%m-%d %H:%M}"
        if self.is_heard:
            return f"○ waits until {at}: "
        return f"was to begin at {at}, its process is gone: "


def _is_open(store: SessionStore, session_id: SessionId) -> bool:
    """Whether a process has it, also one that cannot be watched."""
    try:
        store.lock(session_id).release()
    except StoreError:
        return True
    return False


def _stop(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("sessions stop", "Interrupt the run of a session, or cancel one that waits for its time.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    args = parser.parse(argv)
    found = store.resolve(args.id)
    home = data_home(os.environ)
    if not asyncio.run(_interrupt(home, found)):
        if found in store.waiting():
            # Its process was killed: what is left of it is the entry in the list.
            lock = store.lock(found)
            store.end_waiting(found)
            lock.release()
            print(f"{found} was waiting and its process is gone: removed from the list")
            return 0
        print(f"no process runs {found}", file=sys.stderr)
        return 1
    print(f"stopped {found}")
    return 0


async def _interrupt(home: Path, session_id: str) -> bool:
    """Have the process that runs it end its turn, and wait for that. Whether there is one."""
    from k3agent.agent.watched import WatchedSession  # lazy: brings the agent

    session = await WatchedSession.open(home, session_id)
    if session is None:
        return False
    if not session.is_running:
        await session.aclose()
        raise StoreError(f"process {session.pid} has {session_id} open, and no turn runs in it")
    over = asyncio.Event()
    session.on_over = over.set
    session.subscribe(lambda event: over.set() if isinstance(event, TurnEnded) else None)
    session.interrupt("k3agent sessions stop")
    try:
        async with asyncio.timeout(STOP_S):
            await over.wait()
    except TimeoutError as error:
        raise StoreError(
            f"process {session.pid} does not stop within {STOP_S:g} s; end it by its id"
        ) from error
    finally:
        await session.aclose()
    return True


def _show(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("sessions show", "A session's conversation.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    args = parser.parse(argv)
    row = _row(store, args.id)
    print_foreign(export_session(row, store.messages(row.id), "md", store.compactions(row.id)) + "\n")
    return 0


def _export(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("sessions export", "A session as a file.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    parser.add_argument("--format", choices=FORMATS, default="md", help="the kind of file (default: md)")
    parser.add_argument(
        "-o", dest="file", type=Path, metavar="FILE", help="into FILE instead of standard output"
    )
    args = parser.parse(argv)
    check_file(parser, "-o", args.file)
    row = _row(store, args.id)
    text = export_session(row, store.messages(row.id), args.format, store.compactions(row.id))
    if args.file is None:
        print_foreign(text)
    else:
        args.file.write_text(text, encoding="utf-8")
    return 0


def _fork(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("sessions fork", "A new session that starts from all of another; prints its id.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    args = parser.parse(argv)
    print(store.fork(store.resolve(args.id), SessionId(str(uuid.uuid4()))).id)
    return 0


def _uncompact(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("sessions uncompact", "Undo the newest compaction: the whole conversation goes on.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    args = parser.parse(argv)
    found = store.resolve(args.id)
    lock = store.lock(found)
    try:
        is_done = store.undo_compaction(found)
    finally:
        lock.release()
    print(f"undone in {found}" if is_done else f"{found} has no compaction to undo")
    return 0 if is_done else 1


def _remove(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("sessions rm", "Delete sessions for good.")
    parser.add_argument("ids", nargs="+", metavar="ID", help="ids, or their beginnings")
    add_yes(parser)
    args = parser.parse(argv)
    rows = [_row(store, prefix) for prefix in args.ids]
    if not args.yes:
        for row in rows:
            print(f"{row.id}  {row.title}  ({row.num_messages} messages)")
        if not is_agreed(parser, f"Delete {len(rows)} for good?"):
            return 1
    for row in rows:
        store.delete(row.id)
        print(f"deleted {row.id}")
    return 0

"""`k3agent undo`: files as they were before a step of a session."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from k3agent.agent.undo import DAMAGED, Preview, Undo, described
from k3agent.commands.asking import add_yes, is_agreed
from k3agent.config.paths import data_home
from k3agent.errors import StoreError
from k3agent.headless.arguments import Parser, positive_int
from k3agent.safety.visible import clean
from k3agent.store.sessions import SessionStore
from k3agent.store.snapshotrows import SnapshotRow
from k3agent.types import SessionId


def undo(argv: Sequence[str]) -> int:
    """`k3agent undo [--to STEP]`: 0 restored, 1 not or not all, or nothing to undo."""
    parser = Parser(
        "undo",
        "Restore files to what they were before a step; without --to: before the last step that changed any."
        " It says first what it will change, and is a step itself, so it can be undone.",
    )
    parser.add_argument("--to", type=positive_int, metavar="STEP", help="files as they were before this step")
    parser.add_argument("--list", action="store_true", help="the steps, and change nothing")
    parser.add_argument("--dry-run", action="store_true", help="what would change, and change nothing")
    add_yes(parser)
    parser.add_argument(
        "--session", metavar="ID", help="of this session (default: the newest of this folder)"
    )
    parser.add_argument("--json", action="store_true", help="--list or --dry-run as JSON")
    args = parser.parse(argv)
    if args.json and not (args.list or args.dry_run):
        parser.error("--json goes with --list or --dry-run.")
    store = SessionStore(data_home(os.environ))
    try:
        session_id = store.resolve(args.session) if args.session else _newest(store)
        found = Undo(store, session_id)
        if args.list:
            return _list(found, session_id, as_json=args.json)
        target = found.last() if args.to is None else found.find(args.to)
        if target is None:
            print(f"Nothing to undo in session {session_id}.", file=sys.stderr)
            return 1
        preview = found.preview(target)
        print(_as_json(preview) if args.json else "\n".join(map(_name, described(preview))))
        if args.to is None and not args.json:
            _tell_of_earlier(found, target)
        if preview.is_empty or args.dry_run:
            return 0
        _tell_of_user(store, session_id)
        if not (args.yes or is_agreed(parser, "Do this?", ", or --dry-run to only look")):
            return 1
        return _restore(found, session_id, preview)
    finally:
        store.close()


def _tell_of_earlier(found: Undo, target: SnapshotRow) -> None:
    """One task often changes files in several steps, of which only the last is taken back."""
    steps = [row for row, changed in found.steps() if changed not in (0, DAMAGED)]
    earlier = [row.seq for row in steps if row.turn == target.turn]
    if earlier and earlier[0] < target.seq:
        print(f"Steps before it changed files in the same turn; --to {earlier[0]} takes back all of them.")


def _tell_of_user(store: SessionStore, session_id: SessionId) -> None:
    """Another process may be changing the same files."""
    try:
        store.lock(session_id).release()
    except StoreError as error:
        print(f"Note: {error}. Its model will be told what was restored.", file=sys.stderr)


def _newest(store: SessionStore) -> SessionId:
    """The newest session here that has steps. Raises StoreError."""
    here = Path.cwd().resolve()
    for row in store.list_sessions():
        is_here = bool(row.cwd) and (here.is_relative_to(row.cwd) or Path(row.cwd).is_relative_to(here))
        if is_here and not row.owner and store.snapshots(row.id):
            return row.id
    raise StoreError(f"no session of {here} has changed files; name one with --session")


def _list(found: Undo, session_id: str, *, as_json: bool) -> int:
    steps = found.steps()
    if as_json:
        entries = [
            {
                "step": row.seq,
                "kind": row.kind.value,
                "turn": row.turn,
                "tool": row.tool,
                "summary": row.summary,
                "num_files": None if number == DAMAGED else number,
                "is_damaged": number == DAMAGED,
                "at": row.created_at.isoformat(),
            }
            for row, number in steps
        ]
        print(json.dumps(entries, ensure_ascii=False, indent=1))
        return 0
    print(f"Steps of session {session_id}; `k3agent undo --to STEP` restores the files from before it:")
    for row, number in steps:
        changed = "last" if number is None else f"{number} changed" if number else "-"
        changed = "damaged" if number == DAMAGED else changed
        summary = clean(" ".join(row.summary.split()))[:80]
        at = f"{row.created_at.astimezone():%m-%d %H:%M:%S}"
        print(f"{row.seq:>5}  {at}  turn {row.turn:<3} {changed:>12}  {summary}")
    return 0


def _as_json(preview: Preview) -> str:
    plans = {
        root: {
            "bring_back": plan.created,
            "change": plan.changed,
            "delete": plan.deleted,
            "mode": plan.modes,
            "make_folder": plan.folders_made,
            "remove_folder": plan.folders_removed,
            "not_saved": plan.lost,
        }
        for root, plan in preview.plans.items()
    }
    return json.dumps({"step": preview.target.seq, "folders": plans}, indent=1)


def _restore(found: Undo, session_id: str, preview: Preview) -> int:
    outcome = found.restore(preview)
    for path, reason in outcome.failures.items():
        print(f"not restored: {_name(path)}: {reason}", file=sys.stderr)
    done = len(preview.paths) - len(outcome.failures)
    print(
        f"Restored {done} of {len(preview.paths)}. To take this back:"
        f" k3agent undo --session {session_id} --to {outcome.seq}"
    )
    if outcome.failures:
        print("Mend what is in the way and run k3agent undo again.", file=sys.stderr)
    return 1 if outcome.failures else 0


def _name(text: str) -> str:
    """One line, without anything that a terminal would obey."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return clean(text.replace("\n", "�").replace("\t", "�"))

"""Saves the files of the workspace before each call with effects, so that `undo` can bring them back.

A call that only looks costs nothing; before a command, and before the first edit of an answer, all files are
looked at and those that have changed are saved. Where that fails, the call is not run without a word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.agent.approvals import Approvals
from k3agent.agent.changes import BY_PRODUCTS
from k3agent.agent.git_marks import git_folder
from k3agent.agent.permissions import Territory
from k3agent.errors import StoreError
from k3agent.events import Decision
from k3agent.store import worktree
from k3agent.store.filetree import Extra, Rules, TooMuch
from k3agent.store.snapshotrows import SnapshotKind
from k3agent.store.snapshots import Saved, Snapshots
from k3agent.store.worktree import roots_of
from k3agent.types import JsonObject, SessionId

if TYPE_CHECKING:
    from k3agent.agent.destruction import Effects, Threat
    from k3agent.store.sessions import SessionStore
    from k3agent.tools.base import Access

log = logging.getLogger(__name__)

Notify = Callable[[str], None]

MAX_SHOWN = 8
# What these calls start has steps of its own, in other sessions; undoing the call takes all of it back.
STARTERS = ("task",)
# Folders that are never looked into, unless a command is about to destroy them.
LEFT_OUT = BY_PRODUCTS - {".git"}


@dataclass(frozen=True, slots=True)
class Step:
    """A call that is about to run."""

    turn: int
    message_id: str
    call_id: str
    tool: str
    summary: str


class Safekeeping:
    """The snapshots of one session."""

    def __init__(self, home: Path, session_id: SessionId, territory: Territory) -> None:
        self._home = home
        self._session_id = session_id
        self._territory = territory
        self._found: list[Snapshots] | None = None
        # Folders with too many files: only what a call names is saved there.
        self._too_much: dict[Path, str] = {}
        self._rules: dict[Path, tuple[object, Rules]] = {}
        self._message_id = ""
        self._has_saved = False
        self._last: dict[str, str] = {}
        self._said: set[str] = set()

    @property
    def _places(self) -> list[Snapshots]:
        if self._found is None:
            self._found = [Snapshots(self._home, root) for root in roots_of(self._territory.roots)]
        return self._found

    # --- before a call ------------------------------------------------------------------------------------

    async def guard(
        self, step: Step, access: Access, store: SessionStore, approvals: Approvals, notify: Notify
    ) -> str | None:
        """Save what the call may change. None when it may run, else the text for the model."""
        effects = self._effects(access)
        is_unknown = step.tool in STARTERS or access.calls is not None
        may_change = is_unknown or (effects is not None and not effects.only_looks)
        if not access.writes and not may_change:
            return None
        if worktree.git_program() is None:
            self._say_once(notify, "git is not installed: files are not saved, nothing can be undone")
            return None
        problem = await self._keep(step, effects, access.writes, store, notify)
        if not problem:
            return None
        notify(f"not saved before this call, so undo cannot bring it back: {problem}")
        if effects is None or not effects.destroyer:
            return None
        reason = f"it may throw work away that could not be saved first: {problem}"
        answer = await approvals.ask(step.call_id, step.tool, step.summary, reason)
        if answer is not None and answer.decision is Decision.ALLOW:
            return None
        who = "nobody can be asked here" if answer is None else "the user said no"
        return f"not run: {reason} ({who}). Do without it, or say what is needed."

    async def _keep(
        self,
        step: Step,
        effects: Effects | None,
        writes: Sequence[Path],
        store: SessionStore,
        notify: Notify,
    ) -> str:
        """Save and note it. Why that is not possible, or ''."""
        # Within one answer, edits one after another: only their own files can have changed.
        is_full = not writes or effects is not None or self._message_id != step.message_id
        try:
            commits, details = await asyncio.to_thread(self._save, effects, writes, is_full)
            store.add_snapshot(
                self._session_id,
                SnapshotKind.CALL,
                commits,
                turn=step.turn,
                message_id=step.message_id,
                call_id=step.call_id,
                tool=step.tool,
                summary=step.summary,
                details=details,
            )
        except StoreError as error:
            log.warning("no snapshot before %s: %s", step.tool, error)
            return str(error)
        finally:
            for place in self._places:
                if damage := place.take_damage():
                    notify(damage)
        self._message_id = step.message_id
        self._has_saved = True
        self._last = commits
        outside = [str(path) for path in writes if not any(path.is_relative_to(root) for root in commits)]
        if outside:
            notify(f"outside of the workspace, so undo does not bring it back: {', '.join(outside)}")
        for text in self._too_much.values():
            self._say_once(notify, f"{text}: undo brings back only what a call names there")
        for about in details.values():
            if "unsaved" in about:
                notify(
                    f"not saved before this call, so undo cannot bring it back: {_listed(about['unsaved'])}"
                )
        if self._too_much and effects is not None and any(one.reasons is not None for one in effects.threats):
            return next(iter(self._too_much.values()))
        return ""

    def _effects(self, access: Access) -> Effects | None:
        """None for a call that runs no command."""
        if access.runs is None:
            return None
        from k3agent.agent.destruction import effects_of  # lazy: tree-sitter, 30 ms

        return effects_of(access.runs, self._territory)

    def _save(
        self, effects: Effects | None, writes: Sequence[Path], is_full: bool
    ) -> tuple[dict[str, str], JsonObject]:
        commits: dict[str, str] = {}
        details: JsonObject = {}
        for place in self._places:
            named = [path for path in (_relative(path, place.root) for path in writes) if path]
            extra = [Extra(path, may_be_new=True) for path in named]
            if effects is not None:
                extra += _extra(effects.threats, place.root)
            saved = self._save_place(place, extra, named, is_full)
            commits[str(place.root)] = saved.commit
            about: JsonObject = {}
            if effects is not None and effects.drops_refs and (place.root / ".git").exists():
                about = _references(place.root)
            if saved.unsaved:
                about["unsaved"] = saved.unsaved
            if about:
                details[str(place.root)] = about
        return commits, details

    def _save_place(
        self, place: Snapshots, extra: Sequence[Extra], named: Sequence[str], is_full: bool
    ) -> Saved:
        if place.root not in self._too_much:
            try:
                only = None if is_full else named
                rules, renew = self._rules_of(place.root)
                return place.save(self._session_id, rules, extra=extra, only=only, renew=renew)
            except TooMuch as error:
                self._too_much[place.root] = str(error)
        return place.save(self._session_id, Rules(max_files=0), extra=extra)

    def _rules_of(self, root: Path) -> tuple[Rules, Callable[[], Rules] | None]:
        """The rules, and what gives them anew if new files show up: git is not asked before each call."""
        stamp = _stamp(root)

        def renew() -> Rules:
            rules = rules_of(root, self._home)
            self._rules[root] = stamp, rules
            return rules

        known = self._rules.get(root)
        if known is None or stamp is None or known[0] != stamp:
            return renew(), None
        return known[1], renew

    def _say_once(self, notify: Notify, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            notify(text)

    # --- around a turn ------------------------------------------------------------------------------------

    async def end_turn(self, turn: int, store: SessionStore) -> None:
        """Save what the turn left, so that later changes by others are told from its own."""
        if not self._has_saved:
            return
        self._has_saved = False
        try:
            commits, _ = await asyncio.to_thread(self._save, None, (), True)
            if commits != self._last:
                store.add_snapshot(self._session_id, SnapshotKind.TURN_END, commits, turn=turn)
        except StoreError as error:
            # The turn is more than its last snapshot: a full disk takes only this one.
            log.warning("no snapshot at the end of turn %s: %s", turn, error)
            return
        self._message_id = ""
        self._last = commits
        await asyncio.to_thread(self._remember)

    def _remember(self) -> None:
        for place in self._places:
            place.remember()


def restore_notices(store: SessionStore, session_id: SessionId) -> list[str]:
    """What the model has to be told: files that were brought back since it last looked."""
    texts: list[str] = []
    for row in store.take_untold_restores(session_id):
        files: list[str] = row.details.get("files", [])
        more = f" and {len(files) - MAX_SHOWN} more" if len(files) > MAX_SHOWN else ""
        texts.append(
            "The user has undone changes: these files are again as they were before step"
            f" {row.target}: {', '.join(files[:MAX_SHOWN])}{more}. Read a file again before you change it,"
            " and do not repeat what was undone unless asked."
        )
    return texts


def _listed(unsaved: dict[str, str]) -> str:
    shown = "; ".join(f"{path}: {why}" for path, why in list(unsaved.items())[:MAX_SHOWN])
    more = len(unsaved) - MAX_SHOWN
    return f"{shown}; and {more} more" if more > 0 else shown


def rules_of(root: Path, home: Path) -> Rules:
    """What is covered in this folder. Raises StoreError where git does not answer."""
    private = _relative(home.resolve(), root)
    kept = frozenset((private,)) if private else frozenset()
    if not (root / ".git").exists():
        return Rules(by_products=LEFT_OUT, private=kept)
    try:
        ignored, tracked = worktree.ignored_paths(root), worktree.tracked_paths(root)
    except StoreError as error:
        # Damaged, or somebody else's: then it is a folder like others.
        log.info("%s", error)
        return Rules(by_products=LEFT_OUT, private=kept)
    return Rules(ignored=ignored, private=kept, tracked=tracked)


def _stamp(root: Path) -> object:
    """What tells that git tracks or ignores other files than before, by its own folder; None where
    that cannot be told.
    """
    folder = git_folder(root)
    if folder is None:
        return "no repository"
    times: list[int] = []
    for name in ("index", "info/exclude"):
        try:
            info = (folder / name).stat()
        except OSError:
            times.append(0)
            continue
        times += [info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino]
    # In a linked work tree the rules lie elsewhere.
    return tuple(times) if folder.name == ".git" else None


def _relative(path: Path, root: Path) -> str | None:
    """None outside of `root`; '' for itself."""
    if not path.is_relative_to(root):
        return None
    return "" if path == root else str(path.relative_to(root))


def _extra(threats: Sequence[Threat], root: Path) -> list[Extra]:
    found: list[Extra] = []
    for threat in threats:
        path = _relative(threat.place, root)
        if path is None and root.is_relative_to(threat.place):
            path = ""
        if path is not None:
            found.append(Extra(path, threat.reasons))
    return found


def _references(root: Path) -> JsonObject:
    try:
        return {"refs": worktree.references(root), "stashes": worktree.stashes(root)}
    except StoreError as error:
        log.info("%s", error)
        return {}

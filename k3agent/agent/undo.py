"""Takes files back to a step of a session: the steps there are, what a restore would change, and the restore.

Before it changes anything, the files are saved as they are now: an undo is a step itself and can be undone.
Killed in the middle, it is made again and ends the same.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from k3agent.agent.safekeeping import rules_of
from k3agent.errors import StoreError
from k3agent.store import restoring, worktree
from k3agent.store.filetree import Extra, Rules, TooMuch, Tree, copy_of, take_over
from k3agent.store.restoring import Plan, Restorer
from k3agent.store.sessions import SessionStore
from k3agent.store.snapshotrows import SnapshotKind, SnapshotRow
from k3agent.store.snapshots import Saved, Snapshots
from k3agent.types import JsonObject, SessionId

log = logging.getLogger(__name__)

NO_LIMIT = 1 << 62
DAMAGED = -1
MAX_SHOWN = 200
MAX_LOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Branches, tags (name to commit) and stashes (commit, title) that are gone and can be made again;
    `head`: the commit that was checked out, where it is another one now.
    """

    refs: Mapping[str, str]
    stashes: Sequence[tuple[str, str]]
    head: str

    @property
    def is_empty(self) -> bool:
        return not self.refs and not self.stashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a restore to before `target` will do, by folder. `saved`: the files as they are now, without a
    commit where they were only looked at; `only`: the
    one file that is brought back.
    """

    target: SnapshotRow
    saved: dict[str, Saved]
    trees: dict[str, Tree]
    plans: dict[str, Plan]
    references: dict[str, References]
    only: str | None = None

    def reduced(self, path: str) -> Preview:
        """The part that brings back one file, given by its absolute path."""
        plans = {
            root: restoring.only(plan, str(Path(path).relative_to(root)))
            for root, plan in self.plans.items()
            if Path(path).is_relative_to(root)
        }
        return replace(self, plans=plans, references={}, only=path)

    @property
    def is_empty(self) -> bool:
        plans, references = self.plans.values(), self.references.values()
        return all(plan.is_empty for plan in plans) and all(one.is_empty for one in references)

    @property
    def actions(self) -> list[tuple[str, str]]:
        """(what is done, path relative to its folder), all folders."""
        return [action for plan in self.plans.values() for action in _actions(plan)]

    @property
    def paths(self) -> list[str]:
        """All that changes, as absolute paths."""
        return sorted(str(Path(root) / path) for root, plan in self.plans.items() for path in plan.paths)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """`seq`: the step to go back to in order to take the restore back."""

    seq: int
    failures: dict[str, str] = field(default_factory=dict)


def step_of_turn(rows: Sequence[SnapshotRow], turn: int, files: Collection[Path]) -> int | None:
    """The step to go back to in order to take back what a turn did to these files (absolute paths): the first
    of the turn before which the files were not as after it. None where none of them was saved.
    """
    found: int | None = None
    for row, later in itertools.zip_longest(rows, rows[1:]):
        if row.turn != turn or row.kind is not SnapshotKind.CALL:
            continue
        if not any(path.is_relative_to(root) for path in files for root in row.commits):
            continue
        found = row.seq
        if later is None or row.commits != later.commits:
            break
    return found


class Undo:
    """Of one session. Blocking; `preview`, `look_again` and `carry_out` may run in any thread."""

    def __init__(self, store: SessionStore, session_id: SessionId) -> None:
        self._store = store
        self._session_id = session_id
        self._places: dict[str, Snapshots] = {}
        self._trees: dict[tuple[str, str], Tree] = {}
        self._rows: list[SnapshotRow] = []

    def _read_rows(self) -> list[SnapshotRow]:
        """Of the store, in its thread. What is compared later, in any thread, uses those read last."""
        self._rows = self._store.snapshots(self._session_id)
        return self._rows

    def _place(self, root: str) -> Snapshots:
        if root not in self._places:
            self._places[root] = Snapshots(self._store.home, Path(root))
        return self._places[root]

    def _tree(self, root: str, commit: str) -> Tree:
        if (root, commit) not in self._trees:
            self._trees[root, commit] = self._place(root).load(commit)
        return self._trees[root, commit]

    # --- which step ---------------------------------------------------------------------------------------

    def steps(self) -> list[tuple[SnapshotRow, int | None]]:
        """Steps and how many files each changed (None: the last one, compared with nothing yet; DAMAGED: what
        was saved for it cannot be read).
        """
        rows = self._read_rows()
        found: list[tuple[SnapshotRow, int | None]] = []
        for at, row in enumerate(rows):
            if row.kind is SnapshotKind.TURN_END:
                continue
            later = rows[at + 1] if at + 1 < len(rows) else None
            found.append((row, None if later is None else self._num_changed(row, later)))
        return found

    def _num_changed(self, row: SnapshotRow, later: SnapshotRow) -> int:
        try:
            return self._num_read(row, later)
        except StoreError as error:
            log.info("step %s: %s", row.seq, error)
            return DAMAGED

    def _num_read(self, row: SnapshotRow, later: SnapshotRow) -> int:
        return sum(len(self._step_plan(row, later, root).paths) for root in row.commits)

    def _step_plan(self, row: SnapshotRow, later: SnapshotRow, root: str) -> Plan:
        """The way back from `later` to `row`."""
        new = later.commits.get(root, row.commits[root])
        if new == row.commits[root]:
            return Plan()
        return restoring.plan(self._tree(root, new), self._tree(root, row.commits[root]))

    def find(self, seq: int) -> SnapshotRow:
        """Raises StoreError."""
        rows = self._read_rows()
        row = next((row for row in rows if row.seq == seq and row.kind is not SnapshotKind.TURN_END), None)
        if row is None:
            raise StoreError(
                f"session {self._session_id} has no step {seq}; `k3agent undo --list` shows them"
            )
        return row

    def first(self) -> SnapshotRow | None:
        """The first step of the session."""
        return next(iter(self._read_rows()), None)

    def first_of(self, message_ids: Collection[str]) -> SnapshotRow | None:
        """The first step of the calls in these messages; None if they changed nothing."""
        rows = self._read_rows()
        return next((row for row in rows if row.message_id in message_ids), None)

    def last(self) -> SnapshotRow | None:
        """The newest step that changed something and is not undone already; one whose undo was stopped in
        the middle comes first.
        """
        rows = self._read_rows()
        at = len(rows) - 1
        while at >= 0:
            row = rows[at]
            if row.kind is SnapshotKind.UNDO:
                target = next(i for i, one in enumerate(rows) if one.seq == row.target)
                if not row.is_done:
                    return rows[target]
                at = target - 1
                continue
            if row.kind is SnapshotKind.CALL:
                later = rows[at + 1] if at + 1 < len(rows) else None
                is_change = self._num_changed(row, later) != 0 if later else not self.preview(row).is_empty
                if is_change or any(not one.is_empty for one in self._references(row).values()):
                    return row
            at -= 1
        return None

    # --- the restore --------------------------------------------------------------------------------------

    def preview(self, target: SnapshotRow) -> Preview:
        """Compare the files with what they were then; nothing is written. Raises StoreError."""
        return self._compare(target, self._peek)

    def _compare(self, target: SnapshotRow, take: Callable[[str, Tree], Saved]) -> Preview:
        saved: dict[str, Saved] = {}
        trees: dict[str, Tree] = {}
        plans: dict[str, Plan] = {}
        for root, commit in target.commits.items():
            tree = trees[root] = self._tree_before(target, root, commit)
            saved[root] = take(root, tree)
            plan = plans[root] = restoring.plan(saved[root].tree, tree)
            unsaved: dict[str, str] = target.details.get(root, {}).get("unsaved", {})
            for path, reason in {**tree.left_out, **unsaved}.items():
                if path and not os.path.lexists(Path(root) / path):
                    plan.lost[path] = reason
        found = self._references(target)
        return Preview(target=target, saved=saved, trees=trees, plans=plans, references=found)

    def _later(self, target: SnapshotRow) -> list[SnapshotRow]:
        return [row for row in self._rows if row.seq > target.seq]

    def _tree_before(self, target: SnapshotRow, root: str, commit: str) -> Tree:
        """The files before `target`. What the project's rules leave out was saved only for the call that was
        to change it: of a later call's, that state is the oldest there is.
        """
        tree = self._tree(root, commit)
        later = dict.fromkeys(row.commits[root] for row in self._later(target) if root in row.commits)
        found = self._place(root).whole_paths([one for one in later if one != commit])
        if any(found.values()):
            tree = copy_of(tree)
            for one, paths in found.items():
                for path in paths:
                    take_over(tree, self._tree(root, one), path)
        return tree

    def _references(self, target: SnapshotRow) -> dict[str, References]:
        noted: dict[str, JsonObject] = {}
        for row in (target, *self._later(target)):
            for root, about in row.details.items():
                if row.kind is SnapshotKind.CALL and "refs" in about:
                    _add_references(noted.setdefault(root, {"refs": {}, "stashes": []}), about)
        return {root: _missing(Path(root), about) for root, about in noted.items()}

    def _peek(self, root: str, target: Tree) -> Saved:
        place, extra = self._place(root), _covered(target)
        try:
            return place.peek(rules_of(place.root, self._store.home), extra, NO_LIMIT)
        except TooMuch:
            return place.peek(Rules(max_files=0), extra, NO_LIMIT)

    def _save(self, root: str, target: Tree) -> Saved:
        """All that is covered now or was covered then: nothing is overwritten or removed unsaved."""
        place, extra = self._place(root), _covered(target)
        try:
            rules = rules_of(place.root, self._store.home)
            return place.save(self._session_id, rules, extra=extra, max_extra_bytes=NO_LIMIT)
        except TooMuch:
            return place.save(self._session_id, Rules(max_files=0), extra=extra, max_extra_bytes=NO_LIMIT)

    def restore(self, preview: Preview) -> Outcome:
        """Carry out what was shown. Raises StoreError, also where the files have changed since they were
        looked at.
        """
        self._read_rows()
        fresh = self.look_again(preview)
        seq = self.note(fresh)
        return self.finish(seq, self.carry_out(fresh))

    async def restore_aside(self, preview: Preview, *, is_told: bool = False) -> Outcome:
        """As `restore`; what takes time is done in a thread, and the store is used in this one. `is_told`:
        the model need not be told.
        """
        # What was shown may come from another object, which has read them for itself alone.
        self._read_rows()
        fresh = await asyncio.to_thread(self.look_again, preview)
        seq = self.note(fresh, is_told=is_told)
        return self.finish(seq, await asyncio.to_thread(self.carry_out, fresh))

    def look_again(self, preview: Preview) -> Preview:
        """Save the files as they are: from here on nothing is lost. Raises StoreError where they differ from
        what `preview` saw.
        """
        fresh = self._compare(preview.target, self._save)
        if preview.only is not None:
            fresh = fresh.reduced(preview.only)
        if fresh.paths != preview.paths:
            raise StoreError("files have changed since they were looked at; look at what undo would do again")
        return fresh

    def note(self, preview: Preview, *, is_told: bool = False) -> int:
        """Store that a restore begins. Returns its step."""
        return self._store.add_snapshot(
            self._session_id,
            SnapshotKind.UNDO,
            {root: saved.commit for root, saved in preview.saved.items()},
            turn=preview.target.turn,
            summary=f"undo to before step {preview.target.seq}",
            details={"files": [_shown(path) for path in preview.paths]},
            target=preview.target.seq,
            is_told=is_told,
        )

    def carry_out(self, preview: Preview) -> dict[str, str]:
        """Change the files. Returns what could not be done, with the reason, by path."""
        failures: dict[str, str] = {}
        for root, plan in preview.plans.items():
            with self._place(root).contents() as contents:
                restorer = Restorer(Path(root), preview.trees[root], contents)
                restorer.apply(plan)
            for path, reason in restorer.failures.items():
                failures[str(Path(root) / path)] = reason
        for root, references in preview.references.items():
            failures.update(_make_again(Path(root), references))
        return failures

    def finish(self, seq: int, failures: dict[str, str]) -> Outcome:
        if not failures:
            self._store.end_restore(self._session_id, seq)
        return Outcome(seq=seq, failures=failures)


def _covered(target: Tree) -> list[Extra]:
    """What was covered then, whatever the rules say now, and also what is gone: taking it back deletes it."""
    return [Extra(path, may_be_new=True) for path in (*target.whole, *target.files)]


def _actions(plan: Plan) -> list[tuple[str, str]]:
    return [
        *(("bring back", path) for path in plan.created),
        *(("change", path) for path in plan.changed),
        *(("delete", path) for path in plan.deleted),
        *(("mode", path) for path in plan.modes),
        *(("make folder", path) for path in plan.folders_made),
        *(("remove folder", path) for path in plan.folders_removed),
    ]


def described(preview: Preview) -> list[str]:
    """What a restore will do, line by line. Names are as they are: who prints them makes them safe."""
    target = preview.target
    at = f"{target.created_at.astimezone():%Y-%m-%d %H:%M:%S}"
    lines = [f"Back to before step {target.seq} ({at}): {target.summary or target.tool}"]
    for root, plan in preview.plans.items():
        lines.append(f"in {root}:")
        rows = _actions(plan)
        lines += [f"  {what:<14} {path}" for what, path in rows[:MAX_SHOWN]]
        if len(rows) > MAX_SHOWN:
            lines.append(f"  and {len(rows) - MAX_SHOWN} more")
        references = preview.references.get(root)
        if references is not None:
            lines += [
                f"  {'make again':<14} {name} at {commit[:12]}" for name, commit in references.refs.items()
            ]
            lines += [f"  {'stash again':<14} {title}" for _, title in references.stashes]
            head = references.head[:12]
            lines += [f"  HEAD was at {head}; to go there: git reset --soft {head}"] if head else []
        lost = list(plan.lost.items())[:MAX_LOST]
        lines += [f"  {'was not saved':<14} {path} ({reason})" for path, reason in lost]
    if preview.is_empty:
        lines.append("Nothing differs: the files are as they were then.")
    return lines


def _add_references(noted: JsonObject, about: JsonObject) -> None:
    """What an older step noted of a branch counts."""
    noted["refs"] = {**about["refs"], **noted["refs"]}
    known = {commit for commit, _ in noted["stashes"]}
    noted["stashes"] += [pair for pair in about.get("stashes", []) if pair[0] not in known]


def _missing(root: Path, about: JsonObject) -> References:
    """What of the noted branches, tags and stashes is gone, as far as git still has the commits."""
    try:
        now, stashes = worktree.references(root), dict(worktree.stashes(root))
    except StoreError:
        now, stashes = {}, {}
    noted: dict[str, str] = dict(about["refs"])
    head = noted.pop("HEAD", "")
    gone = {name: commit for name, commit in noted.items() if name not in now}
    dropped = [(commit, title) for commit, title in about.get("stashes", []) if commit not in stashes]
    return References(
        refs={name: commit for name, commit in gone.items() if worktree.has_commit(root, commit)},
        stashes=[(commit, title) for commit, title in dropped if worktree.has_commit(root, commit)],
        head=head if head and now.get("HEAD") not in (None, head) else "",
    )


def _make_again(root: Path, references: References) -> dict[str, str]:
    failures: dict[str, str] = {}
    for name, commit in references.refs.items():
        try:
            worktree.create_reference(root, name, commit)
        except StoreError as error:
            failures[name] = str(error)
    # The newest was on top: it is put back last.
    for commit, title in reversed(references.stashes):
        try:
            worktree.store_stash(root, commit, title)
        except StoreError as error:
            failures[f"stash {title}"] = str(error)
    return failures


def _shown(path: str) -> str:
    """A name as text that any reader can take."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

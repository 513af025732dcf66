"""Folders of their own for subagents that write: git work trees that start from the files as they are.

The start is a commit of all files that git does not ignore, uncommitted ones included. What a subagent made
is a commit too, and is brought back file by file, all or nothing: a file that has changed here meanwhile
stops it. Everything that changes the repository happens one at a time, in this process and others. No hook
runs, and the user's index, branches and stash are not touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k3agent.errors import StoreError, ToolError
from k3agent.store.worktree import harmless

log = logging.getLogger(__name__)

GIT = ("git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
GIT_S = 300
LOCK_PATIENCE_S = 600.0
RETRIES = 8
NAME = {"NAME": "k3agent", "EMAIL": "k3agent@localhost"}
WHO = {f"GIT_{who}_{what}": said for who in ("AUTHOR", "COMMITTER") for what, said in NAME.items()}

# What git knows of a path in a tree: mode and object; absent: not there.
Entries = dict[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worktree:
    """`top` is the repository's own work tree, `root` the workspace in it, `place` the subagent's copy."""

    top: Path
    root: Path
    place: Path
    ref: str
    locks: Path

    @classmethod
    def of(cls, root: Path, home: Path, session_id: str, number: int) -> Worktree:
        """The copy for task `number` of a session that works in `root`. Raises ToolError without git."""
        try:
            top = Path(_run(root, "rev-parse", "--show-toplevel").decode().strip()).resolve()
        except ToolError as error:
            raise ToolError(
                f"a worktree needs a git repository, and {root} is none that git accepts. Give a folder."
            ) from error
        return cls(
            top=top,
            root=root,
            place=home / "worktrees" / session_id / str(number),
            ref=f"refs/k3agent/tasks/{session_id}/{number}",
            locks=home / "locks",
        )

    @property
    def workspace(self) -> Path:
        """The copy of `root`."""
        return self.place / self.root.relative_to(self.top)

    # --- start --------------------------------------------------------------------------------------------

    def snapshot(self) -> str:
        """A commit of the files as they are, kept by a ref."""
        with self._locked():
            head = _head(self.top)
            commit = _commit(self.top, _tree(self.top), head, "The files as a task found them")
            _run(self.top, "update-ref", f"{self.ref}/base", commit)
            return commit

    def check_out(self, base: str, *, is_new: bool) -> None:
        """Make the folder, if it is not there. `is_new`: nobody has worked in it, so that what a kill left of
        it may go.
        """
        if _works(self.place):
            return
        with self._locked():
            if self.place.exists():
                if not is_new:
                    raise ToolError(f"the worktree {self.place} is damaged; look at it, nothing removes it")
                shutil.rmtree(self.place)
            self.place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What is left of one whose folder is gone; a half-made one is locked.
            _run(self.top, "worktree", "prune", "--expire", "now")
            # Brought back before a kill, and asked for once more: as it was at its end.
            start = base if is_new else self._end() or base
            _run(self.top, "worktree", "add", "--force", "--force", "--detach", str(self.place), start)

    # --- end ----------------------------------------------------------------------------------------------

    def bring_back(self, base: str, refusal: Callable[[Path], str]) -> tuple[str, ...]:
        """Commit what was made in the copy, and write it here. Returns the changed paths, relative to `root`.

        Raises ToolError, and changes nothing here, where a path has changed here as well, lies outside of
        `root`, or may not be written (`refusal` says why, or ''). Doing it twice is as good as once. The copy
        goes once all of it is here.
        """
        with self._locked():
            made = self._commit_copy()
            before, after = _entries(self.top, base), _entries(self.top, made)
            changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
            here = _entries(self.top, _tree(self.top))
            self._check(changed, before, after, here)
            refused = next(filter(None, (refusal(self.top / path) for path in sorted(changed))), "")
            if refused:
                raise ToolError(f"not brought back: {refused}. What it made is in {self.place}.")
            _write(
                self.top, made, [path for path in sorted(changed) if here.get(path) != after.get(path)], after
            )
            self._remove()
        inside = str(self.root.relative_to(self.top))
        return tuple(os.path.relpath(path, inside) for path in sorted(changed))

    def drop_unused(self, base: str) -> bool:
        """Remove the copy if nothing was made in it; else commit what is there, and leave it."""
        if not _works(self.place):
            return True
        with self._locked():
            made = self._commit_copy()
            if _tree_of(self.top, made) == _tree_of(self.top, base):
                self._remove()
                return True
        return False

    def _commit_copy(self) -> str:
        """All of the copy as one commit that it has checked out: it is clean then."""
        head = _head(self.place)
        _add_all(self.place)
        tree = _run(self.place, "write-tree").decode().strip()
        if head is None or _tree_of(self.place, head) != tree:
            head = _commit(self.place, tree, head, "What a task made")
            _run(self.place, "update-ref", "--no-deref", "HEAD", head)
        _run(self.top, "update-ref", f"{self.ref}/end", head)
        return head

    def _end(self) -> str:
        found = _run(self.top, "for-each-ref", "--format=%(objectname)", f"{self.ref}/end")
        return found.decode().strip()

    def _check(self, changed: set[str], before: Entries, after: Entries, here: Entries) -> None:
        inside = self.root.relative_to(self.top)
        outside = sorted(path for path in changed if not Path(path).is_relative_to(inside))
        if outside:
            raise ToolError(
                f"not brought back: {_few(outside)} lie outside of the workspace. It is all in {self.place}."
            )
        ours = {path for path in before.keys() | here.keys() if before.get(path) != here.get(path)}
        ours = {path for path in ours if here.get(path) != after.get(path)}
        clash = sorted(path for path in changed if any(_touch(path, other) for other in ours))
        clash += [
            path for path in sorted(changed - here.keys() - before.keys()) if os.path.lexists(self.top / path)
        ]
        if clash:
            raise ToolError(
                f"not brought back: {_few(clash)} changed here since the task began, and nothing was"
                f" overwritten. What it made is in {self.place}; read it there and do the rest here."
            )

    def _remove(self) -> None:
        """Without force: git itself refuses where something is not committed."""
        if not self.place.exists():
            return
        try:
            _run(self.top, "worktree", "remove", str(self.place))
        except ToolError as error:
            log.warning("the worktree %s stays: %s", self.place, error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One change of the repository at a time, by anybody who takes this lock."""
        common = _run(self.top, "rev-parse", "--path-format=absolute", "--git-common-dir").strip()
        self.locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.locks / f"git-{hashlib.sha256(common).hexdigest()[:16]}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            end = time.monotonic() + LOCK_PATIENCE_S
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise ToolError(
                            f"another k3agent has held {path} for {LOCK_PATIENCE_S:.0f} s"
                        ) from None
                    time.sleep(0.05)
            yield
        finally:
            os.close(fd)


def _touch(path: str, other: str) -> bool:
    """The same, or one is a folder on the way to the other."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")


def _few(paths: list[str]) -> str:
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _tree(folder: Path) -> str:
    """The tree of all files in the work tree `folder`, as they are, through an index of its own."""
    with tempfile.TemporaryDirectory(prefix="k3agent-index-") as name:
        index = Path(name) / "index"
        own = Path(
            _run(folder, "rev-parse", "--path-format=absolute", "--git-path", "index").decode().strip()
        )
        if own.is_file():
            shutil.copyfile(own, index)
        environ = {"GIT_INDEX_FILE": str(index)}
        _add_all(folder, environ)
        return _run(folder, "write-tree", environ=environ).decode().strip()


def _add_all(folder: Path, environ: Mapping[str, str] | None = None) -> None:
    """Into the index, byte for byte. What an index knows of a filtered file is what the filter made of it:
    with filters off, all files are read again.
    """
    _run(folder, "add", "--all", environ=environ)
    if any(key.startswith("filter.") for key in harmless(folder).values()):
        _run(folder, "add", "--renormalize", ":/", environ=environ)


def _write(top: Path, commit: str, paths: list[str], after: Entries) -> None:
    """Make `paths` of the work tree what they are in `commit`."""
    gone = [path for path in paths if path not in after]
    for path in gone:
        (top / path).unlink(missing_ok=True)
        _drop_empty(top, (top / path).parent)
    kept = [path for path in paths if path in after]
    if not kept:
        return
    with tempfile.TemporaryDirectory(prefix="k3agent-index-") as name:
        environ = {"GIT_INDEX_FILE": str(Path(name) / "index")}
        _run(top, "read-tree", commit, environ=environ)
        given = b"".join(os.fsencode(path) + b"\0" for path in kept)
        _run(top, "checkout-index", "--force", "-z", "--stdin", environ=environ, given=given)


def _drop_empty(top: Path, folder: Path) -> None:
    while folder != top:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _entries(folder: Path, tree: str) -> Entries:
    found: Entries = {}
    for line in _run(folder, "ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0"):
        if line:
            head, _, path = line.partition(b"\t")
            mode, _, name = head.decode().split(" ", 2)
            found[os.fsdecode(path)] = (mode, name)
    return found


def _commit(folder: Path, tree: str, parent: str | None, text: str) -> str:
    parents = () if parent is None else ("-p", parent)
    return _run(folder, "commit-tree", tree, *parents, "-m", text, environ=WHO).decode().strip()


def _head(folder: Path) -> str | None:
    try:
        return _run(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").decode().strip()
    except ToolError:
        return None


def _tree_of(folder: Path, commit: str) -> str:
    return _run(folder, "rev-parse", f"{commit}^{{tree}}").decode().strip()


def _works(place: Path) -> bool:
    return (place / ".git").is_file() and _head(place) is not None


def _run(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None, given: bytes = b""
) -> bytes:
    """Git's answer; a lock that somebody else holds is waited for. Raises ToolError with git's words."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        # Outside the sandbox: git runs nothing that the repository names.
        clean |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", **harmless(folder), **(environ or {})}
    except StoreError as error:
        raise ToolError(str(error)) from error
    said = ""
    for attempt in range(RETRIES + 1):
        try:
            done = subprocess.run(
                [*GIT, *arguments], cwd=folder, env=clean, input=given, capture_output=True, timeout=GIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolError(f"git {arguments[0]} in {folder}: {error}") from error
        if done.returncode == 0:
            return done.stdout
        said = " ".join(done.stderr.decode("utf-8", "replace").split()) or f"exit code {done.returncode}"
        if ".lock" not in said or attempt == RETRIES:
            break
        time.sleep(0.1 * 2**attempt)
    raise ToolError(f"git {arguments[0]} in {folder} failed: {said[:300]}")

"""Which files changed while commands ran: compared before and after, because commands do not say.

In a repository git is asked for what differs from the commit that was checked out; elsewhere the folder
is walked, up to a bound. What the project ignores, caches and files outside of the workspace are left out.
Somebody else who works in the same folder at the same time is counted in.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.config.paths import git_root
from k3agent.errors import StoreError
from k3agent.store.worktree import harmless

if TYPE_CHECKING:
    from git import Git

log = logging.getLogger(__name__)

MAX_FILES = 20_000
MAX_WALK_S = 2.0
MAX_GIT_S = 3.0
MAX_HASHED_BYTES = 1 << 20
# Of all files together; the size and the time of a change stand for the rest.
MAX_HASHED_TOTAL = 1 << 26
# By-products of tools, also where no ignore file names them.
BY_PRODUCTS = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        ".tox",
    }
    | {".venv", "node_modules"}
)

# The sign of no file.
GONE = f"unread {FileNotFoundError.__name__}"
# A file's content, or what stands for it.
Signs = dict[str, str]


class CannotTell(Exception):
    """The comparison would take too long, or failed; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """`base`: the commit that git compares with, None where the folder is walked."""

    base: str | None
    signs: Signs


class FileChanges:
    """The changes of one turn in the folder `cwd`. `begin` has to come before the first command."""

    def __init__(self, cwd: Path, ignored: Path) -> None:
        """`ignored`: the agent's own data, should it lie in the workspace."""
        self._cwd = cwd
        self._ignored = ignored
        self._before: _Before | None = None
        self._problem = ""

    async def begin(self) -> None:
        """Remember how the files are now; only the first call looks."""
        if self._before is not None or self._problem:
            return
        try:
            self._before = await asyncio.to_thread(self._look)
        except CannotTell as error:
            self._problem = str(error)

    async def end(self) -> tuple[tuple[str, ...], str]:
        """(changed paths relative to the folder, why it cannot be told or ''). Nothing without `begin`."""
        if self._before is None:
            return (), self._problem
        try:
            after = await asyncio.to_thread(self._signs, self._before.base)
        except CannotTell as error:
            return (), str(error)
        before = self._before.signs
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        return tuple(sorted(_shown(path) for path in changed)), ""

    def is_as_before(self, path: Path) -> bool:
        """Whether no command has changed the file since `begin`; False where one look does not tell."""
        before = self._before
        if before is None:
            return not self._problem
        if before.base is not None or not path.is_relative_to(self._cwd):
            return False
        return before.signs.get(str(path.relative_to(self._cwd)), GONE) == sign_of(path, 0)[0]

    def text_before(self, name: str) -> str | None:
        """What the file held at `begin`; "" where it was not there, None where that is not known. Blocks."""
        before = self._before
        if before is None or name in before.signs:
            return None
        if before.base is None:
            return ""
        try:
            git = _git(self._cwd)
            if not _ask(git, "ls-tree", "--name-only", before.base, "--", f":(literal){name}"):
                return ""
            return _ask(git, "show", f"{before.base}:./{name}").decode("utf-8")
        except (CannotTell, UnicodeDecodeError):
            return None

    def _look(self) -> _Before:
        base = None
        if git_root(self._cwd) is not None and shutil.which("git") is not None:
            base = _base(self._cwd)
        try:
            return _Before(base=base, signs=self._signs(base))
        except CannotTell as error:
            if base is None:
                raise
            problem = error
        # A repository that is damaged, or too large for git to answer soon.
        try:
            return _Before(base=None, signs=self._signs(None))
        except CannotTell:
            raise problem from None

    def _signs(self, base: str | None) -> Signs:
        if not self._cwd.is_dir():
            raise CannotTell(f"{self._cwd} is gone")
        if base is None:
            return self._walk()
        git = _git(self._cwd)
        options = ("--no-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
        found = _ask(git, "diff", "--name-only", "-z", "--relative", *options, base, "--", ".")
        found += _ask(git, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
        names = [os.fsdecode(name) for name in found.split(b"\0") if name]
        names = [name for name in names if not self._is_left_out(name)]
        if len(names) > MAX_FILES:
            raise CannotTell(f"more than {MAX_FILES:,} files differ from the commit")
        signs: Signs = {}
        left = MAX_HASHED_TOTAL
        for name in names:
            signs[name], size = sign_of(self._cwd / name, left)
            left -= size
        return signs

    def _walk(self) -> Signs:
        end = time.monotonic() + MAX_WALK_S
        signs: Signs = {}
        for entry in _entries(self._cwd):
            name = os.path.relpath(entry.path, self._cwd)
            if self._is_left_out(name):
                continue
            signs[name] = sign_of(Path(entry.path), 0)[0]
            if len(signs) > MAX_FILES or time.monotonic() > end:
                raise CannotTell(f"{self._cwd} is no git repository and has too many files to compare")
        return signs

    def _is_left_out(self, name: str) -> bool:
        if not BY_PRODUCTS.isdisjoint(Path(name).parts):
            return True
        return (self._cwd / name).is_relative_to(self._ignored)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All files below; folders that cannot be read have none."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = list(found)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in BY_PRODUCTS:
                    waiting.append(entry.path)
            else:
                yield entry


def sign_of(path: Path, hashed_left: int) -> tuple[str, int]:
    """(sign, bytes read) of what lies there. Small files by content: a touched file is no change."""
    try:
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            return f"link {path.readlink()}", 0
        if not stat.S_ISREG(info.st_mode):
            return "no file", 0
        mode = info.st_mode & 0o111
        if info.st_size <= min(MAX_HASHED_BYTES, hashed_left):
            return f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}", info.st_size
        return f"{mode} {info.st_size} {info.st_mtime_ns}", 0
    except OSError as error:
        return f"unread {type(error).__name__}", 0


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _git(cwd: Path) -> Git:
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    from git import Git  # lazy: 0.1 s, only where commands run

    return Git(cwd)


def _base(cwd: Path) -> str | None:
    """What is checked out, or the empty tree; None where git does not look after the folder."""
    git = _git(cwd)
    try:
        _ask(git, "check-ignore", "--quiet", ".")
        return None
    except CannotTell:
        pass
    try:
        return _ask(git, "rev-parse", "--verify", "--quiet", "HEAD").decode().strip()
    except CannotTell:
        log.info("%s has no commit", cwd)
    try:
        return _ask(git, "hash-object", "-t", "tree", os.devnull).decode().strip()
    except CannotTell:
        # Not a repository that git accepts: somebody else's, or damaged.
        return None


def _ask(git: Git, *arguments: str) -> bytes:
    """Git's answer. It takes no locks, and starts nothing that the repository's configuration names."""
    from git.exc import GitError  # lazy: as above

    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments]
    try:
        said = git.execute(
            command,
            kill_after_timeout=MAX_GIT_S,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            env={**harmless(Path(git.working_dir or ".")), "LC_ALL": "C"},
        )
        assert isinstance(said, bytes)
        return said
    except (GitError, OSError, StoreError) as error:
        why = " ".join(str(getattr(error, "stderr", "") or error).split())
        why = why.removeprefix("stderr: ").strip("'")[:200]
        raise CannotTell(f"git {arguments[0]}: {why}") from error

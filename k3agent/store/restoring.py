"""Brings the files of a folder back to a saved state: first a plan that can be shown, then its execution.

Each file is written beside its place and renamed, so a file is the old or the new one and never half of it.
Killed anywhere, the same restore can be made again. No link on the way is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3agent.errors import StoreError
from k3agent.store.filetree import Entry, Tree, covering, parents_of

DRAFT = ".k3agent-undo~"

Contents = Callable[[str, Callable[[bytes], Any]], None]


@dataclass(slots=True)
class Plan:
    """What a restore will do. Paths are relative to the folder, each list is sorted.

    `lost`: files that were not saved, are gone now, and so cannot come back, with the reason.
    """

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    folders_made: list[str] = field(default_factory=list)
    folders_removed: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self.paths

    @property
    def paths(self) -> list[str]:
        """All that will be touched."""
        made, removed = self.folders_made, self.folders_removed
        return sorted({*self.created, *self.changed, *self.deleted, *self.modes, *made, *removed})


def plan(current: Tree, target: Tree) -> Plan:
    """The way from `current` to `target`; what either of them does not cover stays as it is."""
    made = Plan()
    for path, entry in target.files.items():
        now = current.files.get(path)
        if now is None:
            made.created.append(path)
        elif (now.blob, now.is_link) != (entry.blob, entry.is_link):
            made.changed.append(path)
        elif not entry.is_link and now.mode != entry.mode:
            made.modes.append(path)
    made.deleted = [path for path in current.files if path not in target.files and _is_covered(path, target)]
    for path, mode in target.folders.items():
        if path not in current.folders:
            made.folders_made.append(path)
        elif current.folders[path] != mode:
            made.modes.append(path)
    made.folders_removed = [
        path for path in current.folders if path not in target.folders and _is_covered(path, target)
    ]
    for paths in (
        made.created,
        made.changed,
        made.deleted,
        made.modes,
        made.folders_made,
        made.folders_removed,
    ):
        paths.sort()
    return made


def only(whole: Plan, path: str) -> Plan:
    """The part of a plan that brings back this one file."""
    return Plan(
        created=[name for name in whole.created if name == path],
        changed=[name for name in whole.changed if name == path],
        deleted=[name for name in whole.deleted if name == path],
        modes=[name for name in whole.modes if name == path],
        folders_made=[name for name in whole.folders_made if path.startswith(name + "/")],
    )


def _is_covered(path: str, target: Tree) -> bool:
    """Whether `target` would know of the path: else it is no news that it lacks it."""
    if covering(path, target.left_out) is None:
        return True
    return any(path == one or path.startswith(one + "/") for one in target.whole)


class Restorer:
    """Carries out a plan in `root`. Failures of single files are collected, the others go on."""

    def __init__(self, root: Path, target: Tree, contents: Contents) -> None:
        self._root = root
        self._target = target
        self._contents = contents
        self._opened: dict[str, int] = {}
        self.failures: dict[str, str] = {}

    def apply(self, plan: Plan) -> None:
        for path in plan.deleted:
            self._try(path, self._remove)
        for path in sorted(plan.folders_removed, key=lambda path: path.count("/"), reverse=True):
            self._try(path, self._remove_folder)
        for path in sorted(plan.folders_made, key=lambda path: path.count("/")):
            self._try(path, self._make_folder)
        for path in (*plan.created, *plan.changed):
            self._try(path, self._write)
        for path in plan.modes:
            if path in self._target.files:
                self._try(path, self._set_mode)
        folders = {path for path in (*plan.modes, *plan.folders_made) if path in self._target.folders}
        for path in sorted({*folders, *self._opened}, key=lambda path: path.count("/"), reverse=True):
            self._try(path, self._set_folder_mode)

    def _try(self, path: str, act: Callable[[str], None]) -> None:
        try:
            act(path)
        except OSError as error:
            self.failures[path] = error.strerror or type(error).__name__
        except StoreError as error:
            # What was saved of one file is damaged: the others can still come back.
            self.failures[path] = str(error)

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """(the folder of `path`, opened; the last part of the name). Folders that are missing are made."""
        self._root.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for parent in parents_of(path):
                name = parent.rsplit("/", 1)[-1]
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=fd)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                os.close(fd)
                fd = inner
                self._open_up(parent, fd)
            yield fd, path.rsplit("/", 1)[-1]
        finally:
            os.close(fd)

    def _open_up(self, folder: str, fd: int) -> None:
        """A folder that its owner may not write to is opened for the time of the restore."""
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o300 != 0o300 and folder not in self._opened:
            self._opened[folder] = mode
            os.fchmod(fd, mode | 0o700)

    def _remove(self, path: str) -> None:
        with self._parent(path) as (fd, name), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)

    def _remove_folder(self, path: str) -> None:
        with self._parent(path) as (fd, name), contextlib.suppress(FileNotFoundError):
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError:
                # Something in it is not covered; it is in the way only where a file has to be.
                if path in self._target.files:
                    raise

    def _make_folder(self, path: str) -> None:
        with self._parent(path + "/x") as (fd, _):
            os.fstat(fd)

    def _write(self, path: str) -> None:
        entry = self._target.files[path]
        with self._parent(path) as (fd, name):
            draft = DRAFT + hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=fd)
            try:
                if entry.is_link:
                    pieces: list[bytes] = []
                    self._contents(entry.blob, pieces.append)
                    os.symlink(b"".join(pieces), os.fsencode(draft), dir_fd=fd)
                else:
                    self._write_file(entry, draft, fd)
                os.rename(draft, name, src_dir_fd=fd, dst_dir_fd=fd)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(draft, dir_fd=fd)
                raise

    def _write_file(self, entry: Entry, draft: str, folder: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as file:
            self._contents(entry.blob, file.write)
            file.flush()
            os.fchmod(file.fileno(), entry.mode)

    def _set_mode(self, path: str) -> None:
        with self._parent(path) as (fd, name):
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISREG(info.st_mode):
                raise StoreError(f"{path} is no file any more")
            os.chmod(name, self._target.files[path].mode, dir_fd=fd)

    def _set_folder_mode(self, path: str) -> None:
        mode = self._target.folders.get(path, self._opened.get(path))
        with contextlib.suppress(FileNotFoundError), self._parent(path) as (fd, name):
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode) and mode is not None:
                os.chmod(name, mode, dir_fd=fd)

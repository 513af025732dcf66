"""Walks a folder as ripgrep does: sorted, without hidden names, links and what ignore files exclude."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k3agent.tools.support import opening
from k3agent.tools.support.globs import IgnoreRule, compile_ignore
from k3agent.tools.support.paths import printable

# In this order of force; within one kind the innermost folder decides.
IGNORE_FILES = (".rgignore", ".ignore", ".gitignore", ".git/info/exclude")
GIT_KINDS = (".gitignore", ".git/info/exclude")


@dataclass(frozen=True, slots=True)
class Entry:
    """`path` is real, `shown` is relative to the walked folder with `/`. A link is not followed."""

    path: str
    shown: str
    is_dir: bool
    is_link: bool
    depth: int


@dataclass(frozen=True, slots=True)
class _Folder:
    """The ignore rules of one folder and, through `parent`, of those around it."""

    path: str
    rules: dict[str, list[IgnoreRule]]
    has_git: bool
    parent: _Folder | None

    def ignores(self, path: str, *, is_dir: bool) -> bool:
        for kind in IGNORE_FILES:
            folder: _Folder | None = self
            while folder is not None:
                rules = folder.rules.get(kind)
                if rules:
                    inside = path[len(folder.path) :].lstrip("/")
                    for rule in reversed(rules):
                        if (is_dir or not rule.folders_only) and rule.regex.fullmatch(inside):
                            return not rule.keeps
                # What lies around a git repository says nothing about the files in it.
                folder = None if folder.has_git and kind in GIT_KINDS else folder.parent
        return False


def _open_folder(path: str, names: set[str], parent: _Folder | None, fd: int | None = None) -> _Folder:
    """With the rules of the folder at `path`, which may be open as `fd`."""
    has_git = ".git" in names
    rules = {}
    for kind in IGNORE_FILES:
        if kind in names or (has_git and kind.startswith(".git/")):
            try:
                place = kind if fd is not None else f"{path}/{kind}"
                # a pipe by this name would be waited for
                file = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
                with os.fdopen(file, encoding="utf-8", errors="replace") as stream:
                    if not stat.S_ISREG(os.fstat(file).st_mode):
                        continue
                    lines = stream.read(1 << 20).removeprefix("\ufeff").split("\n")
            except OSError:
                continue
            rules[kind] = [rule for line in lines if (rule := compile_ignore(line))]
    return _Folder(path, rules, has_git, parent)


def _around(root: Path) -> _Folder | None:
    """The rules of all folders above `root`."""
    folder: _Folder | None = None
    for path in reversed(root.parents):
        names = {kind for kind in (*IGNORE_FILES[:3], ".git") if os.path.lexists(path / kind)}
        if names:
            folder = _open_folder(str(path).rstrip("/"), names, folder)
    return folder


def walk(root: Path, *, hidden: bool = False, max_depth: int | None = None) -> Iterator[Entry]:
    """Everything below `root`, in the order of `shown` with folders read as `name/`.

    `hidden` also gives names that begin with a dot, `.git` excepted. `root` is resolved; a folder that a link
    has replaced meanwhile is passed over.
    """
    levels = [_listed(str(root).rstrip("/"), "", _around(root), hidden)]
    while levels:
        level = levels[-1]
        folder, path, prefix, depth = level.folder, level.path, level.prefix, len(levels)
        for name, is_dir, is_link in level.items:
            full = f"{path}/{name}"
            if folder is not None and folder.ignores(full, is_dir=is_dir):
                continue
            shown = prefix + printable(name)
            yield Entry(full, shown, is_dir, is_link, depth)
            if is_dir and (max_depth is None or depth < max_depth):
                levels.append(_listed(full, shown + "/", folder, hidden))
                break
        else:
            levels.pop()


@dataclass(slots=True)
class _Level:
    """A folder on the way: what is left of its names, each with whether it is a folder and a link."""

    path: str
    prefix: str
    folder: _Folder | None
    items: Iterator[tuple[str, bool, bool]]


def _listed(path: str, prefix: str, around: _Folder | None, hidden: bool) -> _Level:
    """All is asked of the open folder: by its name another could be meant by now. Nothing stays open."""
    items: list[tuple[str, bool, bool]] = []
    folder = around
    try:
        fd = opening.open_to_list(path or "/")
    except OSError:
        return _Level(path, prefix, folder, iter(items))
    names: set[str] = set()
    try:
        with os.scandir(fd) as found:
            for item in found:
                name = item.name
                if name.startswith("."):
                    names.add(name)
                    if not hidden or name == ".git":
                        continue
                try:
                    is_dir = item.is_dir(follow_symlinks=False)
                    items.append((name, is_dir, not is_dir and item.is_symlink()))
                except OSError:
                    continue
        if ".git" in names or not names.isdisjoint(IGNORE_FILES):
            folder = _open_folder(path, names, around, fd)
    except OSError:
        items = []
    finally:
        os.close(fd)
    items.sort(key=lambda row: row[0] + "/" if row[1] else row[0])
    return _Level(path, prefix, folder, iter(items))


def is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False

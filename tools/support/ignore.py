"""Walks a folder as ripgrep does: sorted, without hidden names, links and what ignore files exclude."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def _open_folder(path: str, names: set[str], parent: _Folder | None) -> _Folder:
    has_git = ".git" in names
    rules = {}
    for kind in IGNORE_FILES:
        if kind in names or (has_git and kind.startswith(".git/")):
            try:
                # a pipe by this name would be waited for
                fd = os.open(f"{path}/{kind}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                with os.fdopen(fd, encoding="utf-8", errors="replace") as stream:
                    if not stat.S_ISREG(os.fstat(fd).st_mode):
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

    `hidden` also gives names that begin with a dot, `.git` excepted.
    """
    yield from _walk(str(root).rstrip("/"), "", 1, _around(root), hidden, max_depth)


def _walk(
    path: str, prefix: str, depth: int, around: _Folder | None, hidden: bool, max_depth: int | None
) -> Iterator[Entry]:
    try:
        with os.scandir(path or "/") as found:
            items = list(found)
    except OSError:
        return
    names = {item.name for item in items if item.name.startswith(".")}
    folder = around
    if ".git" in names or not names.isdisjoint(IGNORE_FILES):
        folder = _open_folder(path, names, around)
    rows: list[tuple[str, os.DirEntry[str], bool]] = []
    for item in items:
        if item.name.startswith(".") and (not hidden or item.name == ".git"):
            continue
        try:
            is_dir = item.is_dir(follow_symlinks=False)
        except OSError:
            is_dir = False
        rows.append((item.name + "/" if is_dir else item.name, item, is_dir))
    rows.sort(key=lambda row: row[0])
    for _, item, is_dir in rows:
        full = f"{path}/{item.name}"
        if folder is not None and folder.ignores(full, is_dir=is_dir):
            continue
        shown = prefix + printable(item.name)
        yield Entry(full, shown, is_dir, item.is_symlink(), depth)
        if is_dir and (max_depth is None or depth < max_depth):
            yield from _walk(full, shown + "/", depth + 1, folder, hidden, max_depth)


def is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False

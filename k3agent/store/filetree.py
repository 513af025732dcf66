"""The files of a folder as they are now: kinds, modes, and a sign by which a change is seen without reading.

Nothing is followed, opened or run here. What is not covered (ignored folders, other repositories, files that
are too large) is named with the reason, so that nobody takes it for absent.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.errors import StoreError

MAX_FILES = 100_000
MAX_WALK_S = 30.0
MAX_FILE_BYTES = 16 << 20
# An ignored file outside of ignored folders, such as `.env`, is covered when it is small.
MAX_IGNORED_BYTES = 256 << 10
# A file that was changed so short a time before it was read may change again without a new time.
RACY_NS = 2_500_000_000

IGNORED = "ignored"
REPOSITORY = "a repository of its own"
OWN_GIT = "the repository's own data"
DATA = "k3agent's own data"
TOO_LARGE = "too large"
SPECIAL = "no file, folder or link"
UNREADABLE = "cannot be read"
TOO_MANY = "a part of too many files"

Sign = tuple[int, int, int, int]
"""Size, times of change of content and of state in nanoseconds, inode."""


class TooMuch(StoreError):
    """The folder has more files than are looked at."""


@dataclass(slots=True)
class Entry:
    """A file or link. `blob`: the id of its content, '' while unknown; `sign`: None where it proves
    nothing.
    """

    is_link: bool
    mode: int
    blob: str = ""
    sign: Sign | None = None
    size: int = 0


@dataclass(slots=True)
class Tree:
    """What a folder holds; paths are relative to it, in the form of `os.fsdecode`.

    `folders`: with their modes, the root left out; `left_out`: reason by path, a folder stands for all below
    and '' for everything;
    `whole`: paths that are left out as a rule and are covered here from end to end; `fresh`: those of `files`
    that are not known to be as they were.
    """

    files: dict[str, Entry] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`ignored`: paths that the project ignores; `by_products`: names of folders never looked into;
    `private`: paths of the agent's own data; `tracked`: paths covered although they are ignored;
    `max_files`: 0 covers nothing.
    """

    ignored: frozenset[str] = frozenset()
    by_products: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()
    tracked: tuple[str, ...] = ()
    max_files: int = MAX_FILES


def look(root: Path, rules: Rules, known: Mapping[str, Entry]) -> Tree:
    """All that is covered below `root`, nothing where it has gone. Entries of `known` whose signs have not
    changed are taken over. Raises TooMuch; StoreError for a file.
    """
    tree = Tree()
    if not rules.max_files:
        tree.left_out[""] = TOO_MANY
    if not rules.max_files or not os.path.lexists(root):
        return tree
    if not root.is_dir():
        raise StoreError(f"{root} is no folder: its files cannot be saved")
    until = time.monotonic() + MAX_WALK_S
    ignored, by_products, private = rules.ignored, rules.by_products, rules.private

    def check() -> None:
        if len(tree.files) > rules.max_files or time.monotonic() > until:
            raise TooMuch(f"{root} has more files than are saved step by step ({rules.max_files:,})")

    def is_left_out(relative: str, name: str, is_folder: bool, size: int) -> str:
        if name == ".git":
            return OWN_GIT
        if relative in private:
            return DATA
        if is_folder:
            return IGNORED if relative in ignored or name in by_products else ""
        if size > MAX_IGNORED_BYTES and relative in ignored:
            return IGNORED
        return TOO_LARGE if size > MAX_FILE_BYTES else ""

    _walk(root, "", tree, known, is_left_out, check)
    for relative in rules.tracked:
        if relative not in tree.files:
            _add_tracked(root, relative, tree, known)
    return tree


@dataclass(frozen=True, slots=True)
class Extra:
    """A path to be saved also where the rules leave it out, if for one of `reasons` (None: for any).
    `may_be_new`: that nothing is there is saved, too.
    """

    path: str
    reasons: frozenset[str] | None = None
    may_be_new: bool = False

    def fits(self, reason: str) -> bool:
        return reason != DATA and (self.reasons is None or reason in self.reasons)


def look_below(
    root: Path, relative: str, tree: Tree, known: Mapping[str, Entry], private: frozenset[str] = frozenset()
) -> None:
    """Add all that lies at or below `relative` to `tree`, but for what is `private`. Raises TooMuch."""
    until = time.monotonic() + MAX_WALK_S

    def check() -> None:
        if len(tree.files) > MAX_FILES or time.monotonic() > until:
            raise TooMuch(f"{relative} has too many files")

    info = stat_of(root, relative)
    if info is None:
        return
    if stat.S_ISDIR(info.st_mode):
        tree.folders[relative] = stat.S_IMODE(info.st_mode)

        def is_left_out(path: str, name: str, is_folder: bool, size: int) -> str:
            return DATA if path in private else ""

        _walk(root, relative, tree, known, is_left_out, check, is_everything=True)
    else:
        _add(tree, relative, info, known)


def add_extra(root: Path, tree: Tree, extra: Sequence[Extra], rules: Rules, max_bytes: int) -> dict[str, str]:
    """Take up what is left out at or below the paths of `extra`, the smallest first."""
    wanted: set[str] = set()
    new = {one.path for one in extra if one.may_be_new}
    with_parts = {"", *(parent for path in tree.left_out for parent in parents_of(path))}
    for one in extra:
        above = covering(one.path, tree.left_out)
        if above is not None and one.fits(tree.left_out[above]):
            wanted.add(one.path)
        elif above is None and one.path in with_parts:
            below = ((path, why) for path, why in tree.left_out.items() if one.fits(why))
            wanted |= {path for path, _ in below if is_below(path, one.path)}
    found: list[tuple[int, str, Tree]] = []
    unsaved: dict[str, str] = {}
    for path in wanted:
        part = Tree()
        try:
            look_below(root, path, part, {}, rules.private)
        except TooMuch as error:
            unsaved[path] = str(error)
            continue
        if part.files or part.folders or path in new:
            found.append((sum(entry.size for entry in part.files.values()), path, part))
    left = max_bytes
    for size, path, part in sorted(found, key=lambda item: (item[0], item[1])):
        if size > left:
            unsaved[path] = f"{size / 1e6:,.0f} MB are more than is saved"
            continue
        left -= size
        tree.files.update(part.files)
        tree.fresh += part.fresh
        tree.folders.update(part.folders)
        for parent in parents_of(path) if part.files or part.folders else ():
            info = stat_of(root, parent)
            tree.folders.setdefault(parent, stat.S_IMODE(info.st_mode) if info else 0o755)
        # A part of a folder that is left out is saved; the folder as a whole stays left out.
        tree.left_out.pop(path, None)
        tree.left_out.update(part.left_out)
        tree.whole.append(path)
    return unsaved


def copy_of(tree: Tree) -> Tree:
    """With lists of its own; the entries are the same."""
    return Tree(dict(tree.files), dict(tree.folders), dict(tree.left_out), list(tree.whole), list(tree.fresh))


def take_over(tree: Tree, other: Tree, path: str) -> None:
    """What `other` covers from end to end at `path`, as far as `tree` does not cover it."""

    def is_new(name: str) -> bool:
        return is_below(name, path) and not any(is_below(name, one) for one in tree.whole)

    if covering(path, tree.left_out) is None or not is_new(path):
        return
    tree.files.update((name, entry) for name, entry in other.files.items() if is_new(name))
    tree.folders.update((name, mode) for name, mode in other.folders.items() if is_new(name))
    for parent in parents_of(path):
        if parent in other.folders:
            tree.folders.setdefault(parent, other.folders[parent])
    tree.left_out.pop(path, None)
    tree.left_out.update((name, why) for name, why in other.left_out.items() if is_new(name))
    tree.whole.append(path)


def stat_of(root: Path, relative: str) -> os.stat_result | None:
    """What lies there; None for nothing, also where a folder on the way is none or is a link."""
    parts = relative.split("/")
    try:
        for depth in range(1, len(parts)):
            if not stat.S_ISDIR((root / "/".join(parts[:depth])).lstat().st_mode):
                return None
        return (root / relative).lstat()
    except (OSError, ValueError):
        return None


def _walk(
    root: Path,
    start: str,
    tree: Tree,
    known: Mapping[str, Entry],
    is_left_out: Callable[[str, str, bool, int], str],
    check: Callable[[], None],
    *,
    is_everything: bool = False,
) -> None:
    waiting = [start]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as found:
                entries = list(found)
        except OSError:
            if folder:
                tree.left_out[folder] = UNREADABLE
            continue
        if folder != start and not is_everything and any(entry.name == ".git" for entry in entries):
            tree.folders.pop(folder, None)
            tree.left_out[folder] = REPOSITORY
            continue
        prefix = folder + "/" if folder else ""
        for entry in entries:
            name = entry.name
            relative = prefix + name
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it has gone meanwhile
            is_folder = stat.S_ISDIR(info.st_mode)
            reason = is_left_out(relative, name, is_folder, info.st_size)
            if reason:
                tree.left_out[relative] = reason
            elif is_folder:
                tree.folders[relative] = stat.S_IMODE(info.st_mode)
                waiting.append(relative)
            else:
                _add(tree, relative, info, known)
        check()


def _add(tree: Tree, relative: str, info: os.stat_result, known: Mapping[str, Entry]) -> None:
    sign = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
    old = known.get(relative)
    if old is not None and old.sign == sign:
        tree.files[relative] = old
        return
    mode = info.st_mode
    if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
        entry = Entry(stat.S_ISLNK(mode), stat.S_IMODE(mode), sign=sign, size=info.st_size)
        tree.files[relative] = entry
        tree.fresh.append(relative)
    else:
        tree.left_out[relative] = SPECIAL


def _add_tracked(root: Path, relative: str, tree: Tree, known: Mapping[str, Entry]) -> None:
    """A file that git keeps although it is ignored, with the folders on the way."""
    info = stat_of(root, relative)
    if info is None or stat.S_ISDIR(info.st_mode) or info.st_size > MAX_FILE_BYTES:
        return
    if any(tree.left_out.get(parent) in (REPOSITORY, DATA) for parent in parents_of(relative)):
        return
    for parent in parents_of(relative):
        if parent not in tree.folders:
            tree.folders[parent] = stat.S_IMODE((root / parent).lstat().st_mode)
    tree.left_out.pop(relative, None)
    _add(tree, relative, info, known)


def parents_of(relative: str) -> Iterator[str]:
    """The folders on the way, outermost first."""
    at = relative.find("/")
    while at >= 0:
        yield relative[:at]
        at = relative.find("/", at + 1)


def covering(relative: str, paths: Mapping[str, object]) -> str | None:
    """The path of `paths` that `relative` is, or lies below of."""
    if relative in paths:
        return relative
    found = next((parent for parent in parents_of(relative) if parent in paths), None)
    return "" if found is None and "" in paths else found


def is_below(relative: str, folder: str) -> bool:
    """Whether it is that path or lies below it; '' is the root."""
    return not folder or relative == folder or relative.startswith(folder + "/")

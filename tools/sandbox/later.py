"""What a command has left that would run later, outside of the sandbox: found after it and put out of effect.

Mounts keep a command from changing what is protected; they cannot keep it from making a protected name that
was not there, and Landlock alone keeps it from neither. So the protected names are noted before the command
and compared after it. What is new is renamed to `NAME.k3agent-refused`, what was there comes back.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3agent.tools.sandbox.policy import PROTECTED, PROTECTED_GIT

REFUSED = ".k3agent-refused"
# Folders in which repositories are looked for, nearest first; in larger workspaces the deepest are left out.
MAX_FOLDERS = 5000
MAX_KEPT_BYTES, MAX_KEPT_FILES = 1 << 20, 400
# The kernel's clock for files may lag behind by a tick.
CLOCK_LAG_S = 0.05
# The settings that git itself and ordinary work write. Any other one may name a program.
PLAIN_SETTINGS = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf"
    r"|eol|safecrlf|quotepath|abbrev|sparsecheckout(cone)?|compression|longpaths|untrackedcache|worktree)"
    r"|remote\..*\.(url|fetch|pushurl|mirror|tagopt|prune|promisor|partialclonefilter|skip\w+)"
    r"|branch\..*\.(remote|pushremote|merge|rebase|description)|submodule\.(.*\.)?(url|active|branch|path|ignore|recurse)"
    r"|user\.(name|email)|extensions\.(objectformat|refstorage|partialclone|compatobjectformat|preciousobjects)"
    r"|(advice|color|column|index|pack|feature|maintenance|rerere|pull|fetch)\.[\w.-]+"
    r"|gc\.(?!recentobjectshook)[\w.-]+|init\.(defaultbranch|defaultobjectformat|defaultrefformat)"
    r"|push\.(default|autosetupremote|followtags)|rebase\.(autostash|autosquash)|commit\.(gpgsign|verbose)"
)
SECTION = re.compile(r'\[\s*([\w.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\]')


@dataclass(frozen=True, slots=True)
class Entry:
    """A protected file as it was. `data` is its text, or where it leads if it is a link; None: not kept."""

    mode: int
    data: bytes | None
    stamp: tuple[int, int, int]


class Watch:
    """What is protected below `roots`, from one look at it to the next."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(roots)
        self._start()

    def _start(self) -> None:
        self._since = time.time() - CLOCK_LAG_S
        # A repository that is made later is judged by its content.
        folders = (folder for root in self._roots for folder in (root / ".git", root))
        self._gits = [folder for folder in folders if _is_git_folder(folder)]
        self._before = self._look()
        # What was no part of a repository becomes one by a HEAD, a move or a link beside it, and is as old.
        self._known = set(self._running())

    def settle(self, *, is_over: bool = False) -> list[Path]:
        """Put out of effect what has come since the last look, and bring back what was there; the paths.
        `is_over`: this was the last look.
        """
        refused = [path for path in self._undo() if path is not None]
        refused += self._repositories()
        if not is_over:
            self._start()
        return refused

    def _look(self) -> dict[Path, Entry]:
        found: dict[Path, Entry] = {}
        for root in self._roots:
            for name in PROTECTED:
                _keep(root / name, found)
            git = root / ".git"
            if git.is_symlink() or not git.is_dir():
                _keep(git, found)
        for git in self._gits:
            for name in PROTECTED_GIT:
                _keep(git / name, found)
        return found

    def _undo(self) -> Iterator[Path | None]:
        after = self._look()
        gone = [path for path in self._before if path not in after]
        new = [path for path, entry in after.items() if self._is_news(path, entry)]
        for path in sorted(new):
            if path in self._before:
                continue
            # A folder with all in it counts once.
            if not any(folder in new and folder not in self._before for folder in path.parents):
                yield path if _put_aside(path, self._root_of(path)) else None
        for path in sorted([path for path in new if path in self._before] + gone):
            yield path if _bring_back(path, self._before[path], self._root_of(path)) else None

    def _is_news(self, path: Path, entry: Entry) -> bool:
        before = self._before.get(path)
        if before is None:
            return True
        if entry.data is None or before.data is None:
            return not stat.S_ISDIR(entry.mode) and entry != before
        return (entry.mode, entry.data) != (before.mode, before.data)

    def _root_of(self, path: Path) -> Path:
        return next(root for root in self._roots if path.is_relative_to(root))

    def _running(self) -> Iterator[Path]:
        """Files of repositories below the roots that make git run something."""
        for root in self._roots:
            for folder in _git_folders(root):
                if any(folder.is_relative_to(one) for one in self._roots):
                    yield from _unplain(folder)

    def _repositories(self) -> Iterator[Path]:
        """Those of `_running` that were made or changed since the last look."""
        for path in dict.fromkeys(self._running()):
            if path not in self._before and not self._is_old(path) and _put_aside(path, self._root_of(path)):
                yield path

    def _is_old(self, path: Path) -> bool:
        try:
            return path in self._known and path.lstat().st_ctime < self._since
        except OSError:
            return False


def _is_git_folder(folder: Path) -> bool:
    return not folder.is_symlink() and folder.is_dir() and (folder / "HEAD").exists()


def _keep(path: Path, found: dict[Path, Entry]) -> None:
    """Note `path`, and all below it."""
    try:
        info = path.lstat()
    except OSError:
        return
    stamp = (info.st_ino, info.st_size, info.st_mtime_ns)
    if stat.S_ISDIR(info.st_mode):
        found[path] = Entry(info.st_mode, None, (info.st_ino, 0, 0))
        if len(found) < MAX_KEPT_FILES:
            for inner in sorted(path.iterdir()):
                _keep(inner, found)
        return
    data: bytes | None = None
    try:
        if stat.S_ISLNK(info.st_mode):
            data = os.fsencode(path.readlink())
        elif stat.S_ISREG(info.st_mode) and info.st_size <= MAX_KEPT_BYTES:
            data = path.read_bytes()
    except OSError:
        data = None
    found[path] = Entry(info.st_mode, data, stamp)


def _open_parent(path: Path, root: Path) -> int:
    """The folder of `path`, entered from `root` step by step, so that no link put in its way is followed."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in path.relative_to(root).parts[:-1]:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
    except OSError:
        os.close(fd)
        raise
    return fd


def _put_aside(path: Path, root: Path) -> bool:
    """Rename `path`, so that nothing takes it for what it was; whether that was possible."""
    try:
        folder = _open_parent(path, root)
    except OSError:
        return False
    try:
        used = set(os.listdir(folder))  # noqa: PTH208 - pathlib knows no descriptors
        names = (f"{path.name}{REFUSED}{number or ''}" for number in range(1000))
        name = next(name for name in names if name not in used)
        os.rename(path.name, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _bring_back(path: Path, entry: Entry, root: Path) -> bool:
    """What is at `path` now goes aside, and what was there is written again."""
    if path.is_symlink() or path.exists():
        _put_aside(path, root)
    try:
        folder = _open_parent(path, root)
    except OSError:
        return False
    try:
        if stat.S_ISDIR(entry.mode):
            os.mkdir(path.name, stat.S_IMODE(entry.mode), dir_fd=folder)
        elif stat.S_ISLNK(entry.mode) and entry.data is not None:
            os.symlink(entry.data, path.name, dir_fd=folder)
        elif entry.data is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            fd = os.open(path.name, flags, stat.S_IMODE(entry.mode), dir_fd=folder)
            with os.fdopen(fd, "wb") as stream:
                stream.write(entry.data)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _git_folders(root: Path) -> Iterator[Path]:
    """Folders that git may take for a repository's own, near ones first; inside them those of modules. Where
    a `.git` is a link or a file, also the folder that it leads to, wherever that is.
    """
    waiting = [root]
    count = 0
    while waiting and count < MAX_FOLDERS:
        following: list[Path] = []
        for folder in waiting[: MAX_FOLDERS - count]:
            count += 1
            try:
                with os.scandir(folder) as entries:
                    rows = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            except OSError:
                continue
            names = {name for name, _ in rows}
            if "HEAD" in names and names & {"config", "commondir", "hooks"}:
                yield folder
                following += [folder / name for name in ("modules", "worktrees") if name in names]
            else:
                following += [folder / name for name, is_folder in rows if is_folder]
                if (".git", False) in rows:
                    yield from _leads_to(folder / ".git")
        waiting = following


def _leads_to(git: Path) -> Iterator[Path]:
    try:
        place = git.resolve()
        if place.is_file():
            place = (git.parent / _text(place).strip().removeprefix("gitdir:").strip()).resolve()
        if place.is_dir():
            yield place
    except (OSError, RuntimeError, ValueError):
        return


def _unplain(git: Path) -> Iterator[Path]:
    """Files of a repository that make git run something: hooks, settings that are not plain."""
    for name in ("config", "config.worktree"):
        path = git / name
        if path.is_symlink() or (path.is_file() and not is_plain(_text(path))):
            yield path
    common = git / "commondir"
    if common.is_symlink() or (common.is_file() and not _is_linked_tree(git, _text(common).strip())):
        yield common
    hooks = git / "hooks"
    if hooks.is_symlink():
        yield hooks
    elif hooks.is_dir():
        yield from (
            path for path in sorted(hooks.iterdir()) if path.suffix != ".sample" and REFUSED not in path.name
        )


def _is_linked_tree(git: Path, common: str) -> bool:
    """`.git/worktrees/NAME` with the settings of `.git`, as `git worktree add` makes it."""
    return common == "../.." and git.parent.name == "worktrees"


def _text(path: Path) -> str:
    try:
        return (
            path.read_text(encoding="utf-8", errors="replace")
            if path.stat().st_size <= MAX_KEPT_BYTES
            else "?"
        )
    except OSError:
        return "?"


def is_plain(text: str) -> bool:
    """Whether settings of git hold none that could run a program. What is not understood is not plain."""
    section = ""
    for row in re.sub(r"\\\r?\n", "", text).splitlines():
        line = row.strip().lstrip("\ufeff")
        match = SECTION.match(line)
        if match is not None:
            inner = f".{match[2]}" if match[2] is not None else ""
            section = f"{match[1].lower()}{inner}"
            line = line[match.end() :].strip()
        if not line or line[0] in "#;":
            continue
        key = re.match(r"[A-Za-z][\w-]*", line)
        if key is None or not section:
            return False
        name = f"{section}.{key[0].lower()}"
        if not PLAIN_SETTINGS.fullmatch(name) or "ext::" in line:
            return False
    return True

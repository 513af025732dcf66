"""Opens what a resolved path named when a call was judged: a link that has taken the place of a file or of a
folder on the way since then is not followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from k3agent.errors import ToolError
from k3agent.safety.paths import is_at

# What the running call was allowed to touch, files or folders with all below them; None: nobody judges.
_judged: ContextVar[tuple[Path, ...] | None] = ContextVar("judged", default=None)

# A folder that may be searched but not listed can be gone through where the system knows O_PATH.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def only(paths: tuple[Path, ...]) -> Iterator[None]:
    """What runs inside was judged by these paths, and opens nothing else."""
    token = _judged.set(paths)
    try:
        yield
    finally:
        _judged.reset(token)


def check(path: Path, shown: str) -> None:
    """Raises ToolError for a path that the running call was not judged by."""
    allowed = _judged.get()
    if allowed is not None and not any(path.is_relative_to(one) for one in allowed):
        raise ToolError(
            f"{shown} leads elsewhere than when this call was judged: a link on the way has changed. "
            "Call again."
        )


def open_read(path: Path) -> int:
    """A descriptor of the file at this resolved path; does not wait for the other end of a pipe."""
    return _opened(str(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def open_to_list(path: str) -> int:
    """A descriptor of the folder at this resolved path, for `os.scandir`."""
    return _opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _opened(path: str, flags: int) -> int:
    fd = os.open(path, flags)
    # That no link was on the way is seen at once where the system tells of it.
    if is_at(fd, path):
        return fd
    os.close(fd)
    with parent_of(Path(path)) as (folder, name):
        return os.open(name or ".", flags, dir_fd=folder)


def open_folder(path: Path) -> int:
    """A descriptor of the folder at this resolved path, to be gone into."""
    with parent_of(path / "_") as (folder, _):
        return os.dup(folder)


@contextlib.contextmanager
def parent_of(path: Path, *, is_made: bool = False) -> Iterator[tuple[int, str]]:
    """(a descriptor of its folder, its name there); with `is_made` folders that are missing are made. Raises
    OSError where a link is on the way.
    """
    fd = os.open(path.anchor, _FOLDER)
    try:
        for part in path.parts[1:-1]:
            inner = _step(fd, part, is_made=is_made)
            os.close(fd)
            fd = inner
        yield fd, path.name
    finally:
        os.close(fd)


def _step(fd: int, name: str, *, is_made: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=fd)
    except FileNotFoundError:
        if not is_made:
            raise
        # Somebody else may make it just now.
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=fd)
        return os.open(name, _FOLDER, dir_fd=fd)
    except OSError as error:
        if is_link(name, fd):
            raise OSError(errno.ELOOP, f"{name} has become a link meanwhile") from error
        raise


def is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False

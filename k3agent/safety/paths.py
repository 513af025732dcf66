"""Looks at paths that somebody else has named: what is too long to be a name, or leads where nobody may look,
is not there. `Path.exists` and its like raise an error then.
"""

# ruff: noqa: PTH110, PTH112, PTH113, PTH115 - these neither raise nor tidy a path up

import errno
import os
import stat
from pathlib import Path

MAX_SMALL = 64 << 10


def exists(path: Path) -> bool:
    return os.path.exists(path)


def is_file(path: Path) -> bool:
    return os.path.isfile(path)


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)


def is_at(fd: int, path: Path | str) -> bool:
    """Whether an open file is the one of this path, and no link was on the way; False where the system does
    not tell.
    """
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(path)
    except OSError:
        return False


def small_text(path: Path) -> str:
    """A file of a line or two. Raises OSError, also for what is no regular file (a pipe would be waited for),
    and ValueError for what is too long or no text.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        data = file.read(MAX_SMALL + 1)
    if len(data) > MAX_SMALL:
        raise ValueError(f"{path} has more than {MAX_SMALL:,} bytes")
    return data.decode("utf-8")

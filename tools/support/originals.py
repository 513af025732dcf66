"""A copy of a file while a tool tries changes of it: a process that is killed meanwhile leaves one of them.

The file is brought back only where it holds one of these changes, never over what somebody else has written.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from k3agent.errors import ToolError
from k3agent.safety.writing import replace_text
from k3agent.tools.support import opening, textio
from k3agent.tools.support.freshness import digest

# `none`: there is no copy; `back`: the file held a change and is again as it was; `same`: it is as it was;
# `other`: it is neither, or could not be written.
Outcome = Literal["none", "back", "same", "other"]


@contextlib.contextmanager
def alone(path: Path, shown: str) -> Iterator[None]:
    """Keep other processes from trying changes in the folder of `path` meanwhile: each would take the other's
    change for the file as it was. Where folders cannot be locked, nothing is kept from anybody.
    """
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ToolError(
            f"another session is trying changes in the folder of {shown}. "
            "Wait until it has ended, or use edit."
        ) from None
    except OSError:
        os.close(fd)
        yield
        return
    try:
        yield
    finally:
        # Said, not left to the closing: a process forked meanwhile has the folder open, too.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def copy_of(folder: Path, path: Path) -> Path:
    """Where the copy of the file at `path` lies."""
    return folder / f"try-{digest(os.fsencode(path))[:16]}.original"


def keep(folder: Path, path: Path, data: bytes, mode: int, changes: Iterable[str]) -> None:
    """Copy the file, whose content is `data`. `changes`: the digests of what is put in its place."""
    text = base64.b64encode(data).decode()
    about = {"mode": mode, "digest": digest(data), "changes": list(changes), "data": text}
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(copy_of(folder, path), json.dumps(about), mode=0o600)


def drop(folder: Path, path: Path) -> None:
    copy_of(folder, path).unlink(missing_ok=True)


def bring_back(folder: Path, path: Path) -> Outcome:
    """Put the file back where a change was left in its place. The copy goes, but where that failed."""
    copy = copy_of(folder, path)
    try:
        about = json.loads(copy.read_text(encoding="ascii"))
        data, changes = base64.b64decode(about["data"]), about["changes"]
    except (OSError, ValueError, KeyError, TypeError):
        return "none"
    try:
        now = digest(textio.read_bytes(path, path.name))
        if now in changes:
            textio.write_atomic(path, data, path.name)
            set_mode(path, about["mode"])
    except (ToolError, OSError):
        return "other"
    copy.unlink(missing_ok=True)
    if now in changes:
        return "back"
    return "same" if now == about["digest"] else "other"


def set_mode(path: Path, mode: int) -> None:
    """Give the file these mode bits, should it have others."""
    fd = opening.open_read(path)
    try:
        if os.fstat(fd).st_mode & 0o7777 != mode:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)

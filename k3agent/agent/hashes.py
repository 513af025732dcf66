"""What files hold before and after a call, by hash: whether an edit took place is seen from it."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

MAX_HASHED_BYTES = 64 * 1024 * 1024
UNKNOWN_CONTENT = ("folder", "unread")


def file_hashes(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each file; '' for what is not there, `folder` for folders, `unread` for what cannot be
    read.
    """
    found: dict[str, str] = {}
    for path in paths:
        try:
            info = path.stat()
            if stat.S_ISDIR(info.st_mode):
                found[str(path)] = "folder"
            elif info.st_size > MAX_HASHED_BYTES or not stat.S_ISREG(info.st_mode):
                # A pipe would be waited for until somebody writes into it.
                found[str(path)] = "unread"
            else:
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            found[str(path)] = ""
        except OSError:
            found[str(path)] = "unread"
    return found


def really_changed(files: Sequence[str], before: Mapping[str, str], cwd: Path) -> tuple[str, ...]:
    """`files`, relative to `cwd`, without those that hold the same bytes as in `before`."""
    now = file_hashes([Path(path) for path in before])
    equal = {path for path, value in now.items() if value == before[path] and value not in UNKNOWN_CONTENT}
    return tuple(path for path in files if str((cwd / path).resolve()) not in equal)

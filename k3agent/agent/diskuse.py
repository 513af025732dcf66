"""How much more disk a run takes than when it began: its workspace and outputs, looked at between steps.

A folder that is too large to walk is stood for by its file system; then what others write is counted in.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

MAX_WALK_S = 1.0
BLOCK_BYTES = 512


class DiskUse:
    """Made when a run begins. Nothing is looked at before `begin`."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(dict.fromkeys(folders))
        self._before: int | None = None
        self._is_walkable = True

    def begin(self) -> None:
        size = _walk(self._folders)
        self._is_walkable = size is not None
        self._before = self._file_systems() if size is None else size

    def grown_bytes(self) -> int:
        """Since `begin`; 0 before it, and where files have gone."""
        if self._before is None:
            return 0
        now = _walk(self._folders) if self._is_walkable else self._file_systems()
        if now is None:
            # Grown so much that it can no longer be walked: by how much is not known from here on.
            self.begin()
            return 0
        return max(0, now - self._before)

    def _file_systems(self) -> int:
        devices = {folder.stat().st_dev: folder for folder in self._folders if folder.is_dir()}
        return sum(shutil.disk_usage(folder).used for folder in devices.values())


def _walk(folders: Sequence[Path]) -> int | None:
    """The bytes that all files below take on the disk, None where looking takes too long."""
    end = time.monotonic() + MAX_WALK_S
    total, seen = 0, set[tuple[int, int]]()
    waiting = [str(folder) for folder in folders]
    while waiting:
        if time.monotonic() > end:
            return None
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif info.st_nlink == 1 or (info.st_dev, info.st_ino) not in seen:
                        seen.add((info.st_dev, info.st_ino))
                        total += info.st_blocks * BLOCK_BYTES
        except OSError:
            # Gone meanwhile, or not ours to look at.
            continue
    return total

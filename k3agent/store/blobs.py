"""Texts too long for the transcript, kept whole in files named by their hash.

One folder for each session, so that removing a session removes its blobs and nothing else.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def folder_of(home: Path, session_id: str) -> Path:
    return home / "blobs" / session_id


class BlobStore:
    """The blobs of one session. `put` is idempotent: equal content is one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes, *, suffix: str = ".txt") -> Path:
        """Write `data` (0600, by rename, so that a half-written blob never has the name) and say where it
        is.
        """
        path = self.folder / f"{hashlib.sha256(data).hexdigest()[:32]}{suffix}"
        if path.exists():
            return path
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        draft.replace(path)
        return path

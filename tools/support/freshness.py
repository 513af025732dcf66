"""What the model has seen of each file, by a hash of the bytes: a stale picture must not be written back."""

from __future__ import annotations

import hashlib
from pathlib import Path

from k3agent.errors import ToolError


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Freshness:
    """Digests of files as last read or written in this session. `seen` maps resolved path to digest and may
    be saved and given back to carry over a resumed session.
    """

    def __init__(self, seen: dict[str, str] | None = None) -> None:
        self.seen = dict(seen or {})

    def record(self, path: Path, data_digest: str) -> None:
        self.seen[str(path)] = data_digest

    def forget(self, path: Path) -> None:
        self.seen.pop(str(path), None)

    def check(self, path: Path, shown: str, data_digest: str, *, must_be_read: bool) -> None:
        """Raise unless the file is as it was when it was read. Never read is an error if `must_be_read`."""
        known = self.seen.get(str(path))
        if known is None:
            if must_be_read:
                raise ToolError(f"{shown} exists and was not read in this session. Read it first.")
        elif known != data_digest:
            raise ToolError(f"{shown} changed since it was read. Read it again.")

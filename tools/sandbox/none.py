"""No sandbox: commands run with all rights of the user, and the status says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class NoSandbox:
    name = "none"

    def __init__(self, reason: str = "chosen") -> None:
        self.status = f"no sandbox ({reason}): commands may do all that you may do"

    def wrap(self, argv: Sequence[str], cwd: Path, writable: Sequence[Path]) -> list[str]:
        return list(argv)

    def explain(self, output: str, cwd: Path, writable: Sequence[Path]) -> str:
        return ""

    def close(self) -> None:
        """Nothing is kept."""

"""What keeps a command inside its bounds: a sandbox turns the command line into a guarded one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Sandbox(Protocol):
    """`name` is what settings call it; `status` tells people what it guards, or why nothing is guarded."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> str: ...

    def wrap(self, argv: Sequence[str], cwd: Path, writable: Sequence[Path]) -> list[str]:
        """The command line that runs `argv` in `cwd` and lets it write below `writable` only."""
        ...

    def explain(self, output: str, cwd: Path, writable: Sequence[Path]) -> str:
        """One line for the model when `output` of a failed command shows that it was stopped, else ""."""
        ...

    def close(self) -> None:
        """Remove what it keeps on disk. Call when no command runs any more."""
        ...

"""What keeps a command inside its bounds: a sandbox turns the command line into a guarded one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from k3agent.tools.support.usage import Limits


class Sandbox(Protocol):
    """`name` is what settings call it; `status` tells people what it guards, or why nothing is guarded;
    `limits` are those of one command."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def scratch(self) -> tuple[Path, ...]:
        """Folders that are not the real ones for commands, so that they may write there as they like."""
        ...

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that commands reach although the network is off."""
        ...

    def wrap(self, argv: Sequence[str], cwd: Path, writable: Sequence[Path]) -> list[str]:
        """The command line that runs `argv` in `cwd` and lets it write below `writable` only."""
        ...

    def explain(self, output: str, cwd: Path, writable: Sequence[Path]) -> str:
        """One line for the model when `output` of a failed command shows that it was stopped, else ""."""
        ...

    def settle(self, *, is_over: bool = False) -> str:
        """Look at what commands have left since the last look, and put out of effect what would run later,
        outside; one line for the model, or "". `is_over`: no command runs any more.
        """
        ...

    def close(self) -> None:
        """Remove what it keeps on disk. Call when no command runs any more."""
        ...

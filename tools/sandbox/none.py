"""No sandbox: commands run with all rights of the user, and the status says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from k3agent.tools.support.usage import Limits, command_limits


class NoSandbox:
    name = "none"
    scratch: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()

    def __init__(self, reason: str = "chosen", limits: Limits | None = None) -> None:
        self.limits = limits or command_limits()
        self.status = f"no sandbox ({reason}): commands may do all that you may do"

    def wrap(self, argv: Sequence[str], cwd: Path, writable: Sequence[Path]) -> list[str]:
        return list(argv)

    def explain(self, output: str, cwd: Path, writable: Sequence[Path]) -> str:
        return ""

    def settle(self, *, is_over: bool = False) -> str:
        return ""

    def close(self) -> None:
        """Nothing is kept."""

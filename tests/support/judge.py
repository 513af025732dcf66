"""Permissions to put questions to: a workspace, a home, and what lies outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k3agent.agent.permissions import Action, Permissions, Territory
from k3agent.tools.base import Access


class Judge:
    """Permissions over tmp/ws with a home at tmp/user and the agent's data at tmp/data."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cwd = root / "ws"
        for folder in ("ws/src", "ws/.git", "user/.ssh", "data/blobs/s", "other"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (self.cwd / "a.py").write_text("x\n")

    def permissions(
        self, mode: str, allow: tuple[str, ...] = (), deny: tuple[str, ...] = (), **more: Any
    ) -> Permissions:
        territory = Territory(
            cwd=self.cwd,
            extra_dirs=(self.root / "other",),
            home=self.root / "data",
            environ={"HOME": str(self.root / "user")},
            readable=(self.root / "data/blobs/s",),
            **more,
        )
        return Permissions(mode=mode, allow=allow, deny=deny, territory=territory)

    def shell(
        self, command: str, mode: str = "auto", *, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()
    ) -> Action:
        return self.permissions(mode, allow, deny).judge("shell", Access(runs=command)).action

    def write(self, path: str, mode: str = "auto", **rules: tuple[str, ...]) -> Action:
        access = Access(writes=((self.cwd / path).resolve(),))
        return self.permissions(mode, **rules).judge("edit", access).action

    def trial(self, path: str, command: str, mode: str = "auto", **rules: tuple[str, ...]) -> Action:
        access = Access(writes=((self.cwd / path).resolve(),), runs=command)
        return self.permissions(mode, **rules).judge("try", access).action

    def read(self, path: str, mode: str = "auto", **rules: tuple[str, ...]) -> Action:
        access = Access(reads=((self.cwd / path).resolve(),))
        return self.permissions(mode, **rules).judge("read", access).action

"""What `k3agent doctor` says, in the UI."""

from __future__ import annotations

from k3agent.tui.screens.dialog import TextScreen
from k3agent.tui.sessionfiles import run_cli


class DoctorScreen(TextScreen):
    def __init__(self) -> None:
        super().__init__("k3agent doctor", self._text)

    def _text(self) -> str:
        return run_cli(self.app.options, "doctor")[1]

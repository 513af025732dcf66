"""Earlier prompts, kept in a file of the data folder, newest last; one JSON string a line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

MAX_PROMPTS = 1_000
MAX_CHARS = 100_000


class PromptHistory:
    """`move` walks through it; what was being written is kept at its end."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: list[str] | None = None
        self._at: int | None = None
        self._draft = ""

    @property
    def entries(self) -> list[str]:
        if self._entries is None:
            self._entries = self._load()
        return self._entries

    def _load(self) -> list[str]:
        if self._path is None:
            return []
        found: list[str] = []
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        for line in lines[-MAX_PROMPTS:]:
            # A line torn by a crash costs that prompt, not the others.
            with contextlib.suppress(ValueError):
                text = json.loads(line)
                if isinstance(text, str):
                    found.append(text)
        return found

    def add(self, text: str) -> None:
        self._at = None
        if not text.strip() or (self.entries and self.entries[-1] == text):
            return
        self.entries.append(text)
        if self._path is None or len(text) > MAX_CHARS:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if len(self.entries) > 2 * MAX_PROMPTS:
                del self.entries[:-MAX_PROMPTS]
                self._path.write_text("".join(f"{json.dumps(entry)}\n" for entry in self.entries), "utf-8")
                return
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(text)}\n")

    @property
    def is_browsing(self) -> bool:
        return self._at is not None

    def leave(self) -> None:
        self._at = None

    def move(self, step: int, current: str) -> str | None:
        """The prompt `step` away, or None at either end. `current` is what stands in the prompt."""
        entries = self.entries
        if self._at is None:
            if step > 0 or not entries:
                return None
            self._draft = current
            self._at = len(entries)
        at = self._at + step
        if at < 0:
            return None
        if at >= len(entries):
            self._at = None
            return self._draft
        self._at = at
        return entries[at]

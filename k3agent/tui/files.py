"""Files of the workspace for `@`: listed once in a thread, ignore files respected, found in a moment.

The names are one block of bytes: looking for a word in those of a million files takes a few milliseconds,
and no object per file is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from k3agent.store.worktree import finished
from k3agent.tui.widgets.completion import Candidate

MAX_AGE_S = 15.0
LIST_TIMEOUT_S = 60
MAX_HITS = 400
MAX_SHOWN = 50
# Letters with others in between are looked for only where that is quick.
MAX_FUZZY_BYTES = 8_000_000
MAX_WALKED = 200_000


class FileIndex:
    """`refresh` and `find` block: call them in a thread."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._names = b"\n"
        self._lower = b"\n"
        self._listed_at = 0.0
        self.num_files = 0

    @property
    def is_stale(self) -> bool:
        return not self._listed_at or time.monotonic() - self._listed_at > MAX_AGE_S

    def refresh(self) -> None:
        """List the files anew."""
        raw = self._listing()
        names = b"\n" + raw.strip(b"\n") + b"\n"
        self._names, self._lower = names, names.lower()
        self.num_files = raw.count(b"\n")
        self._listed_at = time.monotonic()

    def _listing(self) -> bytes:
        if (self._cwd / ".git").exists() or self._in_repository():
            found = self._run(
                *("git", "-c", "core.fsmonitor=false"),
                "ls-files",
                "--cached",
                "--others",
                "--exclude-standard",
                "--deduplicate",
                "-z",
            )
            if found is not None:
                return found.replace(b"\n", b"?").replace(b"\0", b"\n")
        found = self._run("rg", "--files", "--hidden", "--glob", "!.git", "--no-messages")
        return found if found is not None else self._walk()

    def _in_repository(self) -> bool:
        return any((folder / ".git").exists() for folder in self._cwd.parents)

    def _run(self, *argv: str) -> bytes | None:
        """What a program prints; None where it is not there or fails."""
        try:
            done = finished(argv, self._cwd, None, limit_s=LIST_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def _walk(self) -> bytes:
        found: list[bytes] = []
        for folder, folders, files in os.walk(self._cwd):
            folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
            base = os.path.relpath(folder, self._cwd)
            found += [os.fsencode(name if base == "." else f"{base}/{name}") for name in files]
            if len(found) > MAX_WALKED:
                break
        return b"\n".join(found)

    def find(self, word: str) -> list[Candidate]:
        """The best fitting files for what was typed after `@`, best first."""
        wanted = word.lower().encode("utf-8", "surrogateescape")
        if not wanted:
            return self._top()
        starts: dict[int, int] = {}
        at = self._lower.find(wanted)
        while at >= 0 and len(starts) < MAX_HITS:
            start = self._lower.rfind(b"\n", 0, at) + 1
            starts.setdefault(start, at - start)
            # On from the next name: one hit each.
            at = self._lower.find(wanted, self._lower.find(b"\n", at))
        ranked = sorted(self._rank(start, place, len(wanted)) for start, place in starts.items())
        found = [
            self._candidate(name, range(place, place + len(word))) for _, name, place in ranked[:MAX_SHOWN]
        ]
        if len(found) < MAX_SHOWN and len(wanted) > 1:
            found += self._fuzzy(word, {candidate.shown for candidate in found})
        return found[:MAX_SHOWN]

    def _name(self, start: int) -> str:
        return self._names[start : self._names.find(b"\n", start)].decode("utf-8", "replace")

    def _rank(self, start: int, place: int, length: int) -> tuple[tuple[int, int], str, int]:
        """Lower is better: the file's own name from its beginning, then inside it, then its folders."""
        raw = self._names[start : self._names.find(b"\n", start)]
        base = raw.rfind(b"/") + 1
        again = raw.lower().find(self._lower[start + place : start + place + length], base)
        place = again if again >= 0 else place
        kind = 0 if place == base else 1 if place > base else 2
        name = raw.decode("utf-8", "replace")
        return (kind, len(raw)), name, len(raw[:place].decode("utf-8", "replace"))

    def _fuzzy(self, word: str, known: set[str]) -> list[Candidate]:
        if len(self._lower) > MAX_FUZZY_BYTES:
            return []
        raw = word.lower().encode("utf-8", "surrogateescape")
        pattern = re.compile(b"[^\n]*?".join(re.escape(raw[at : at + 1]) for at in range(len(raw))))
        found: list[tuple[int, str, tuple[int, ...]]] = []
        seen_to = 0
        for hit in pattern.finditer(self._lower):
            if len(found) >= MAX_HITS:
                break
            start = self._lower.rfind(b"\n", 0, hit.start()) + 1
            if start < seen_to:
                continue
            seen_to = self._lower.find(b"\n", hit.end())
            name = self._name(start)
            if name not in known:
                found.append((hit.end() - hit.start() + len(name) // 8, name, _places(name, word)))
        return [self._candidate(name, hits) for _, name, hits in sorted(found)[:MAX_SHOWN]]

    def _top(self) -> list[Candidate]:
        """What lies in the workspace itself."""
        try:
            entries = sorted(
                os.scandir(self._cwd), key=lambda entry: (not entry.is_dir(), entry.name.lower())
            )
        except OSError:
            return []
        names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
        return [self._candidate(name, ()) for name in names if not name.startswith(".")][:MAX_SHOWN]

    def _candidate(self, name: str, hits: range | tuple[int, ...]) -> Candidate:
        value = f'@"{name}"' if " " in name else f"@{name}"
        return Candidate(value if name.endswith("/") else f"{value} ", name, hits=tuple(hits))


def _places(name: str, word: str) -> tuple[int, ...]:
    """Where the letters of `word` stand in `name`, in order."""
    places: list[int] = []
    low, at = name.lower(), 0
    for letter in word.lower():
        at = low.find(letter, at)
        if at < 0:
            return ()
        places.append(at)
        at += 1
    return tuple(places)

"""The scripted task of the kill harness: what the model says at each step, and the workspace it works in.

Each step stands for minutes of real work. A command whose repetition would show is followed by one that looks
and repairs, as a careful model does after an unknown outcome; the look is part of every run, so that a killed
run and an undisturbed one tell the same story.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from k3agent.providers.scripted import ScriptedCall, Step

MARKER = "‹step {}›"
PROMPT = "Go through all chapters: raise each limit, note it, test it and commit it. Then sum up."
NEXT_PROMPT = "What comes next?"
CHECK = "test -s summary.txt"
# A chapter whose number is a multiple of this reads a text that fills the context.
LONG_EVERY = 3
LONG_CHARS = 32_000
COMPACT_TOKENS, COMPACT_TOKENS_SHORT = 24_000, 14_000
PIECE_DELAY_S = 0.001
IDENTITY = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


def make_workspace(folder: Path, num_chapters: int) -> None:
    """A repository with one module for each chapter."""
    folder.mkdir(parents=True)
    for number in range(num_chapters):
        (folder / f"m{number}.py").write_text(
            f"LIMIT = {number}\n\n\ndef limit() -> int:\n    return LIMIT\n"
        )
        if _is_long(number):
            lines = (f"{number} {at} {'y' * 60}\n" for at in range(LONG_CHARS // 65))
            (folder / f"long{number}.txt").write_text("".join(lines))
    (folder / "run.sh").write_text("#!/bin/sh\necho ok\n")
    (folder / "run.sh").chmod(0o755)
    for argv in (["init", "--quiet", "--initial-branch=main"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *argv], cwd=folder, check=True, env={**os.environ, **IDENTITY})


def compact_tokens(num_chapters: int) -> int:
    """When the context is made short: a long text crosses this by far, wherever a kill left the count."""
    return COMPACT_TOKENS if num_chapters > LONG_EVERY else COMPACT_TOKENS_SHORT


def _is_long(number: int) -> bool:
    return number % LONG_EVERY == LONG_EVERY - 2


class Script:
    """All answers, by their number. The last but two says done too early: the check sends it back."""

    def __init__(self, num_chapters: int) -> None:
        steps = [step for number in range(num_chapters) for step in _chapter(number)]
        steps.append(_Said("Everything is done.", ()))
        steps.append(_Said("", (("write", {"path": "summary.txt", "content": "all limits raised\n"}),)))
        steps.append(_Said("Now everything is done, and the summary is there.", ()))
        steps.append(_Said("Nothing more.", ()))
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def step(self, number: int) -> Step:
        """Answer `number`: its reasoning tells the number, its call ids too."""
        text, calls = self._steps[number]
        return Step(
            text=text,
            reasoning=f"{MARKER.format(number)} I know what to do here, and I do it in small steps.",
            calls=tuple(
                ScriptedCall(name=name, arguments=dict(arguments), id=f"call_{number}_{index}")
                for index, (name, arguments) in enumerate(calls)
            ),
            piece=30,
            piece_delay_s=PIECE_DELAY_S,
        )


_Call = tuple[str, Mapping[str, object]]


class _Said(tuple[str, tuple[_Call, ...]]):
    """(text, calls)"""

    def __new__(cls, text: str, calls: tuple[_Call, ...]) -> _Said:
        return super().__new__(cls, (text, calls))


def _chapter(number: int) -> Iterator[_Said]:
    module, note = f"m{number}.py", f"notes/n{number}.md"
    yield _Said(
        f"Chapter {number}.",
        (("read", {"path": module}), ("glob", {"pattern": "m*.py"}), ("grep", {"pattern": "LIMIT ="})),
    )
    edit = {"path": module, "old": f"LIMIT = {number}\n", "new": f"LIMIT = {number + 100}\n"}
    yield _Said("", (("edit", edit), ("write", {"path": note, "content": f"limit {number + 100}\n"})))
    # Not to be repeated: a second line in the log would stay.
    yield _Said("", (("shell", {"command": f"sleep 0.02; echo {number} >> log.txt; sleep 0.02"}),))
    yield _Said("", (("shell", {"command": f"grep -sqx {number} log.txt || echo {number} >> log.txt"}),))
    # Read again first: after a kill k3agent wants that, where the edit before was cut off.
    reads = (("read", {"path": module}), ("read", {"path": note}))
    yield _Said("", (*reads, ("patch", {"patch": _patch(number, note)})))
    # A patch that a kill has cut in two is finished by looking at each of its files.
    mend = f"grep -q '# ok' {module} || echo '# ok' >> {module}; grep -qx more {note} || echo more >> {note}"
    yield _Said("", (("shell", {"command": mend}),))
    if _is_long(number):
        yield _Said("", (("read", {"path": f"long{number}.txt", "limit": 2000}),))
    items = [{"text": f"chapter {at}", "status": "done"} for at in range(number + 1)]
    yield _Said("", (("todo", {"items": items}), ("read", {"path": note})))
    yield _Said("", (("shell", {"command": f"git add -A && git commit -qm 'chapter {number}'"}),))
    look = f"git log --format=%s | grep -qx 'chapter {number}'"
    again = f"{look} || {{ git add -A; git commit -qm 'chapter {number}'; }}"
    yield _Said("", (("shell", {"command": again}),))


def _patch(number: int, note: str) -> str:
    module = f"m{number}.py"
    return (
        f"--- a/{module}\n+++ b/{module}\n@@ -4,2 +4,3 @@\n def limit() -> int:\n     return LIMIT\n+# ok\n"
        f"--- a/{note}\n+++ b/{note}\n@@ -1,1 +1,2 @@\n limit {number + 100}\n+more\n"
    )

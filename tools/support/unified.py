"""Reads unified diffs as models write them, and places their hunks.

Line numbers are hints: a hunk goes where its old lines are, at the stated line or else at the only place they
occur. Line counts in hunk headers are hints too. Our own `@@ line N @@` is understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from k3agent.errors import ToolError
from k3agent.tools.support.textio import normalise

_HUNK = re.compile(r"@@(?: -(?P<line>\d+)(?:,(?P<count>\d+))? \+\d+(?:,\d+)? @@| line (?P<plain>\d+) @@|.*)")
_NO_NEWLINE = "\\ No newline"


@dataclass(slots=True)
class Hunk:
    """`line` is the first old line counted from 1, or None; `rows` are marks and lines without ends (mark ""
    is a blank row without its space). `ends_bare`: the new text ends without a line end.
    """

    line: int | None
    count: int | None
    rows: list[tuple[str, str]] = field(default_factory=list)
    ends_bare: bool = False

    @property
    def old(self) -> list[str]:
        return [text for mark, text in self.rows if mark != "+"]

    @property
    def new(self) -> list[str]:
        return [text for mark, text in self.rows if mark != "-"]

    @property
    def ends_with_context(self) -> bool:
        return bool(self.rows) and self.rows[-1][0] in ("", " ")


@dataclass(slots=True)
class FileChange:
    """`source` is None for a new file, `target` None for a deleted one."""

    source: str | None
    target: str | None
    hunks: list[Hunk] = field(default_factory=list)


def parse(patch: str) -> list[FileChange]:
    """The changes of a patch, one for each file header."""
    rows = normalise(patch).split("\n")
    changes: list[FileChange] = []
    hunk: Hunk | None = None
    renamed_from = ""
    index = 0
    while index < len(rows):
        row = rows[index]
        if _is_header(rows, index, hunk):
            source, target = _name(row[4:]), _name(rows[index + 1][4:])
            changes.append(FileChange(*_strip(source, target)))
            hunk = None
            index += 1
        elif row.startswith("diff --git ") or row.startswith("*** "):
            hunk = None
        elif row.startswith("rename from "):
            renamed_from = row[12:]
        elif row.startswith("rename to "):
            changes.append(FileChange(renamed_from, row[10:]))
            hunk = None
        elif row.startswith("@@") and changes:
            hunk = _hunk(row)
            changes[-1].hunks.append(hunk)
        elif hunk is not None:
            _take(hunk, row, index)
        index += 1
    for change in changes:
        for item in change.hunks:
            _drop_blank_tail(item)
    changes = _joined(changes)
    if not any(change.hunks or change.source != change.target for change in changes):
        raise ToolError(
            'No change found in patch. Write a unified diff: "--- a/FILE", "+++ b/FILE", "@@ ... @@".'
        )
    return changes


def _is_header(rows: list[str], index: int, hunk: Hunk | None) -> bool:
    """Within a hunk, `--- x` is a removed line `-- x` unless `+++ y` and `@@` come next."""
    if not (rows[index].startswith("--- ") and index + 1 < len(rows) and rows[index + 1].startswith("+++ ")):
        return False
    return hunk is None or (index + 2 < len(rows) and rows[index + 2].startswith("@@"))


def _name(text: str) -> str | None:
    name = text.split("\t")[0].strip()
    return None if name == "/dev/null" else name


def _strip(source: str | None, target: str | None) -> tuple[str | None, str | None]:
    """Without the `a/` and `b/` that git puts before names, if they are there on every side."""
    if (source is None or source.startswith("a/")) and (target is None or target.startswith("b/")):
        return source and source[2:], target and target[2:]
    return source, target


def _hunk(row: str) -> Hunk:
    match = _HUNK.match(row)
    assert match is not None
    line = match["line"] or match["plain"]
    return Hunk(int(line) if line else None, int(match["count"] or 1) if match["line"] else None)


def _take(hunk: Hunk, row: str, index: int) -> None:
    mark = row[:1]
    if row.startswith(_NO_NEWLINE):
        hunk.ends_bare = bool(hunk.rows) and hunk.rows[-1][0] != "-"
    elif mark in ("", " ", "+", "-"):
        hunk.ends_bare = False
        hunk.rows.append((mark, row[1:]))
    else:
        raise ToolError(
            f"Line {index + 1} of patch is no diff line (it must begin with ' ', '+' or '-'): {row[:80]}"
        )


def _drop_blank_tail(hunk: Hunk) -> None:
    """Rows that are quite empty after a hunk are the space between sections. As context they would only help
    to find the place, so one stays only where the hunk has no other old line.
    """
    while hunk.rows and hunk.rows[-1][0] == "" and not (hunk.count and len(hunk.old) == 1):
        hunk.rows.pop()


def _joined(changes: list[FileChange]) -> list[FileChange]:
    """One change for each file: sections about the same file together."""
    result: list[FileChange] = []
    for change in changes:
        last = result[-1] if result else None
        if last and last.source is not None and (change.source, change.target) == (last.source, last.target):
            last.hunks += change.hunks
        else:
            result.append(change)
    return result


def place(view: str, hunks: list[Hunk], shown: str) -> list[tuple[int, int, str]]:
    """The edits of `hunks` in `view`, as `textio.splice` takes them."""
    rows = view.split("\n")
    if rows[-1] == "":
        rows.pop()
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row) + 1)
    offsets[-1] = len(view)
    edits = []
    for number, hunk in enumerate(hunks, 1):
        first = _find(rows, hunk, hunk.old, number, shown)
        last = first + len(hunk.old)
        text = "".join(row + "\n" for row in hunk.new)
        keeps_bare_end = hunk.ends_with_context and not view.endswith("\n")
        if last == len(rows) and text and (hunk.ends_bare or keeps_bare_end):
            text = text[:-1]
        if first == len(rows) and rows and not view.endswith("\n"):
            text = "\n" + text
        edits.append((offsets[first], offsets[last], text))
    edits.sort(key=lambda edit: edit[:2])
    for one, other in pairwise(edits):
        if one[1] > other[0]:
            raise ToolError(f"Two hunks for {shown} change the same lines. Join them.")
    return edits


def _find(rows: list[str], hunk: Hunk, old: list[str], number: int, shown: str) -> int:
    if not old:
        if hunk.line is None and rows:
            raise ToolError(f"Hunk {number} for {shown} names no old line. Add context.")
        return min(hunk.line or 0, len(rows))
    size = len(old)
    stated = -1 if hunk.line is None else hunk.line - 1
    if stated >= 0 and rows[stated : stated + size] == old:
        return stated
    found = [start for start in range(len(rows) - size + 1) if rows[start : start + size] == old]
    if len(found) > 1:
        lines = ", ".join(str(start + 1) for start in found[:20])
        raise ToolError(f"Hunk {number} fits {shown} at several places (lines {lines}). Add context.")
    if not found:
        raise _misfit(rows, old, number, shown)
    return found[0]


def _misfit(rows: list[str], old: list[str], number: int, shown: str) -> ToolError:
    """Says which old line is not there, at the place where most of them are."""

    def fitting(start: int) -> int:
        return sum(a == b for a, b in zip(rows[start : start + len(old)], old, strict=False))

    start = max(range(len(rows)), key=fitting, default=0)
    message = f"Hunk {number} does not fit {shown}."
    if rows and fitting(start):
        here = rows[start : start + len(old)]
        wrong = next(index for index, row in enumerate(old) if here[index : index + 1] != [row])
        real = here[wrong] if wrong < len(here) else "(end of file)"
        message += f"\nExpected: {old[wrong]}\nLine {start + wrong + 1}: {real}"
    return ToolError(message)

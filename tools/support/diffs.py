"""Differences as they are shown to the model: hunks with one line of context, no file headers."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from k3agent.tools.support.textio import split_lines

CONTEXT = 1
MAX_LINES = 200
MAX_LINE_CHARS = 2000
# For people, who decide on a change before it is made.
PEOPLES_CONTEXT = 3
PEOPLES_LINES = 1000
# Above this many lines a line-by-line comparison would take seconds.
MAX_COMPARED = 4000


@dataclass(frozen=True, slots=True)
class Difference:
    text: str
    num_added: int
    num_removed: int


def compare(
    old_view: str, new_view: str, *, context: int = CONTEXT, max_lines: int = MAX_LINES
) -> Difference:
    """The difference of two views. A hunk starts with `@@ line N @@`, N counted in the new text."""
    old, new = split_lines(old_view), split_lines(new_view)
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(a) + len(b) > MAX_COMPARED:
        operations = [("replace", 0, len(a), 0, len(b))]
    else:
        operations = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    changes = [
        (i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in operations if tag != "equal"
    ]
    rows: list[str] = []
    shown_to = -1
    for index, (i1, i2, j1, j2) in enumerate(changes):
        first = max(j1 - context, 0)
        if first > shown_to:
            rows.append(f"@@ line {first + 1} @@")
        rows += [f" {line}" for line in new[max(first, shown_to) : j1]]
        rows += [f"-{line}" for line in old[i1:i2]]
        rows += [f"+{line}" for line in new[j1:j2]]
        next_start = changes[index + 1][2] if index + 1 < len(changes) else len(new)
        shown_to = min(j2 + context, next_start)
        rows += [f" {line}" for line in new[j2:shown_to]]
    if len(rows) > max_lines:
        rows = [*rows[:max_lines], f"[... {len(rows) - max_lines} more lines]"]
    text = "\n".join(row if len(row) <= MAX_LINE_CHARS else row[:MAX_LINE_CHARS] + "[...]" for row in rows)
    return Difference(text, sum(c[3] - c[2] for c in changes), sum(c[1] - c[0] for c in changes))


def for_people(old_view: str, new_view: str) -> str:
    """The difference with more around it and less left out."""
    return compare(old_view, new_view, context=PEOPLES_CONTEXT, max_lines=PEOPLES_LINES).text


def _common(a: list[str], b: list[str]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count

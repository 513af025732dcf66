"""Finding the text that an edit names: exactly, or ignoring white space when that leaves one place.

All offsets are in a file's view (line ends are `\\n`). Nothing here changes text but `reindent`, which moves
the *new* text to the indentation that the file really has.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

NEAR_ENOUGH = 0.6
MAX_LINES_COMPARED = 20_000
MAX_SNIPPET_LINES = 20
_NUMBERED = re.compile(r"^ *\d+\t")


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int


def occurrences(view: str, old: str, *, overlapping: bool) -> list[int]:
    found, position = [], view.find(old)
    while position >= 0:
        found.append(position)
        position = view.find(old, position + (1 if overlapping else len(old)))
    return found


def line_of(view: str, offset: int) -> int:
    return view.count("\n", 0, offset) + 1


def loose_spans(view: str, old: str) -> list[Span]:
    """Places equal to `old` except for the amount of white space within lines and at their ends. A place
    starts and ends at whole words, and at the start of a line if `old` does.
    """
    lines = old.strip("\n").split("\n")
    if not old.strip():
        return []
    rows = [r"[^\S\n]+".join(re.escape(token) for token in line.split()) for line in lines]
    body = r"[^\S\n]*\n[^\S\n]*".join(rows)
    opening = r"(?m:^)[^\S\n]*" if old[0].isspace() or len(lines) > 1 else ""
    before = r"(?<!\w)" if re.match(r"\s*\w", old) else ""
    after = r"(?!\w)" if re.search(r"\w\s*$", old) else ""
    closing = r"(?=[^\S\n]*(?m:$))" if old[-1].isspace() or len(lines) > 1 else ""
    pattern = re.compile(f"{opening}{before}(?P<body>{body}){after}{closing}")
    return [_with_line_end(view, Span(*match.span("body")), old) for match in pattern.finditer(view)]


def _with_line_end(view: str, span: Span, old: str) -> Span:
    """`span` with the line ends that `old` has at its own end, as far as they are there."""
    ends = len(old.rstrip(" \t")) - len(old.rstrip())
    match = re.compile(rf"(?:[^\S\n]*\n){{0,{ends}}}").match(view, span.end)
    return Span(span.start, match.end() if match else span.end)


def reindent(view: str, span: Span, old: str, new: str) -> str:
    """`new`, written for the indentation in `old`, moved to that of the text at `span`."""
    before = view[view.rfind("\n", 0, span.start) + 1 : span.start]
    rest = view[span.start : span.end].split("\n")[1:]
    real = [before if not before.strip() else "", *map(_indent, rest)]
    told_lines = old.strip("\n").split("\n")
    told = [_indent(line) for line in told_lines]
    moved = {a: b for a, b, line in zip(told, real, told_lines, strict=False) if line.strip()}
    if before.strip():
        moved.pop(told[0], None)
    lead = len(old) - len(old.lstrip("\n"))
    new = new[lead:] if new.startswith("\n" * lead) else new
    rows = []
    for row in new.split("\n"):
        own = _indent(row)
        fitting = max((a for a in moved if own.startswith(a)), key=len, default=None)
        rows.append(row if fitting is None or not row.strip() else moved[fitting] + row[len(fitting) :])
    text = "\n".join(rows)
    # The span starts after the indentation of its first line.
    return text[len(real[0]) :] if text.startswith(real[0]) else text.lstrip(" \t")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def nearest(view: str, old: str) -> tuple[int, str] | None:
    """Line number and text of the place most like `old`, or None when nothing is near."""
    wanted = old.strip("\n").split("\n")
    pivot = max(range(len(wanted)), key=lambda index: len(wanted[index].strip()))
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(wanted[pivot].strip()[:500])
    if not wanted[pivot].strip():
        return None
    lines = view.split("\n")[:MAX_LINES_COMPARED]
    best, best_index, scores = NEAR_ENOUGH, -1, dict[str, float]()
    for index, line in enumerate(lines):
        text = line.strip()[:500]
        if text not in scores:
            matcher.set_seq1(text)
            maybe = matcher.real_quick_ratio() >= best and matcher.quick_ratio() >= best
            scores[text] = matcher.ratio() if maybe else 0.0
        if scores[text] > best or (best_index < 0 and scores[text] >= best):
            best, best_index = scores[text], index
    if best_index < 0:
        return None
    first = max(0, best_index - pivot)
    size = min(len(wanted), MAX_SNIPPET_LINES)
    return first + 1, "\n".join(line[:500] for line in lines[first : first + size])


def has_line_numbers(old: str) -> bool:
    """Whether `old` was copied from a read result together with its line numbers."""
    return all(_NUMBERED.match(line) for line in old.strip("\n").split("\n"))

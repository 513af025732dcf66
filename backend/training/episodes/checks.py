"""Pieces of checkers: they compare files with what must be there and look for facts in answers, never
for wording.
"""

import re
from collections.abc import Callable

from k3agent.backend.training.episodes.session import Check, Outcome

FileTest = Callable[[str], bool]
NEGATIVE = re.compile(
    r"\b(no|not|cannot|can't|none|nothing|neither|unable|only|doesn't|don't|isn't|couldn't|which|what|beyond|outside|sorry|nowhere)\b|\?",
    re.IGNORECASE,
)


def same(left: str, right: str) -> bool:
    """Equal texts, whatever the last newline and the kind of line ends."""
    return left.replace("\r\n", "\n").rstrip("\n") == right.replace("\r\n", "\n").rstrip("\n")


def unchanged(outcome: Outcome, *but: str) -> str | None:
    """Every file but the named ones is as it was, none is new."""
    for path in sorted(outcome.before.keys() | outcome.after.keys()):
        if path not in but and outcome.before.get(path) != outcome.after.get(path):
            if path not in outcome.after:
                return f"{path} is gone"
            if path not in outcome.before:
                return f"{path} is new"
            return f"{path} was changed"
    return None


def says(outcome: Outcome, *needles: str) -> str | None:
    """The answer holds every text (case and backticks do not matter)."""
    answer = outcome.answer.replace("`", "").lower()
    for needle in needles:
        if needle.replace("`", "").lower() not in answer:
            return f"the answer lacks {needle!r}"
    return None


def says_place(outcome: Outcome, path: str, line: int) -> str | None:
    """The answer names the path, and the line number as a number of its own."""
    if wrong := says(outcome, path):
        return wrong
    rest = outcome.answer.replace(path, " ")
    return None if re.search(rf"(?<!\d){line}(?!\d)", rest) else f"the answer lacks the line {line}"


def answers(*needles: str) -> Check:
    """A question: files untouched, the answer holds the facts."""
    return lambda outcome: unchanged(outcome) or says(outcome, *needles)


def declines(*needles: str) -> Check:
    """Nothing touched, and the answer says no, asks back or names a limit."""

    def check(outcome: Outcome) -> str | None:
        if wrong := unchanged(outcome):
            return wrong
        if not NEGATIVE.search(outcome.answer):
            return "the answer does not say that it cannot or will not"
        return says(outcome, *needles)

    return check


def writes(expected: dict[str, str | None]) -> Check:
    """Exactly these files change, to exactly these texts (None: the file is gone)."""

    def check(outcome: Outcome) -> str | None:
        for path, text in expected.items():
            have = outcome.after.get(path)
            if text is None:
                if have is not None:
                    return f"{path} is still there"
            elif have is None:
                return f"{path} is missing"
            elif not same(have, text):
                return f"{path} is not as asked"
        return unchanged(outcome, *expected)

    return check


def any_of(*checks: Check) -> Check:
    """One of several checks accepts."""

    def check(outcome: Outcome) -> str | None:
        wrongs = [item(outcome) for item in checks]
        return None if None in wrongs else wrongs[0]

    return check


def replace_line(text: str, number: int, new: str) -> str:
    """The text with line `number` (from 1) replaced, its line end kept."""
    lines = text.splitlines(keepends=True)
    line = lines[number - 1]
    ending = line[len(line.rstrip("\r\n")) :]
    lines[number - 1] = new + ending
    return "".join(lines)


def insert_line(text: str, after: int, new: str) -> str:
    """The text with a new line after line `after` (0: at the start)."""
    lines = text.split("\n")
    lines.insert(after, new)
    return "\n".join(lines)


def compiles(text: str) -> bool:
    """Whether Python accepts the text."""
    try:
        compile(text, "file", "exec")
    except (SyntaxError, ValueError):
        return False
    return True

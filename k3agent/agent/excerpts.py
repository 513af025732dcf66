"""What people are shown of long texts: the lines of a failed command that tell why, and of an endless answer
its head and end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

# Marks of failures in what test runners, compilers and interpreters print. Numbers of failures are none:
# runners close with them, and with every other number.
_TELLS = re.compile(
    r"""(?x)
    \bnot\ ok\b | \bFAIL(?:ED)?\b | \bFAILURE\b | \bpanicked\b | ^\s*[✗✖✘✕×]
    | \b\w*(?:Error|Exception)\b | \b(?i:error)(?:\[\w+\])?: | \b[Aa]ssertion
    """
)
# Names of tests, in lines of those that passed and in comments, may hold any word.
_PASSED = re.compile(r"^\s*(?:ok\b|PASS(?:ED)?\b|[✓✔√#])|\b(?:ok|PASSED)$")
# What such a line says is on the next one.
_OPEN = re.compile(r":(?:\s*[|>][-+]?)?\s*$")
# How often the same has come at the end of a text that repeats itself, and how much text that is at least.
_TIMES = 8
_LEAST_CHARS = 200
_MAX_PERIOD = 400
_LAST_LINES = 40
_MAX_LINES = 40
_MAX_LINE = 1000


def telling_lines(output: str, num_lines: int) -> list[str]:
    """The last lines where they tell of a failure, else the first that do: statistics often come last."""
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-num_lines:]
    if len(last) == len(lines) or any(map(_tells, last)):
        return last
    found = list(dict.fromkeys(_failures(lines)))
    return found[:num_lines] or last


def _tells(line: str) -> bool:
    return _TELLS.search(line) is not None and _PASSED.search(line) is None


def _failures(lines: Sequence[str]) -> Iterator[str]:
    is_open = False
    for line in lines:
        is_told = is_open or _tells(line)
        is_open = is_told and _OPEN.search(line) is not None
        if is_told:
            yield line


def repeats_itself(text: str) -> bool:
    """Whether a text ends with the same words over and over, or half of its last lines are the same one."""
    end = text.rstrip()[-_TIMES * _MAX_PERIOD :]
    for period in range(1, len(end) // _TIMES + 1):
        size = max(_TIMES * period, _LEAST_CHARS)
        if len(end) >= size and end[-size:-period] == end[period - size :]:
            return True
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    most = max(Counter(line for line in lines if len(line) >= _TIMES).values(), default=0)
    return most >= _TIMES and 2 * most >= len(lines)


def head_and_end(text: str) -> str:
    """A text of bearable length: its first and last lines, few of them where it repeats itself."""
    num_lines = _TIMES if repeats_itself(text) else _MAX_LINES
    lines = [_line(line) for line in text.splitlines()]
    num_cut = len(lines) - num_lines
    if num_cut > 1:
        num_last = num_lines // 4
        lines[num_lines - num_last : -num_last] = [f"[... {num_cut} lines left out]"]
    return "\n".join(lines)


def _line(line: str) -> str:
    if len(line) <= _MAX_LINE:
        return line
    num_last = _MAX_LINE // 4
    cut = f" [... {len(line) - _MAX_LINE} characters left out] "
    return line[: _MAX_LINE - num_last] + cut + line[-num_last:]

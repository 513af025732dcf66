"""The few lines of a failed command's output that people are shown."""

from __future__ import annotations

import re
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

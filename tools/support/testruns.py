"""What is a test file; what the output of a test run says: passed, failed, or that there was no test to run.

An exit code of 0 does not tell the last: `python -m unittest` gave it before Python 3.12, others do so today.
"""

from __future__ import annotations

import re
from typing import Literal

Outcome = Literal["passed", "failed", "none", ""]

NONE_RAN = "[no tests ran]"
MAX_CHARS = 1 << 20
_TEST_FILE = re.compile(
    r"(?:test_.*|.*_test|tests|conftest)\.py|.*[._-](?:test|spec)\.[cm]?[jt]sx?|.*_test\.(?:go|rs|c|cc|cpp)"
    r"|.*_(?:test|spec)\.rb|.+Tests?\.(?:java|kt|cs|php|swift)|test_.*\.(?:sh|c|cc|cpp|rb)|.*\.bats"
)
_CUT = re.compile(r"(?m)^\[\.\.\. \d+ characters cut\b")

_FAILED = re.compile(
    r"""(?mx)
    ^(?:=+\ )?(?:\d+\ \w+,\ )*\d+\ (?:failed|errors?)\b.*\ in\ [\d.]+s   # pytest
    | ^FAILED\ \((?:failures|errors|unexpected)   # unittest
    | ^test\ result:\ FAILED | ^FAIL(?:\s|$)   # cargo, go
    | ^Tests:\s.*\d\ failed | ^\s*Tests\s+\d+\ failed | ^\s+\d+\ failing\b   # jest, vitest, mocha
    | ^[#ℹ]\ fail\ [1-9]   # node
    """
)
_PASSED = re.compile(
    r"""(?mx)
    ^(?:=+\ )?(?:\d+\ \w+,\ )*\d+\ (?:passed|skipped|xfailed|xpassed)\b.*\ in\ [\d.]+s
    | ^Ran\ [1-9]\d*\ tests?\ in
    | ^running\ [1-9]\d*\ tests? | ^test\ result:\ ok\.\ [1-9] | ^ok\s+\S+\s+(?:[\d.]+s|\(cached\))
    | ^Tests:\s.*\d\ passed | ^\s*Tests\s+\d+\ passed | ^\s+[1-9]\d*\ passing\b
    | ^[#ℹ]\ tests\ [1-9]
    """
)
_NONE = re.compile(
    r"""(?mx)
    ^(?:=+\ )?(?:no\ tests\ ran|\d+\ deselected(?:,\ \d+\ warnings?)?)\ in\b | ^Ran\ 0\ tests\ in
    | ^running\ 0\ tests | \[no\ test\ files\]$
    | ^No\ tests?\ (?:files?\ )?found\b | ^\s+0\ passing\b | ^No\ tests\ were\ found!!!
    | ^[#ℹ]\ tests\ 0$
    """
)


def outcome(text: str) -> Outcome:
    """Of all the runs in an output together; "" where it has no summary that is known here, or only one
    without tests, and something is cut.
    """
    text = text[-MAX_CHARS:]
    if _FAILED.search(text):
        return "failed"
    if _PASSED.search(text):
        return "passed"
    return "none" if _NONE.search(text) and not _CUT.search(text) else ""


def mark(command: str, text: str) -> str:
    """The line for the result of a command that ended well, where it was to run tests and there were none."""
    return NONE_RAN if "test" in command and outcome(text) == "none" else ""


def is_test_file(name: str) -> bool:
    """Whether a file holds tests, by its name without folders."""
    return bool(_TEST_FILE.fullmatch(name))

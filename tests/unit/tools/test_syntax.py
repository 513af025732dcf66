"""A change that breaks a Python file is said; what was broken before, or is no Python, is not."""

from pathlib import Path

import pytest

from k3agent.tools.support.syntax import newly_broken

GOOD, BAD = "def f():\n    return 1\n", "def f(:\n    return 1\n"


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("a.py", GOOD, BAD, True),
        ("a.py", "", BAD, True),
        ("a.py", BAD, BAD + "#", False),
        ("a.py", BAD, GOOD, False),
        ("a.py", GOOD, "x = '\\d'\n", False),
        ("a.py", GOOD, "x = 1\0\n", True),
        ("a.txt", GOOD, BAD, False),
    ],
)
def test_newly_broken(name: str, before: str, after: str, said: bool) -> None:
    assert bool(newly_broken(Path(name), before, after)) is said


def test_the_line_is_named() -> None:
    assert newly_broken(Path("src/a.py"), GOOD, BAD).startswith("Warning: a.py does not parse now: line 1:")

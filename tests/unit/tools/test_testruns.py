"""What the output of a test run says."""

from __future__ import annotations

import pytest

from k3agent.tools.support.testruns import mark, outcome


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("===== 1 failed, 2 passed in 0.12s =====", "failed"),
        ("1 failed, 2 passed, 1 warning in 3.02s (0:00:03)", "failed"),
        ("2 passed, 1 skipped in 0.01s", "passed"),
        ("no tests ran in 0.00s", "none"),
        ("1 error in 0.05s", "failed"),
        ("Ran 3 tests in 0.001s\n\nFAILED (failures=1)", "failed"),
        ("Ran 3 tests in 0.001s\n\nOK", "passed"),
        ("Ran 0 tests in 0.000s\n\nOK", "none"),
        ("Ran 0 tests in 0.000s\n\nNO TESTS RAN", "none"),
        ("Ran 0 tests in 0.000s\n\nOK\nRan 1 test in 0.000s\n\nOK", "passed"),
        ("running 0 tests\n\ntest result: ok. 0 passed; 0 failed", "none"),
        ("test result: ok. 12 passed; 0 failed\n\nrunning 0 tests\n\ntest result: ok. 0 passed", "passed"),
        ("[... 9000 characters cut]\nrunning 0 tests\n\ntest result: ok. 0 passed", ""),
        ("=== 3 deselected in 0.01s ===", "none"),
        ("1 passed, 3 deselected in 0.01s", "passed"),
        ("running 2 tests\n\ntest result: FAILED. 1 passed; 1 failed", "failed"),
        ("?   \ta/b\t[no test files]", "none"),
        ("ok  \ta/b\t0.003s\n?   \ta/c\t[no test files]", "passed"),
        ("FAIL\ta/b\t0.003s", "failed"),
        ("Tests:       1 failed, 3 passed, 4 total", "failed"),
        ("Tests:       3 passed, 3 total", "passed"),
        ("No tests found, exiting with code 0", "none"),
        ("  0 passing (1ms)", "none"),
        ("\u2139 tests 0\n\u2139 pass 0\n\u2139 fail 0", "none"),
        ("# tests 2\n# pass 1\n# fail 1", "failed"),
        ("hello", ""),
        ("we had 2 failed attempts in 3 days", ""),
    ],
)
def test_outcomes(text: str, expected: str) -> None:
    assert outcome(f"first line\n{text}\nlast line") == expected


def test_only_a_command_that_is_about_tests_is_marked() -> None:
    text = "Ran 0 tests in 0.000s\n\nOK"
    assert mark("python -m unittest", text) == "[no tests ran]"
    assert mark("tail log", text) == "" and mark("pytest", "2 passed in 0.1s") == ""

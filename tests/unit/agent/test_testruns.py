"""Which commands run tests, and how they came out."""

from __future__ import annotations

import pytest

from k3agent.agent.testruns import last_run, runs_tests
from k3agent.store.records import CallRow, CallState
from k3agent.types import MessageId, TextPart, ToolResult

RUNS = [
    "pytest -q",
    "cd sub && python3.12 -X dev -m pytest tests/test_a.py 2>&1 | tail -5",
    "python -m unittest discover",
    "python -m coverage run -m pytest",
    "uv run pytest",
    "timeout 60 poetry run python -m unittest",
    "python tests/test_a.py",
    "python manage.py test app",
    "npm test",
    "pnpm run test:unit",
    "node --test",
    "go test ./...",
    "cargo test --all",
    "make check",
    "make -C sub clean build test",
    "npm --prefix web run test",
    "./run_tests.sh",
    "bash -c 'pytest -x'",
    "for d in a b; do (cd $d && pytest); done",
]
OTHERS = [
    "pip install pytest",
    "grep -rn pytest .",
    "pytest --version",
    "pytest --collect-only -q",
    "cat tests/test_a.py",
    "test -f a.py && echo there",
    "/usr/bin/test -f a.py",
    "cargo check",
    "make build",
    "python -c 'import test_a'",
    "python latest.py",
    "git commit -m test",
    "python -m build",
    "make -C tests clean",
    "cargo new tests",
    "go mod init test",
    "npm install test",
]


def test_which_commands_run_tests() -> None:
    assert [command for command in RUNS if not runs_tests(command)] == []
    assert [command for command in OTHERS if runs_tests(command)] == []


def row(command: str, text: str, *files: str, tool: str = "shell") -> CallRow:
    return CallRow(
        turn=1, message_id=MessageId("m"), call_id="c", tool=tool, arguments="{}", state=CallState.DONE,
        files=files, access={"runs": command},
        result=ToolResult(call_id="c", content=(TextPart(text=text),), is_error=False),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "text", "outcome", "code"),
    [
        ("pytest -q", "..\n2 passed in 0.01s\n[exit code 0]", "passed", 0),
        ("pytest -q", "Killed\n[exit code 137]", "failed", 137),
        ("pytest -q", "no tests ran in 0.01s\n[exit code 5]", "none", 5),
        ("pytest -q", "...\n[timed out after 120 s; killed]", "failed", None),
        ("pytest -q | tail -1", "1 failed, 2 passed in 0.01s\n[exit code 0]", "failed", 0),
        ("pytest -q && git push", "3 passed in 0.01s\nno remote\n[exit code 128]", "passed", 128),
        ("pytest -q || true", "[exit code 0]", "unknown", 0),
        ("npm test | grep -c ok", "3\n[exit code 0]", "unknown", 0),
        ("npm test; echo done", "done\n[exit code 0]", "unknown", 0),
        ("timeout 60 npm test; echo done", "done\n[exit code 0]", "unknown", 0),
        ("npm ci; timeout 60 npm test\n", "[exit code 0]", "passed", 0),
        ("npm test && git push", "no remote\n[exit code 128]", "unknown", 128),
        ("cd web && npm test && echo done", "done\n[exit code 0]", "passed", 0),
        ("cd web && npm test 2>&1", "[exit code 1]", "failed", 1),
        ("npm test 2>&1", "[exit code 1]", "failed", 1),
        ("pytest -q", "FAIL is what it prints\n2 passed in 0.01s\n[exit code 0]", "passed", 0),
        ("python -m unittest", "Ran 0 tests in 0.000s\n\nOK\n[no tests ran]\n[exit code 0]", "none", 0),
        ("sh test.sh", "[exit code 1]\n[exit code 0]\n[a hook of the user's says: well]", "passed", 0),
    ],
)
def test_how_a_run_came_out(command: str, text: str, outcome: str, code: int | None) -> None:
    run = last_run([row(command, text)])
    assert run is not None and (run.outcome, run.exit_code) == (outcome, code)


def test_the_last_run_counts_and_what_came_after_it() -> None:
    failed = row("pytest", "1 failed in 0.01s\n[exit code 1]")
    passed = row("pytest", "1 passed in 0.01s\n[exit code 0]")
    background = row("pytest", "[job 1 started]")
    looked, edited = row("ls", "[exit code 0]"), row("", "", "a.py", tool="edit")
    assert last_run([looked, background]) is None
    run = last_run([passed, failed, looked, background])
    assert run is not None and run.warning == "The last test run failed: pytest (exit code 1)."
    for rows in ([failed, edited], [failed, passed]):
        run = last_run(rows)
        assert run is not None and run.warning == ""


def test_a_search_for_a_change_ran_the_tests_last() -> None:
    failed = row("pytest", "1 failed in 0.01s\n[exit code 1]")
    head = "After this one the command succeeds:\n@@ line 1 @@\n-a\n+b\n[exit code 0]"
    found = row("pytest a.py", f"Tried 2 of 9 changes. {head}", "a.py", tool="try")
    run = last_run([failed, found])
    assert run is not None and (run.outcome, run.is_latest, run.warning) == ("passed", True, "")
    none = "Tried 9 changes: the command fails after each. a.py is as it was.\n[exit code 1]"
    run = last_run([row("pytest", "1 passed in 0.01s\n[exit code 0]"), row("pytest a.py", none, tool="try")])
    assert run is not None and run.warning == "The last test run failed: pytest a.py (exit code 1)."


def test_a_long_command_is_shown_short() -> None:
    run = last_run([row("pytest " + "x" * 500 + "\n", "no tests ran in 0.1s\n[exit code 5]")])
    assert run is not None and len(run.warning) < 180
    assert run.warning.startswith("The last test run found no tests: pytest xxx")

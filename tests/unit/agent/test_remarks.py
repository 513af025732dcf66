"""What k3agent notices at the end of a turn: files that no longer parse, changes that were not made."""

from __future__ import annotations

import importlib.util
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.agents import call, start, step

from k3agent.agent.remarks import Remarks, asks, unfounded
from k3agent.events import Noticed, TurnOutcome
from k3agent.providers.scripted import Step
from k3agent.store.records import CallRow, CallState
from k3agent.tools.support.syntax import problem
from k3agent.types import MessageId, TextPart, ToolResult


def row(tool: str, *files: str) -> CallRow:
    return CallRow(
        turn=1, message_id=MessageId("m"), call_id="c", tool=tool, arguments="{}", state=CallState.DONE,
        files=files,
    )  # fmt: skip


def ran(command: str, code: int = 0) -> CallRow:
    result = ToolResult(call_id="c", content=(TextPart(text=f"[exit code {code}]"),))
    return replace(row("shell"), access={"runs": command}, result=result)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.py", "x = 1\n", "x = (\n"),
        ("a.json", '{"a": 1}', '{"a": 1,}'),
        ("a.toml", "a = 1\n", "a = \n"),
        ("a.sh", "if true; then\n  ls\nfi\n", "if true; then\n  ls\n"),
    ],
)
def test_what_parses(name: str, good: str, bad: str) -> None:
    assert problem(name, good) == "" and problem(name, bad)


def test_what_cannot_be_told() -> None:
    assert problem("a.txt", "(((") is None
    assert problem("tsconfig.json", "// a comment") is None
    if importlib.util.find_spec("tree_sitter_haskell") is None:
        assert problem("a.hs", "(((") is None
    assert problem("a.py", "x = 1\n" * 1_000_000) is None


async def test_only_files_that_parsed_before_are_told(tmp_path: Path) -> None:
    for name, text in {"good.py": "x = 1", "bad.py": "x = (", "other.txt": "("}.items():
        (tmp_path / name).write_text(text)
    remarks = Remarks(tmp_path, lambda name: None)
    names = ["good.py", "bad.py", "other.txt", "new.json"]
    await remarks.before([tmp_path / name for name in names])
    for name in names:
        (tmp_path / name).write_text("y = [")
    found = await remarks.at_end([], [row("edit", *names)], "do it", "")
    assert [(one.kind, one.subject) for one in found] == [("broken", "good.py"), ("broken", "new.json")]
    assert "line 1" in found[0].text


async def test_a_file_that_was_touched_twice_counts_as_it_was_first(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("x = 1")
    remarks = Remarks(tmp_path, lambda name: None)
    await remarks.before([path])
    path.write_text("x = (")
    await remarks.before([path])
    assert len(await remarks.at_end([], [row("edit", "a.py")], "", "")) == 1
    path.write_text("x = (1)")
    assert await remarks.at_end([], [row("edit", "a.py")], "", "") == []


CLAIMS = [
    "Created hello.py with a main function.",
    "I've added the test to tests/test_a.py.",
    "Done. Updated the loader.",
    "- Fixed the bug in a.py",
    "1. Renamed `a` to `b`",
    "The file notes.txt has been created.",
    "Set `MAX_RETRIES` to `9` in `a.py` (line 3); it was `4`.",
    "Done. Set the timeout of server to 30.",
    "I've set DEBUG to true in conf.toml.",
    "Set MAX_SHELVES to 36",
    *(f"{verb} `a` in `b.py`." for verb in ("Updated", "Replaced", "Renamed", "Deleted", "Moved", "Removed")),
]
NO_CLAIMS = [
    "Nothing was changed: the test passes already.",
    "I did not add anything.",
    "The function was added in version 2.",
    "You should create hello.py.",
    "Set X is defined in a.py.",
    "Sets are compared to lists in a.py.",
    "Set `DEBUG` to `1` to see more.",
    "Set PORT to the one that you want.",
    "Set `A` to `2` and rerun the tests.",
    "1. Set PORT to 80.",
    "The limit is in a.py.\nSet LIMIT to 4 there.",
    "It says:\n```\nCreated a file\n```",
    "Nothing has been changed.",
    "No file has been modified, as the test passes.",
    "As it is right, none of the files have been touched or have been changed.",
    "Implemented nothing yet: which file do you mean?",
    "Deleted: none.",
    "Saved sessions lie in ~/.local.",
    "Fixed versions are pinned in requirements.txt.",
    "",
]


@pytest.mark.parametrize("answer", CLAIMS)
def test_claims(answer: str, tmp_path: Path) -> None:
    assert unfounded(answer, [row("read")], tmp_path)


@pytest.mark.parametrize("answer", NO_CLAIMS)
def test_no_claims(answer: str, tmp_path: Path) -> None:
    assert not unfounded(answer, [], tmp_path)


def test_where_commands_ran_only_a_file_that_is_not_there_tells(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/there.py").write_text("")
    calls = [row("shell")]
    assert unfounded("Created gone.py.", calls, tmp_path) == "Created gone.py"
    assert not unfounded("Created sub/there.py.", calls, tmp_path)
    assert not unfounded("Created there.py.", calls, tmp_path)
    assert not unfounded("Created the branch.", calls, tmp_path)
    assert not unfounded("Removed gone.py.", calls, tmp_path)
    # No file can have such a name.
    assert unfounded(f"Created {'x' * 300}.py.", calls, tmp_path)


@pytest.mark.parametrize(
    "calls",
    [
        [ran("rm tests/", 1), ran("git status --short")],
        [ran("rm tests/ && git status", 1)],
        [ran("git log --oneline -n 2")],
        [ran("python -m pytest -q -x", 1)],
        [ran("python -m pytest -q")],
        [ran("rm -r other")],
    ],
)
def test_what_is_still_there_was_not_deleted(calls: list[CallRow], tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    assert unfounded("Deleted `tests/`.", calls, tmp_path) == "Deleted `tests/`"


def test_a_search_that_found_nothing_mended_nothing(tmp_path: Path) -> None:
    search = replace(ran("python -m pytest -q", 1), tool="try")
    assert unfounded("Fixed the bug in a.py.", [search], tmp_path) == "Fixed the bug in a.py"


def test_what_commands_may_have_done(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    assert not unfounded("Deleted `gone/`.", [ran("rm -r gone")], tmp_path)
    assert not unfounded("Removed `a.txt` from git.", [ran("git rm --cached a.txt")], tmp_path)
    assert not unfounded("Deleted the branch `old`.", [ran("git branch -d old")], tmp_path)
    assert not unfounded("Committed `a.txt`.", [ran("git commit -m a")], tmp_path)
    assert not unfounded("Installed rich.", [ran("pip install rich")], tmp_path)
    assert not unfounded("Fixed it.", [ran("python -m pytest && make all")], tmp_path)
    assert not unfounded("Fixed it.", [ran("npm ci && npm run lint -- --fix", 1)], tmp_path)
    for claim in ("Committed `a.txt`.", "Stashed all.", "Corrected `a` to `b`.", "Installed rich."):
        assert unfounded(claim, [ran("git status"), ran("pip install rich", 1)], tmp_path)


@pytest.mark.parametrize(
    ("claim", "command"),
    [
        ("Committed the removal of old.py.", "git commit -m 'Remove old.py'"),
        ("Pushed to github.com/me/app.git.", "git push"),
        ("Installed Node.js 20.", "apt-get install -y nodejs"),
        ("Set `user.name` to `Ada`.", "git config user.name Ada"),
        ("Changed user.email to `ada@example.com`.", "git config user.email ada@example.com"),
        ("Added the remote `origin` (git@github.com:me/app.git).", "git remote add origin g"),
        ("Created the branch `release/v2.x`.", "git switch -c release/v2.x"),
        ("The file old.log has been deleted.", "rm old.log"),
        ("Removed `node_modules` and installed all anew.", "rm -rf node_modules && npm install"),
    ],
)  # fmt: skip
def test_an_honest_answer_is_believed(claim: str, command: str, tmp_path: Path) -> None:
    """What these changed is no file that is followed, and no file has the name."""
    (tmp_path / "node_modules").mkdir()
    assert not unfounded(claim, [ran(command)], tmp_path)
    assert unfounded(claim, [ran("git status")], tmp_path)


@pytest.mark.parametrize(
    "prompt",
    [
        "what changed in a.py?",
        "List the new files",
        "Please explain the last commit",
        "hi, can you tell me what was fixed?",
        "I'd like to know what the last commit did",
        "Write a commit message for what is staged",
        "ok, draft the release notes since v1.2",
        "the build is red, whose change is it?",
    ],
)
def test_who_asks_gets_an_answer(prompt: str) -> None:
    assert asks(prompt)


@pytest.mark.parametrize(
    "prompt",
    ["add a test", "Can you fix the failing test?", "please, could you rename a to b?", "write notes.md", ""],
)
def test_who_wants_something_done_does_not_ask(prompt: str) -> None:
    assert not asks(prompt)


async def test_in_a_turn(tmp_path: Path) -> None:
    answers = [
        step(call("write", path="a.py", content="x = (\n")), Step(text="Created a.py."),
        Step(text="Updated the README."),
    ]  # fmt: skip
    run = await start(tmp_path, answers)
    await run.session.submit("make a.py")
    assert [one["kind"] for one in run.session.receipt.remarks] == ["broken", "undo"]
    await run.session.submit("update the readme")
    assert [one["kind"] for one in run.session.receipt.remarks] == ["broken", "undo", "unfounded"]
    told = [one.text for one in run.of(Noticed) if one.data and "remark" in one.data]
    assert "a.py does not parse any more" in told[0] and "Updated the README" in told[2]
    # For people only: the model hears nothing of it.
    assert not any("any more" in one.text for one in run.session.messages)
    await run.session.aclose()


async def test_a_command_that_failed_is_told_as_done(tmp_path: Path) -> None:
    (tmp_path / "ws/tests").mkdir(parents=True)
    answers = [step(call("shell", command="rm tests/")), Step(text="Deleted `tests/`.")]
    run = await start(tmp_path, answers)
    await run.session.submit("delete tests")
    assert [one["kind"] for one in run.session.receipt.remarks] == ["unfounded"]
    await run.session.aclose()


def commit_all(folder: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "a")):
        subprocess.run(["git", *words], cwd=folder, check=True)


async def test_a_command_that_breaks_a_committed_file(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "a.py").write_text("x = 1\n")
    commit_all(workspace)
    answers = [step(call("shell", command="echo 'x = (' > a.py")), Step(text="ok")]
    run = await start(tmp_path, answers)
    await run.session.submit("break it")
    assert [one["kind"] for one in run.session.receipt.remarks] == ["broken", "undo"]
    await run.session.aclose()


FAILS = "echo 'FAILED (failures=1)'; exit 1"


@pytest.mark.parametrize(
    ("calls", "prompt", "kinds"),
    [
        ([call("shell", command="sh test.sh")], "fix the failing test", ["tests"]),
        ([call("shell", command="sh test.sh"), call("shell", command="ls")], "fix it", ["tests"]),
        ([call("shell", command="sh test.sh"), call("write", path="b.txt", content="b")], "fix it", []),
        ([call("shell", command="sh test.sh")], "which tests fail?", []),
        ([call("shell", command="sh test.sh"), call("shell", command="sh other_test.sh")], "fix it", []),
    ],
)
async def test_a_last_test_run_that_failed(
    tmp_path: Path, calls: list[Any], prompt: str, kinds: list[str]
) -> None:
    run = await start(tmp_path, [*(step(one) for one in calls), Step(text="All tests pass now.")])
    (run.workspace / "test.sh").write_text(FAILS)
    (run.workspace / "other_test.sh").write_text("true")
    end = await run.session.submit(prompt)
    receipt = run.session.receipt
    assert end.outcome is TurnOutcome.SUCCESS
    assert [one["kind"] for one in receipt.remarks] == kinds
    assert receipt.last_test_run is not None
    if kinds:
        assert receipt.last_test_run == {"command": "sh test.sh", "outcome": "failed", "exit_code": 1}
        assert receipt.remarks[0]["text"] == "The last test run failed: sh test.sh (exit code 1)."
    await run.session.aclose()


async def test_checks_say_more_than_the_last_test_run(tmp_path: Path) -> None:
    answers = [step(call("shell", command="sh test.sh")), Step(text="Done.")]
    run = await start(tmp_path, answers, checks=("true",))
    (run.workspace / "test.sh").write_text(FAILS)
    await run.session.submit("fix it")
    assert run.session.receipt.remarks == []
    await run.session.aclose()


async def test_a_check_that_found_no_tests_is_said(tmp_path: Path) -> None:
    run = await start(tmp_path, [Step(text="Done.")], checks=("sh test.sh", "true"))
    (run.workspace / "test.sh").write_text("echo Ran 0 tests in 0.000s; echo OK")
    end = await run.session.submit("fix it")
    assert end.outcome is TurnOutcome.SUCCESS
    assert run.session.receipt.remarks == [
        {"kind": "tests", "text": "The check `sh test.sh` passed, but it found no tests: none was run."}
    ]
    await run.session.aclose()

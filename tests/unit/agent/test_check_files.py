"""Which files belong to a check, and that the work cannot pass it by changing them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agents import DONE, ReplayClient, call, start, step

from k3agent.agent.check_files import COMMAND, files_of_checks
from k3agent.agent.options import SessionOptions
from k3agent.config.settings import Settings
from k3agent.errors import ConfigError
from k3agent.events import TurnOutcome


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("./check.sh", ["check.sh"]),
        ("sh check.sh --all", ["check.sh"]),
        ("CI=1 python -B test_app.py && ./app.py", ["test_app.py"]),
        ("python -m pytest -q", []),
        ("pytest tests/test_b.py::test_one", ["tests/test_b.py"]),
        ("cd . && bash check.sh", ["check.sh"]),
        # What is looked at is the work, not the check.
        ("grep -q x app.py", []),
        ("python app.py | grep ok", []),
        ("test -f test_app.py", []),
        ("sh latest.sh", []),
        ("'unbalanced check.sh", []),
    ],
)
def test_scripts_that_call_themselves_tests(tmp_path: Path, command: str, names: list[str]) -> None:
    (tmp_path / "tests").mkdir()
    for name in ("check.sh", "app.py", "test_app.py", "latest.sh", "tests/test_b.py"):
        (tmp_path / name).write_text("x")
    assert files_of_checks([command], [], tmp_path) == {tmp_path / name for name in names}


@pytest.mark.parametrize("pattern", ["/etc/*", "", "x" * 300 + "/a", "a**/b"])
def test_a_pattern_that_is_none_is_told(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"checks\.files: .* is no pattern of files"):
        files_of_checks([], [pattern], tmp_path)


def test_patterns_of_the_settings_and_what_lies_outside(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    (workspace / "tests" / "deep").mkdir(parents=True)
    (workspace / "tests" / "deep" / "a.py").write_text("x")
    (tmp_path / "check.sh").write_text("x")
    (workspace / "test_link.sh").symlink_to(tmp_path / "check.sh")
    found = files_of_checks(["sh ../check.sh", "sh test_link.sh"], ["tests/**/*"], workspace)
    assert found == {workspace / "tests" / "deep" / "a.py"}


def make_check(root: Path) -> Path:
    (root / "ws").mkdir()
    path = root / "ws" / "check.sh"
    path.write_text("grep -q good result\n")
    return path


async def test_the_model_may_not_edit_a_check(tmp_path: Path) -> None:
    path = make_check(tmp_path)
    answers = [
        step(call("read", path="check.sh")),
        step(call("write", path="check.sh", content="true\n")),
        step(call("write", path="result", content="good\n")),
        DONE,
    ]
    run = await start(tmp_path, answers, checks=("sh check.sh",))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    assert path.read_text() == "grep -q good result\n"
    (denial,) = run.session.receipt.denials
    assert "is part of a check" in denial["reason"]
    await run.session.aclose()


async def test_a_check_that_a_command_changed_does_not_count(tmp_path: Path) -> None:
    path = make_check(tmp_path)
    (path.parent / "sneak.py").write_text("open('check.sh', 'w').write('true')\n")
    answers = [step(call("shell", command="python3 sneak.py")), DONE, DONE]
    run = await start(tmp_path, answers, checks=("sh check.sh",), check_retries=1, sandbox="off")
    end = await run.session.submit("go")
    assert path.read_text() == "true"
    assert end.outcome is TurnOutcome.CHECKS_FAILED and COMMAND in end.detail
    told = [message.text for message in run.session.messages if "proves nothing" in message.text]
    assert len(told) == 1 and "check.sh: part of a check" in told[0]
    assert run.session.receipt.checks == [
        {"command": COMMAND, "exit_code": 1, "passed": False},
        {"command": "sh check.sh", "exit_code": 0, "passed": True},
    ]
    await run.session.aclose()


async def test_the_setting_lifts_it(tmp_path: Path) -> None:
    path = make_check(tmp_path)
    answers = [step(call("shell", command="cat check.sh")), step(call("read", path="check.sh"))]
    answers += [step(call("write", path="check.sh", content="true\n")), DONE]
    run = await start(tmp_path, answers, checks=("sh check.sh",), check_patterns=None)
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert path.read_text() == "true\n"
    await run.session.aclose()


@pytest.mark.parametrize(
    ("is_mended", "outcome"), [(False, "checks_failed"), (True, "error_during_execution")]
)
async def test_circles_after_a_failing_check_do_not_hide_it(
    tmp_path: Path, is_mended: bool, outcome: str
) -> None:
    """The model said done, the check said no, and then nothing moved: the check is what counts."""
    mend = [step(call("write", path="made", content="x"))] if is_mended else []
    circle = [step(call("glob", pattern="*.zip"))] * 10
    run = await start(tmp_path, [DONE, *mend, *circle], checks=("test -f made",))
    end = await run.session.submit("go")
    assert end.outcome.value == outcome
    assert ("failing checks: `test -f made`" in end.detail) is not is_mended
    assert "same call with the same result" in end.detail
    assert [check["passed"] for check in run.session.receipt.checks] == [is_mended]
    await run.session.aclose()


def test_checks_of_agents_md_count_only_where_the_user_says_so(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text(
        "# Work\n- `rm x`\n\n## Checks\n\n- `make test`\n- see `make` there\n* `make lint`\n\n# More\n- `a`\n"
    )
    for value, commands in (("off", ("true",)), ("on", ("true", "make test", "make lint"))):
        settings = Settings(checks_agents=value, checks_commands=("true",))
        made = SessionOptions.from_settings(
            settings, cwd=tmp_path, client=ReplayClient(), home=tmp_path / "home", environ={},
            default_mode="auto", extra_dirs=(),
        )  # fmt: skip
        assert made.checks == commands

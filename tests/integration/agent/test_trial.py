"""`try` in a session: what is known of it, and `kill -9` while changes of a file are tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.agents import COMPACT, ReplayClient, call, options, start, step
from support.trial_child import answers

from k3agent.agent.extensions import load_extensions
from k3agent.agent.session import Session
from k3agent.events import CallEnded, TurnOutcome
from k3agent.tools.support import processes

CHILD = Path(__file__).resolve().parents[2] / "support" / "trial_child.py"
ADD = "def add(a, b):\n    return a - b\n"


def workspace(root: Path) -> Path:
    (root / "ws").mkdir()
    (root / "ws" / "a.py").write_text(ADD)
    (root / "ws" / "test_a.py").write_text("import a\n\nassert a.add(1, 2) == 3\n")
    return root / "ws"


async def test_a_change_that_was_found_is_a_change_of_the_turn(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    command = f"env -u PYTHONSAFEPATH {sys.executable} test_a.py"
    search = call("try", path="a.py", line=2, command=command)
    run = await start(tmp_path, [step(search), step(text="Fixed add in a.py.")], info=COMPACT)
    assert (await run.session.submit("Mend add.")).outcome is TurnOutcome.SUCCESS
    assert "a + b" in (ws / "a.py").read_text()
    (ended,) = run.of(CallEnded)
    assert (ended.files, ended.exit_code, ended.result.is_error) == (("a.py",), 0, False)
    receipt = run.session.receipt
    last = {"command": command, "exit_code": 0}
    assert (receipt.last_command, receipt.last_test_run) == (last, {**last, "outcome": "passed"})
    assert not receipt.remarks
    await run.session.aclose()


async def test_a_search_that_found_nothing_is_not_made_again(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    search = call("try", path="a.py", line=2, command="exit 1")
    run = await start(tmp_path, [step(search), step(search), step(text="Fixed add in a.py.")], info=COMPACT)
    await run.session.submit("Mend add.")
    found, refused = run.results
    assert "the command fails after each. a.py is as it was." in found and "failed before" in refused
    assert (ws / "a.py").read_text() == ADD and run.session.receipt.files_changed == []
    assert [remark["kind"] for remark in run.session.receipt.remarks] == ["unfounded"]
    await run.session.aclose()


async def test_large_models_are_not_given_it(tmp_path: Path) -> None:
    run = await start(
        tmp_path, [step(call("try", path="a.py", line=1, command="exit 1")), step(text="Done.")]
    )
    await run.session.submit("go")
    assert "try" not in [spec.name for spec in run.client.requests[0].tools]
    assert run.results[0].startswith("unknown tool try.")
    await run.session.aclose()


@pytest.mark.parametrize(("mode", "deny"), [("plan", ()), ("auto", ("edit",)), ("auto", ("shell(exit:*)",))])
async def test_it_needs_what_an_edit_and_a_command_need(
    tmp_path: Path, mode: str, deny: tuple[str, ...]
) -> None:
    workspace(tmp_path)
    search = call("try", path="a.py", line=2, command="exit 1")
    answers = [step(search), step(text="No.")]
    run = await start(tmp_path, answers, info=COMPACT, permission_mode=mode, deny=deny)
    await run.session.submit("Mend add.")
    assert run.results[0].startswith("permission denied: ")
    await run.session.aclose()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The workspace of a session that was killed with a change in place."""
    ws = workspace(tmp_path)
    kill_at(tmp_path, "a.py")
    assert (ws / "a.py").read_text() != ADD
    return ws


def kill_at(root: Path, name: str) -> None:
    """Kill a session while a change is in a file."""
    ws = root / "ws"
    child = subprocess.Popen([sys.executable, str(CHILD), str(root), "s-1", name])
    end = time.monotonic() + 60
    while not (ws / "begun").exists() or not (ws / "begun").read_text():
        assert time.monotonic() < end and child.poll() is None
        time.sleep(0.02)
    child.kill()
    child.wait()


async def resumed(root: Path) -> Session:
    session = await Session.resume("s-1", options(root, ReplayClient(answers(), info=COMPACT), sandbox="off"))
    end = await session.continue_turn()
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    await session.aclose()
    return session


def result_of(session: Session) -> str:
    (result,) = [result for message in session.messages for result in message.results]
    assert result.is_error
    return result.text


async def test_a_resume_puts_the_file_back(tmp_path: Path, killed: Path) -> None:
    session = await resumed(tmp_path)
    assert (killed / "a.py").read_text() == ADD
    assert result_of(session) == ("(k3agent was stopped during this call. a.py is as it was before it.)")
    assert not list((tmp_path / "home" / "outputs" / "s-1").glob("*.original"))
    command = processes.process_info(int((killed / "begun").read_text()))
    assert command is None or command.state in "ZX"


async def test_undo_does_so_too(tmp_path: Path, killed: Path) -> None:
    environ = {**os.environ, "K3AGENT_HOME": str(tmp_path / "home")}
    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this loop
        [sys.executable, "-m", "k3agent.cli", "undo", "--session", "s-1", "--yes"],
        cwd=killed, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (killed / "a.py").read_text() == ADD
    assert "a.py is as it was before it" in result_of(await resumed(tmp_path))


async def test_what_somebody_else_wrote_since_then_stays(tmp_path: Path, killed: Path) -> None:
    (killed / "a.py").write_text("mine\n")
    session = await resumed(tmp_path)
    assert (killed / "a.py").read_text() == "mine\n"
    assert result_of(session) == (
        "(k3agent was stopped during this call. a.py may hold one of the changes that were tried: read it.)"
    )


async def test_a_new_prompt_puts_it_back_too(tmp_path: Path, killed: Path) -> None:
    client = ReplayClient(answers(), info=COMPACT)
    session = await Session.resume("s-1", options(tmp_path, client, sandbox="off"))
    await session.submit("Do something else.")
    assert (killed / "a.py").read_text() == ADD and "is as it was before it" in result_of(session)
    await session.aclose()


# --- what the named function calls in other files ----------------------------------------------------------

TWICE = "from b import add\n\n\ndef twice(a):\n    return add(a, a)\n"


def two_files(root: Path, named: str = TWICE) -> Path:
    ws = workspace(root)
    (ws / "a.py").write_text(named)
    (ws / "b.py").write_text(ADD)
    (ws / "test_a.py").write_text("import a\n\nassert a.twice(2) == 4 and a.twice(3) == 6\n")
    return ws


def search_of_twice() -> object:
    return call("try", path="a.py", line=5, command=f"env -u PYTHONSAFEPATH {sys.executable} test_a.py")


async def test_a_change_in_another_file_is_a_change_of_the_turn(tmp_path: Path) -> None:
    ws = two_files(tmp_path)
    run = await start(tmp_path, [step(search_of_twice()), step(text="Fixed add in b.py.")], info=COMPACT)
    assert (await run.session.submit("Mend twice.")).outcome is TurnOutcome.SUCCESS
    assert (ws / "b.py").read_text() == ADD.replace("-", "+") and (ws / "a.py").read_text() == TWICE
    (ended,) = run.of(CallEnded)
    assert ended.files == ("b.py",) and "After this one in b.py the command succeeds:" in ended.result.text
    assert not run.session.receipt.remarks
    await run.session.aclose()


@pytest.mark.parametrize("why", ["edit", "try", "mode"])
async def test_a_file_that_may_not_be_changed_as_freely_is_left_out(tmp_path: Path, why: str) -> None:
    ws = two_files(tmp_path)
    settings: dict[str, object] = {"deny": ("edit(b.py)",)}
    if why == "mode":
        settings = {"permission_mode": "default", "allow": ("edit(a.py)", "shell")}
    elif why == "try":
        settings = {"deny": ("try(**/b.py)",)}
    run = await start(tmp_path, [step(search_of_twice()), step(text="No.")], info=COMPACT, **settings)
    await run.session.submit("Mend twice.")
    assert "the command fails after each. a.py is as it was." in run.results[0], run.results
    assert (ws / "b.py").read_text() == ADD and (ws / "a.py").read_text() == TWICE
    await run.session.aclose()


async def test_a_hook_that_is_told_of_one_file_is_not_passed_by_with_another(tmp_path: Path) -> None:
    ws = two_files(tmp_path)
    folder = tmp_path / "user" / ".config" / "k3agent"
    folder.mkdir(parents=True)
    hook = {"matcher": "Edit", "hooks": [{"type": "command", "command": "true"}]}
    (folder / "hooks.json").write_text(json.dumps({"hooks": {"PreToolUse": [hook]}}))
    chosen = options(tmp_path, None)
    found = load_extensions(chosen.cwd, chosen.environ, chosen.home)
    answers = [step(search_of_twice()), step(text="No.")]
    run = await start(tmp_path, answers, info=COMPACT, extensions=found)
    await run.session.submit("Mend twice.")
    assert "the command fails after each" in run.results[0] and (ws / "b.py").read_text() == ADD
    await run.session.aclose()


async def test_a_resume_puts_the_other_file_back(tmp_path: Path) -> None:
    ws = two_files(tmp_path, TWICE.replace("\n\n\ndef", "\ndef"))
    (ws / "b.py").chmod(0o640)
    before = (ws / "a.py").read_bytes()
    kill_at(tmp_path, "b.py")
    assert (ws / "b.py").read_text() != ADD
    session = await resumed(tmp_path)
    assert (ws / "b.py").read_text() == ADD and (ws / "b.py").stat().st_mode & 0o777 == 0o640
    assert (ws / "a.py").read_bytes() == before
    assert result_of(session) == "(k3agent was stopped during this call. b.py is as it was before it.)"
    assert not list((tmp_path / "home" / "outputs" / "s-1").glob("*.original"))

"""A turn that ended badly says how to take it back; files that it put back are not told as changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.agents import Run, call, start, step

from k3agent.agent.undo import Undo
from k3agent.events import Noticed
from k3agent.providers.scripted import Step

GOOD = step(call("write", path="a.py", content="x = 1\n"))
BAD = step(call("write", path="a.py", content="x = (\n"))
UNDEFINED = step(call("write", path="a.py", content="print(y)\n"))
READ = step(call("read", path="a.py"))
LOOKS = step(call("shell", command="ls"))


def commit_all(folder: Path) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "a")):
        subprocess.run(["git", *words], cwd=folder, check=True)


def way_back(run: Run) -> str:
    texts = [one.text for one in run.of(Noticed) if one.data and one.data.get("remark") == "undo"]
    assert [one["text"] for one in run.session.receipt.remarks if one["kind"] == "undo"] == texts
    return texts[-1] if texts else ""


@pytest.mark.parametrize("answers", [[BAD], [UNDEFINED], [LOOKS, GOOD, BAD]])
async def test_the_step_takes_back_all_of_the_turn(tmp_path: Path, answers: list[Step]) -> None:
    run = await start(tmp_path, [GOOD, Step(text="ok"), READ, *answers, Step(text="ok")])
    await run.session.submit("make it")
    assert not way_back(run)
    (run.workspace / "a.py").write_text("x = 2\n")
    await run.session.submit("change it")
    text = way_back(run)
    assert f"k3agent undo --session {run.session.id} --to " in text
    undo = run.session.undo
    assert isinstance(undo, Undo)
    undo.restore(undo.preview(undo.find(int(text.split()[-1]))))
    assert (run.workspace / "a.py").read_text() == "x = 2\n"
    await run.session.aclose()


async def test_failed_tests_and_checks(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    run = await start(tmp_path / "one", [GOOD, step(call("shell", command="sh test.sh")), Step(text="ok")])
    (run.workspace / "test.sh").write_text("echo 'FAILED (failures=1)'; exit 1")
    await run.session.submit("fix it")
    assert way_back(run)
    await run.session.aclose()
    run = await start(
        tmp_path / "two", [GOOD, Step(text="ok"), Step(text="ok")], checks=("false",), check_retries=0
    )
    await run.session.submit("fix it")
    assert way_back(run)
    await run.session.aclose()


async def test_where_nothing_was_changed_there_is_nothing_to_take_back(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="sh test.sh")), Step(text="ok")])
    (run.workspace / "test.sh").write_text("echo 'FAILED (failures=1)'; exit 1")
    await run.session.submit("fix it")
    assert [one["kind"] for one in run.session.receipt.remarks] == ["tests"]
    await run.session.aclose()


@pytest.mark.parametrize("is_repository", [False, True])
@pytest.mark.parametrize(
    ("answers", "changed"),
    [
        ([BAD, GOOD], []),
        ([LOOKS, BAD, GOOD], []),
        ([BAD, LOOKS, GOOD], []),
        ([BAD, step(call("shell", command="echo 'x = 1' > a.py"))], []),
        ([BAD, LOOKS], ["a.py"]),
        # What the edits put back was changed by a command before them.
        (
            [
                step(call("shell", command="echo 'x = 2' > a.py")),
                READ,
                BAD,
                step(call("write", path="a.py", content="x = 2\n")),
            ],
            ["a.py"],
        ),
    ],
)
async def test_files_that_were_put_back(
    tmp_path: Path, answers: list[Step], changed: list[str], is_repository: bool
) -> None:
    run = await start(tmp_path, [READ, *answers, Step(text="ok")])
    (run.workspace / "a.py").write_text("x = 1\n")
    if is_repository:
        commit_all(run.workspace)
    await run.session.submit("change it")
    assert run.session.receipt.failed == 0
    assert run.session.receipt.files_changed == run.session.receipt.latest_files == changed
    await run.session.aclose()


async def test_what_an_earlier_turn_changed_stays(tmp_path: Path) -> None:
    run = await start(tmp_path, [GOOD, Step(text="ok"), BAD, GOOD, Step(text="ok")])
    await run.session.submit("make it")
    run.session.receipt.begin_prompt()
    await run.session.submit("change it")
    assert run.session.receipt.files_changed == ["a.py"] and run.session.receipt.latest_files == []
    await run.session.aclose()

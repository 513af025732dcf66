"""What commands changed: real folders, with git and without."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from support.agents import DONE, call, start, step
from support.runs import wait_for

from k3agent.agent import changes as changes_module
from k3agent.agent.changes import FileChanges


def git(cwd: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    subprocess.run(["git", *who, *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    (path / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "c.txt", "sub/d.txt", "dirty.txt"):
        (path / name).write_text(f"{name}\n")
    return path


@pytest.fixture(params=["git", "plain", "no commit", "ignored"])
def any_folder(folder: Path, request: pytest.FixtureRequest) -> Path:
    if request.param == "ignored":
        git(folder.parent, "init")
        (folder.parent / ".gitignore").write_text("ws/\n")
    elif request.param != "plain":
        git(folder, "init")
    if request.param == "git":
        git(folder, "add", "--all")
        git(folder, "commit", "-m", "first")
        (folder / "dirty.txt").write_text("changed before\n")
    return folder


def sh(cwd: Path, command: str) -> None:
    subprocess.run(["sh", "-ec", command], cwd=cwd, check=True, capture_output=True)


async def after(folder: Path, command: str) -> tuple[str, ...]:
    changes = FileChanges(folder, folder.parent / "home")
    await changes.begin()
    sh(folder, command)
    files, note = await changes.end()
    assert note == ""
    return files


async def test_moved_removed_created_and_rewritten_files_are_found(any_folder: Path) -> None:
    command = "mv a.txt z.txt; rm b.txt; sed -i s/c/C/ c.txt; echo n > 'sub/né \"w\".txt'; chmod +x sub/d.txt"
    found = await after(any_folder, command)
    assert found == ("a.txt", "b.txt", "c.txt", "sub/d.txt", 'sub/né "w".txt', "z.txt")


async def test_nothing_changed_is_nothing(any_folder: Path) -> None:
    assert await after(any_folder, "cat a.txt; mkdir -p sub/__pycache__; touch sub/__pycache__/d.pyc") == ()


async def test_a_file_that_was_dirty_before_counts_when_it_changes_again(any_folder: Path) -> None:
    assert await after(any_folder, "echo more >> dirty.txt") == ("dirty.txt",)


async def test_a_commit_is_no_change_of_files_and_hides_none(folder: Path) -> None:
    git(folder, "init")
    git(folder, "add", "--all")
    git(folder, "commit", "-m", "first")
    (folder / "dirty.txt").write_text("changed before\n")
    who = "git -c user.name=t -c user.email=t@localhost"
    found = await after(folder, f"echo 2 > a.txt; echo new > new.txt; git add -A; {who} commit -m x")
    assert found == ("a.txt", "new.txt")
    assert await after(folder, "git reset --soft HEAD~1") == ()
    assert await after(folder, "git checkout -f HEAD -- a.txt; git stash; git checkout -f HEAD~0") != ()


async def test_what_the_project_ignores_is_left_out_and_a_subfolder_is_enough(folder: Path) -> None:
    git(folder, "init")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", "--all")
    git(folder, "commit", "-m", "first")
    assert await after(folder / "sub", "echo 1 > x.log; echo 1 > d.txt; echo 1 > ../a.txt") == ("d.txt",)


async def test_a_touched_file_that_git_does_not_know_is_no_change(folder: Path) -> None:
    git(folder, "init")
    assert await after(folder, "touch a.txt; ln -s a.txt link") == ("link",)


async def test_names_that_are_no_text_are_shown(folder: Path) -> None:
    assert await after(folder, r"touch $(printf 'x\377')") == ("x\ufffd",)


async def test_configured_programs_of_the_repository_are_not_started(folder: Path) -> None:
    git(folder, "init")
    git(folder, "add", "--all")
    git(folder, "commit", "-m", "first")
    mark = folder.parent / "started"
    for key in ("core.fsmonitor", "diff.external", "core.pager"):
        git(folder, "config", key, f"touch {mark}; false")
    changes = FileChanges(folder, folder.parent / "home")
    await changes.begin()
    (folder / "a.txt").write_text("2\n")
    assert await changes.end() == (("a.txt",), "")
    assert not mark.exists()


async def test_too_many_files_without_git_are_said_to_be_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "MAX_FILES", 3)
    changes = FileChanges(folder, folder.parent / "home")
    await changes.begin()
    files, note = await changes.end()
    assert files == () and "no git repository" in note


@pytest.mark.parametrize(
    "damage", ["rm -rf .git/objects", "echo garbage > .git/HEAD", "rm .git/index; mkdir .git/index"]
)
async def test_a_damaged_repository_is_walked(folder: Path, damage: str) -> None:
    git(folder, "init")
    git(folder, "add", "--all")
    git(folder, "commit", "-m", "first")
    sh(folder, damage)
    assert await after(folder, "echo 1 > new.txt; rm a.txt") == ("a.txt", "new.txt")


async def test_a_folder_that_is_removed_is_said_to_be_gone(folder: Path) -> None:
    changes = FileChanges(folder, folder.parent / "home")
    await changes.begin()
    sh(folder.parent, "rm -r ws")
    assert await changes.end() == ((), f"{folder} is gone")


async def test_the_agents_own_data_is_no_change(folder: Path) -> None:
    changes = FileChanges(folder, folder / "data")
    await changes.begin()
    sh(folder, "mkdir data; touch data/k3agent.db")
    assert await changes.end() == ((), "")


async def test_a_turn_reports_what_its_commands_changed(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="mv w.txt v.txt")), DONE])
    (run.workspace / "w.txt").write_text("x")
    await run.session.submit("go")
    assert sorted(run.session.receipt.files_changed) == ["v.txt", "w.txt"]
    assert run.session.receipt.files_note == ""
    await run.session.aclose()


async def test_a_file_that_only_the_turn_itself_had_is_not_reported(tmp_path: Path) -> None:
    answers = [
        step(call("write", path="w.txt", content="x")),
        step(call("shell", command="mv w.txt v.txt")),
        DONE,
    ]
    run = await start(tmp_path, answers)
    await run.session.submit("go")
    assert run.session.receipt.files_changed == ["v.txt"]
    await run.session.aclose()


async def test_a_turn_that_is_cut_short_reports_too(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="echo x > early.txt; sleep 60"))])
    task = asyncio.create_task(run.session.submit("go"))
    await asyncio.to_thread(wait_for, (run.workspace / "early.txt").exists)
    run.session.interrupt("enough")
    await task
    assert run.session.receipt.files_changed == ["early.txt"]
    await run.session.aclose()

"""Worktrees of subagents: they start from the dirty tree, come back whole or not at all, and lose nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.agents import call, start, step
from support.fleet import FleetClient, fan_out, item

from k3agent.agent.options import TaskLimits
from k3agent.agent.tasks import TaskGraph
from k3agent.agent.worktrees import Worktree
from k3agent.errors import ToolError
from k3agent.events import TurnOutcome


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.py").write_text("x = 1\n")
    (folder / "old.py").write_text("old\n")
    (folder / "sub" / "s.py").write_text("s\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    # Dirty: changed, staged, new, ignored.
    (folder / "a.py").write_text("x = 2\n")
    (folder / "staged.py").write_text("staged\n")
    git(folder, "add", "staged.py")
    (folder / "new.py").write_text("new\n")
    (folder / "run.log").write_text("log\n")
    return folder


def tree_of(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def copy_of(ws: Path, number: int = 1, root: Path | None = None) -> tuple[Worktree, str]:
    copy = Worktree.of(root or ws, ws.parent / "home", "s", number)
    base = copy.snapshot()
    copy.check_out(base, is_new=True)
    return copy, base


def allowed(path: Path) -> str:
    return ""


def test_it_starts_from_the_files_as_they_are_and_touches_nothing(ws: Path) -> None:
    before = (git(ws, "status", "--porcelain"), git(ws, "branch", "-a"), git(ws, "stash", "list"))
    copy, _ = copy_of(ws)
    found = tree_of(copy.workspace)
    wanted = tree_of(ws)
    del wanted["run.log"]
    assert found == wanted and git(copy.place, "status", "--porcelain") == ""
    assert (git(ws, "status", "--porcelain"), git(ws, "branch", "-a"), git(ws, "stash", "list")) == before


def test_what_was_made_is_brought_back_and_the_copy_goes(ws: Path) -> None:
    copy, base = copy_of(ws)
    (copy.workspace / "a.py").write_text("x = 3\n")
    (copy.workspace / "old.py").unlink()
    (copy.workspace / "deep" / "er").mkdir(parents=True)
    (copy.workspace / "deep" / "er" / "b.bin").write_bytes(b"\0\xff\n")
    (copy.workspace / "sub" / "s.py").chmod(0o755)
    # Somebody works here meanwhile, on something else.
    (ws / "new.py").write_text("newer\n")
    index = git(ws, "diff", "--cached", "--name-only")
    assert copy.bring_back(base, allowed) == ("a.py", "deep/er/b.bin", "old.py", "sub/s.py")
    assert (ws / "a.py").read_text() == "x = 3\n" and not (ws / "old.py").exists()
    assert (ws / "deep" / "er" / "b.bin").read_bytes() == b"\0\xff\n"
    assert (ws / "sub" / "s.py").stat().st_mode & 0o111
    assert (ws / "new.py").read_text() == "newer\n" and (ws / "run.log").exists()
    assert git(ws, "diff", "--cached", "--name-only") == index
    assert not copy.place.exists() and len(git(ws, "worktree", "list").splitlines()) == 1
    assert git(ws, "show", f"{copy.ref}/end:a.py") == "x = 3\n"


def test_bringing_back_twice_is_as_good_as_once(ws: Path) -> None:
    copy, base = copy_of(ws)
    (copy.workspace / "a.py").write_text("x = 3\n")
    copy.bring_back(base, allowed)
    # Killed before it was noted: the same again.
    copy.check_out(base, is_new=False)
    assert copy.bring_back(base, allowed) == ("a.py",)
    assert (ws / "a.py").read_text() == "x = 3\n" and not copy.place.exists()


def _edit(ws: Path) -> None:
    (ws / "a.py").write_text("mine\n")


def _delete(ws: Path) -> None:
    (ws / "a.py").unlink()


def _ignored(ws: Path) -> None:
    (ws / "made.py").write_text("mine\n")
    (ws / ".gitignore").write_text("*.log\nmade.py\n")


def _file_for_folder(ws: Path) -> None:
    (ws / "deep").write_text("mine\n")


@pytest.mark.parametrize("meanwhile", [_edit, _delete, _ignored, _file_for_folder])
def test_a_target_that_changed_meanwhile_stops_all_of_it(ws: Path, meanwhile: Any) -> None:
    copy, base = copy_of(ws)
    for name in ("a.py", "made.py", "deep/d.py", "old.py"):
        (copy.workspace / name).parent.mkdir(exist_ok=True)
        (copy.workspace / name).write_text("made\n")
    meanwhile(ws)
    before = tree_of(ws)
    with pytest.raises(ToolError, match="changed here since the task began"):
        copy.bring_back(base, allowed)
    assert tree_of(ws) == before
    assert (copy.workspace / "a.py").read_text() == "made\n"


def test_the_same_change_here_is_no_conflict(ws: Path) -> None:
    copy, base = copy_of(ws)
    (copy.workspace / "a.py").write_text("x = 3\n")
    (ws / "a.py").write_text("x = 3\n")
    assert copy.bring_back(base, allowed) == ("a.py",)


def test_what_lies_outside_of_the_workspace_or_may_not_be_written_stops_it(ws: Path) -> None:
    copy, base = copy_of(ws, root=ws / "sub")
    assert copy.workspace == copy.place / "sub"
    (copy.place / "a.py").write_text("out\n")
    with pytest.raises(ToolError, match=r"a\.py lie outside of the workspace"):
        copy.bring_back(base, allowed)
    git(copy.place, "checkout", "-q", base, "--", "a.py")
    (copy.workspace / "s.py").write_text("S\n")
    with pytest.raises(ToolError, match="no writing"):
        copy.bring_back(base, lambda path: "no writing" if path.name == "s.py" else "")
    assert (ws / "sub" / "s.py").read_text() == "s\n"
    assert copy.bring_back(base, allowed) == ("s.py",)


def test_a_dirty_copy_is_never_removed(ws: Path) -> None:
    copy, base = copy_of(ws)
    (copy.workspace / "only-here.py").write_text("work\n")
    assert not copy.drop_unused(base)
    assert (copy.workspace / "only-here.py").read_text() == "work\n"
    other, base = copy_of(ws, 2)
    assert other.drop_unused(base) and not other.place.exists()


def test_commits_and_branches_of_the_subagent_are_kept(ws: Path) -> None:
    copy, base = copy_of(ws)
    git(copy.place, "checkout", "-qb", "its-own")
    (copy.workspace / "a.py").write_text("x = 3\n")
    git(copy.place, "commit", "-qam", "its commit")
    (copy.workspace / "a.py").write_text("x = 4\n")
    copy.bring_back(base, allowed)
    assert (ws / "a.py").read_text() == "x = 4\n"
    assert git(ws, "show", "its-own:a.py") == "x = 3\n"
    assert git(ws, "show", f"{copy.ref}/end:a.py") == "x = 4\n"


def test_a_half_made_copy_is_made_again(ws: Path) -> None:
    copy = Worktree.of(ws, ws.parent / "home", "s", 1)
    base = copy.snapshot()
    copy.place.mkdir(parents=True)
    (copy.place / "half").write_text("")
    copy.check_out(base, is_new=True)
    assert (copy.place / "a.py").read_text() == "x = 2\n"
    (copy.place / ".git").unlink()
    with pytest.raises(ToolError, match="damaged"):
        copy.check_out(base, is_new=False)


def test_hooks_do_not_run(ws: Path) -> None:
    for name in ("post-checkout", "pre-commit", "reference-transaction"):
        hook = ws / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {ws.parent}/ran\n")
        hook.chmod(0o755)
    copy, base = copy_of(ws)
    (copy.workspace / "a.py").write_text("x = 3\n")
    copy.bring_back(base, allowed)
    assert not (ws.parent / "ran").exists()


def test_filters_and_monitors_of_the_repository_do_not_run(ws: Path) -> None:
    program = ws.parent / "program"
    program.write_text(f"#!/bin/sh\ntouch {ws.parent}/ran\ncat\n")
    program.chmod(0o755)
    (ws / ".gitattributes").write_text("*.py filter=bad\n")
    for key in ("filter.bad.clean", "filter.bad.smudge", "core.fsmonitor"):
        git(ws, "config", key, str(program))
    git(ws, "config", "filter.bad.required", "true")
    copy, base = copy_of(ws)
    (copy.place / "a.py").write_text("x = 3\n")
    copy.bring_back(base, allowed)
    assert (ws / "a.py").read_text() == "x = 3\n"
    assert not (ws.parent / "ran").exists()


def test_a_filtered_file_is_in_the_copy_as_it_is_here(tmp_path: Path, ws: Path) -> None:
    """As git-lfs has it: the repository holds something else than the folder."""
    git(ws, "config", "filter.turn.clean", "tr a-z n-za-m")
    git(ws, "config", "filter.turn.smudge", "tr a-z n-za-m")
    (ws / ".gitattributes").write_text("*.bin filter=turn\n")
    (ws / "x.bin").write_text("hello\n")
    past = time.time() - 100
    os.utime(ws / "x.bin", (past, past))
    git(ws, "add", "-A")
    git(ws, "commit", "-qm", "x")
    assert git(ws, "show", "HEAD:x.bin") == "uryyb\n"
    copy = Worktree.of(ws, tmp_path / "home", "s", 1)
    base = copy.snapshot()
    copy.check_out(base, is_new=True)
    assert (copy.workspace / "x.bin").read_text() == "hello\n"
    # The subagent's own git filters.
    (copy.workspace / "a.py").write_text("x = 5\n")
    git(copy.workspace, "commit", "-qam", "mine")
    assert copy.bring_back(base, lambda path: "") == ("a.py",)
    assert (ws / "x.bin").read_text() == "hello\n" and (ws / "a.py").read_text() == "x = 5\n"


def test_without_a_repository_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="needs a git repository"):
        Worktree.of(tmp_path, tmp_path / "home", "s", 1)


# --- with subagents ---------------------------------------------------------------------------------------


async def test_sixteen_side_by_side_all_come_back(tmp_path: Path, ws: Path) -> None:
    names = [f"job{n}" for n in range(16)]
    stories: dict[str, Any] = {"go": fan_out(*(item(name, mode="write", worktree=True) for name in names))}
    for name in names:
        stories[name] = [step(call("write", path=f"{name}.py", content=f"{name}\n")), step(text="There.")]
    client = FleetClient(stories)
    run = await start(
        tmp_path, client=client, sandbox="off", tasks=TaskLimits(max_parallel=16, fan_out_usd=99)
    )
    await run.session.submit("go")
    assert run.results[0].count(": done") == 16, run.results[0]
    assert {name for name in tree_of(ws) if name.startswith("job")} == {f"{name}.py" for name in names}
    assert client.most_busy > 1
    assert not list((tmp_path / "home" / "worktrees").rglob("*.py"))
    assert set(run.session.receipt.files_changed) == {f"{name}.py" for name in names}
    await run.session.aclose()


async def test_a_conflict_is_told_and_the_work_stays(tmp_path: Path, ws: Path) -> None:
    edit = [step(call("read", path="a.py")), step(call("edit", path="a.py", old="2", new="3"))]
    stories = {"go": fan_out(item("edit", mode="write", worktree=True)), "edit": [*edit, step(text="3 now.")]}
    client = FleetClient(stories)

    async def meanwhile(name: str, position: int) -> None:
        if (name, position) == ("edit", 2):
            (ws / "a.py").write_text("mine\n")

    client.hook = meanwhile
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    node = TaskGraph(run.session._store, run.session.id).nodes()[0]
    assert node.state.value == "failed" and "not brought back: a.py changed here" in run.results[0]
    assert "3 now." in run.results[0]
    assert (ws / "a.py").read_text() == "mine\n"
    assert (Path(node.place) / "a.py").read_text() == "x = 3\n"
    await run.session.aclose()


async def test_git_in_the_main_checkout_is_refused(tmp_path: Path, ws: Path) -> None:
    head = git(ws, "symbolic-ref", "HEAD")
    # What no rule sees: the sandbox stops it, where there is one.
    script = f'import pathlib; pathlib.Path("{ws}/.git/HEAD").write_text("ref: refs/heads/stolen")'
    tries = [
        step(call("shell", command=f"cd {ws} && git checkout -b stolen")),
        step(call("shell", command=f"git -C {ws} checkout -b stolen")),
        step(call("write", path=str(ws / "a.py"), content="stolen\n")),
        step(call("shell", command=f"git commit -qm x; python3 -c '{script}'")),
        step(text="Refused."),
    ]
    client = FleetClient({"go": fan_out(item("try", mode="write", worktree=True)), "try": tries})
    run = await start(tmp_path, client=client, allow=("shell(git:*)", "shell(python3:*)", "write"))
    await run.session.submit("go")
    node = TaskGraph(run.session._store, run.session.id).nodes()[0]
    rows = run.session._store.calls(node.child)
    assert [row.state.value for row in rows] == ["denied"] * 3 + ["done"], [row.result for row in rows]
    if run.session.sandbox.name == "bubblewrap":
        assert git(ws, "symbolic-ref", "HEAD") == head
    assert "stolen" not in git(ws, "branch", "-a")
    assert (ws / "a.py").read_text() == "x = 2\n"
    await run.session.aclose()


async def test_a_rule_holds_for_what_comes_back_too(tmp_path: Path, ws: Path) -> None:
    shell = "python3 -c \"open('key.txt','w').write('y')\""
    tries = [step(call("shell", command=shell)), step(text="Done.")]
    client = FleetClient({"go": fan_out(item("try", mode="write", worktree=True)), "try": tries})
    run = await start(tmp_path, client=client, allow=("shell",), deny=("write(key.txt)",))
    await run.session.submit("go")
    assert not (ws / "key.txt").exists() and "not brought back" in run.results[0], run.results[0]
    await run.session.aclose()
    await asyncio.sleep(0)


async def test_an_interrupt_lets_what_is_being_brought_back_come_to_its_end(
    tmp_path: Path, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = [step(call("write", path="b.py", content="y\n")), step(text="b.py is there.")]
    client = FleetClient({"go": fan_out(item("make", mode="write", worktree=True)), "make": write})
    run = await start(tmp_path, client=client)
    bring_back, loop = Worktree.bring_back, asyncio.get_running_loop()

    def slowly(self: Worktree, *arguments: Any) -> tuple[str, ...]:
        loop.call_soon_threadsafe(run.session.interrupt, "enough")
        time.sleep(0.3)
        return bring_back(self, *arguments)

    monkeypatch.setattr(Worktree, "bring_back", slowly)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.INTERRUPTED
    node = TaskGraph(run.session._store, run.session.id).nodes()[0]
    assert node.state.value == "done" and node.files == ("b.py",)
    assert (ws / "b.py").read_text() == "y\n" and ": done" in run.results[0], run.results[0]
    await run.session.aclose()

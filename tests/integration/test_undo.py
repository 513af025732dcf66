"""Undo in real repositories: each command that destroys work, run by a session, then `k3agent undo`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.agents import DONE, Run, call, start, step
from support.trees import picture

from k3agent.commands.undo import undo

WHO = ("-c", "user.name=t", "-c", "user.email=t@localhost")


def git(cwd: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *WHO, *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


def without_git(root: Path) -> dict[str, tuple[object, ...]]:
    return {path: what for path, what in picture(root).items() if path.split("/")[0] != ".git"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with work of all kinds that is not committed."""
    ws = tmp_path / "ws"
    (ws / "src").mkdir(parents=True)
    git(tmp_path, "init", "-q", "-b", "main", "ws")
    (ws / ".gitignore").write_text("node_modules/\n.env\nbuild/\n")
    for name in ("a.py", "b.py", "src/c.py", "gone.py"):
        (ws / name).write_text(f"{name}\n")
    git(ws, "add", "-A")
    git(ws, "commit", "-qm", "first")
    git(ws, "branch", "side")
    (ws / "a.py").write_bytes(b"days of work\r\n\xff\x00")
    (ws / "b.py").write_text("staged\n")
    git(ws, "add", "b.py")
    (ws / "gone.py").unlink()
    (ws / "new.txt").write_text("untracked\n")
    (ws / "new.txt").chmod(0o600)
    (ws / "notes").mkdir()
    (ws / "notes" / "deep.txt").write_text("untracked, too\n")
    (ws / "empty").mkdir()
    (ws / "link").symlink_to("a.py")
    (ws / ".env").write_text("KEY=1\n")
    (ws / "node_modules" / "x").mkdir(parents=True)
    (ws / "node_modules" / "x" / "index.js").write_text("module\n")
    (ws / "build").mkdir()
    (ws / "build" / "out.bin").write_bytes(os.urandom(3000))
    return ws


async def run_command(ws: Path, *commands: str, **more: object) -> Run:
    answers = [step(*(call("shell", command=command) for command in commands)), DONE]
    run = await start(ws.parent, answers, allow=("shell",), sandbox="off", **more)
    await run.session.submit("do it")
    return run


DESTROYERS = (
    "git reset --hard",
    "git checkout -- .",
    "git checkout -f",
    "git restore .",
    "git restore --source=HEAD --staged --worktree .",
    "git clean -fd",
    "git clean -xfd",
    "git stash -u",
    "git stash -u && git stash drop",
    "git branch -D side",
    "rm -rf src notes node_modules build",
    "rm -rf *",
    "rm -f .env new.txt",
    "find . -name '*.txt' -delete",
    "find build -type f -delete",
    "mv a.py b.py",
    "cp gone.py a.py || echo lost > a.py",
    "git reset --hard && git clean -xfd && rm -rf src",
    "rm -rf .git",
    "chmod 755 new.txt; ln -sf b.py link; rmdir empty",
    "cd src && git clean -xfd .. && rm -rf ../notes",
    "python3 -c \"import shutil; shutil.rmtree('src'); open('a.py', 'w').close()\"",
)


@pytest.mark.parametrize("command", DESTROYERS)
async def test_destroyed_work_comes_back(
    repository: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = without_git(repository)
    branches = git(repository, "branch")
    run = await run_command(repository, command)
    await run.session.aclose()
    assert "permission denied" not in run.results[0]
    after = without_git(repository)
    assert after != before or ".git" in command or "branch" in command
    monkeypatch.setenv("K3AGENT_HOME", str(repository.parent / "home"))
    monkeypatch.chdir(repository)
    code = undo(["--yes"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert without_git(repository) == before
    assert git(repository, "branch") == branches
    git(repository, "fsck", "--strict")

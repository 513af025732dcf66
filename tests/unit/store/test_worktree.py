"""Git is asked about a hostile repository, and runs nothing that the repository names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3agent.errors import StoreError
from k3agent.store import worktree

MISSING = "1" * 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A partial clone whose other objects come from a program."""
    root = tmp_path.resolve() / "ws"
    subprocess.run(["git", "init", "-q", root], check=True)
    with (root / ".git" / "config").open("a") as config:
        config.write(
            "[extensions]\n\tpartialClone = origin\n[core]\n\trepositoryformatversion = 1\n"
            f'[remote "origin"]\n\turl = {tmp_path}/none\n\tpromisor = true\n'
            f'\tuploadpack = "touch {root}/ran; false"\n'
        )
    return root


def test_missing_objects_are_not_fetched(root: Path) -> None:
    command = ["git", "cat-file", "-e", f"{MISSING}^{{commit}}"]
    subprocess.run(command, cwd=root, check=False, capture_output=True)
    assert (root / "ran").exists(), "git itself would run it"
    (root / "ran").unlink()
    assert not worktree.has_commit(root, MISSING)
    with pytest.raises(StoreError):
        worktree.ask(root, "cat-file", "-e", f"{MISSING}^{{commit}}")
    environ = {**os.environ, **worktree.harmless(root)}
    subprocess.run(command, cwd=root, check=False, capture_output=True, env=environ)
    assert not (root / "ran").exists()


@pytest.mark.parametrize(
    "name", ["HEAD", "config", "index", "packed-refs", "commondir", "refs/heads/x", "refs/tags/v/1"]
)
def test_a_pipe_in_the_place_of_a_file_of_git_is_not_waited_for(root: Path, name: str) -> None:
    (root / ".git" / name).unlink(missing_ok=True)
    (root / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(root / ".git" / name)
    (root / "below").mkdir()
    with pytest.raises(StoreError, match=f"{name} is no file; remove it"):
        worktree.ask(root, "ls-files")
    with pytest.raises(StoreError, match=f"{name} is no file; remove it"):
        worktree.harmless(root / "below")
    assert worktree.roots_of([root / "below"]) == (root,)


def test_a_pipe_that_nobody_looked_for_is_waited_for_once_and_shortly(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worktree, "MAX_ASLEEP_S", 0.6)
    (root / "below").mkdir()
    os.mkfifo(root / "below" / ".gitignore")
    (root / "below" / "a.txt").write_text("a")
    with pytest.raises(StoreError, match=r"git ls-files in .*: it waits for a pipe"):
        worktree.ignored_paths(root)
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(StoreError, match=r"git ls-files in .*: it waits for a pipe"):
        worktree.ignored_paths(root)


def test_a_program_that_works_is_not_taken_for_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worktree, "MAX_ASLEEP_S", 0.6)
    monkeypatch.setattr(worktree, "LOOK_EVERY_S", 0.1)
    code = "import sys, time\nend = time.process_time() + 1.5\nwhile time.process_time() < end: pass\n"
    code += "print(len(sys.stdin.read()))"
    done = worktree.finished([sys.executable, "-c", code], tmp_path, None, b"x" * 300_000)
    assert (done.returncode, done.stdout) == (0, b"300000\n")
    with pytest.raises(subprocess.TimeoutExpired):
        worktree.finished([sys.executable, "-c", code], tmp_path, None, limit_s=0.3)


@pytest.mark.parametrize(
    "code",
    [
        "import time\nfor _ in range(25): time.sleep(0.08)",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(2)'])",
    ],
    ids=["a slow disk", "a child"],
)
def test_a_program_that_sleeps_again_and_again_or_has_a_child_is_not_taken_for_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(worktree, "MAX_ASLEEP_S", 0.6)
    monkeypatch.setattr(worktree, "LOOK_EVERY_S", 0.1)
    assert worktree.finished([sys.executable, "-S", "-c", code], tmp_path, None).returncode == 0

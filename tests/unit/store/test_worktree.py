"""Git is asked about a hostile repository, and runs nothing that the repository names."""

from __future__ import annotations

import os
import subprocess
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


@pytest.mark.parametrize("name", ["HEAD", "config", "index", "packed-refs", "commondir"])
def test_a_pipe_in_the_place_of_a_file_of_git_is_not_waited_for(root: Path, name: str) -> None:
    (root / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(root / ".git" / name)
    (root / "below").mkdir()
    with pytest.raises(StoreError, match=f"{name} is no file; remove it"):
        worktree.ask(root, "ls-files")
    with pytest.raises(StoreError, match=f"{name} is no file; remove it"):
        worktree.harmless(root / "below")
    assert worktree.roots_of([root / "below"]) == (root,)

"""What commands leave to run later: new protected names, changed ones, repositories with programs in them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from k3agent.tools.sandbox.later import CLOCK_LAG_S, REFUSED, Watch, is_plain

EVIL = "[core]\n\tfsmonitor = ./evil\n"


def git(cwd: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "ws"
    root.mkdir()
    git(root, "init", "-q")
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    return root


def test_a_new_protected_name_is_put_aside(root: Path) -> None:
    watch = Watch([root])
    (root / ".envrc").write_text("evil")
    (root / ".vscode").mkdir()
    (root / ".vscode" / "tasks.json").write_text("{}")
    (root / ".git" / "commondir").write_text("../evil")
    (root / "plain").touch()
    assert watch.settle() == [root / ".envrc", root / ".git/commondir", root / ".vscode"]
    assert (root / f".envrc{REFUSED}").read_text() == "evil"
    assert not (root / ".vscode").exists() and (root / f".vscode{REFUSED}/tasks.json").exists()
    assert watch.settle() == []
    (root / ".envrc").write_text("again")
    assert watch.settle() == [root / ".envrc"]
    assert (root / f".envrc{REFUSED}1").read_text() == "again"


def test_what_was_there_comes_back(root: Path) -> None:
    (root / ".envrc").write_text("good")
    (root / "target").write_text("t")
    (root / ".gitlab-ci.yml").symlink_to("target")
    (root / ".husky").mkdir()
    (root / ".husky" / "pre-commit").write_text("good")
    watch = Watch([root])
    (root / ".envrc").write_text("evil")
    (root / ".gitlab-ci.yml").unlink()
    (root / ".gitlab-ci.yml").write_text("evil")
    (root / ".husky" / "pre-commit").unlink()
    (root / ".husky").rmdir()
    config = (root / ".git/config").read_text()
    (root / ".git/config").write_text(config + EVIL)
    refused = watch.settle()
    assert {
        root / ".envrc",
        root / ".gitlab-ci.yml",
        root / ".husky/pre-commit",
        root / ".git/config",
    } <= set(refused)
    assert (root / ".envrc").read_text() == "good" and (root / f".envrc{REFUSED}").read_text() == "evil"
    assert os.readlink(root / ".gitlab-ci.yml") == "target"  # noqa: PTH115
    assert (root / ".husky/pre-commit").read_text() == "good"
    assert (root / ".git/config").read_text() == config


def test_ordinary_repositories_are_left_alone(root: Path) -> None:
    plain = root.parent / "plain"
    plain.mkdir()
    watch = Watch([root, plain])
    git(plain, "init", "-q")
    git(root, "init", "-q", "new")
    git(root, "init", "-q", "--bare", "bare")
    git(root, "clone", "-q", ".", "clone")
    git(root, "worktree", "add", "-q", "tree")
    git(root, "submodule", "--quiet", "add", "./.", "deep/module")
    git(root / "clone", "config", "user.name", "x")
    git(root / "clone", "remote", "add", "other", "https://example.com/x")
    # Of the workspace's own repository the settings are protected, so `submodule add` cannot note it there.
    assert [path for path in watch.settle() if path != root / ".git/config"] == []


def test_repositories_that_run_something_are_put_out_of_effect(root: Path) -> None:
    (root / "old").mkdir()
    git(root / "old", "init", "-q")
    git(root / "old", "config", "core.fsmonitor", "true")
    os.utime(root / "old/.git/config", (1, 1))
    watch = Watch([root])
    watch._since += 0.1  # the one above is older
    while os.stat(root).st_ctime < watch._since:  # noqa: PTH116
        (root / "tick").touch()
        (root / "tick").unlink()
    git(root, "init", "-q", "a/b/new")
    (root / "a/b/new/.git/config").write_text(EVIL)
    (root / "a/b/new/.git/hooks").mkdir(exist_ok=True)
    (root / "a/b/new/.git/hooks/pre-commit").write_text("evil")
    (root / "bare/objects").mkdir(parents=True)
    (root / "bare/refs").mkdir()
    (root / "bare/HEAD").write_text("ref: refs/heads/x")
    (root / "bare/config").write_text(EVIL)
    assert set(watch.settle()) == {
        root / "a/b/new/.git/config",
        root / "a/b/new/.git/hooks/pre-commit",
        root / "bare/config",
    }
    assert "fsmonitor" in (root / "old/.git/config").read_text()


def age(folder: Path) -> None:
    """Let the clock for files go on, as it does between two commands."""
    time.sleep(3 * CLOCK_LAG_S)
    assert all(path.lstat().st_ctime < time.time() - CLOCK_LAG_S for path in folder.rglob("*"))


def test_a_folder_that_becomes_a_repository_is_as_new_as_its_head(root: Path) -> None:
    hidden = root / "fixture"
    hidden.mkdir()
    (hidden / "config").write_text(EVIL)
    age(root)
    watch = Watch([root])
    (hidden / "HEAD").write_text("ref: refs/heads/main")
    assert watch.settle() == [hidden / "config"]


def test_a_repository_that_was_moved_is_new(root: Path) -> None:
    (root / "fixture").mkdir()
    (root / "fixture" / "HEAD").write_text("ref: refs/heads/main")
    (root / "fixture" / "config").write_text(EVIL)
    age(root)
    watch = Watch([root])
    assert watch.settle() == [], "what was there before is the user's"
    (root / "sub").mkdir()
    (root / "fixture").rename(root / "sub" / ".git")
    assert watch.settle() == [root / "sub/.git/config"]


@pytest.mark.parametrize("is_link", [True, False])
def test_a_repository_behind_a_link_or_file_is_found(root: Path, is_link: bool) -> None:
    hidden = root / ".git" / "evil"
    hidden.mkdir()
    (hidden / "HEAD").write_text("ref: refs/heads/main")
    (hidden / "config").write_text(EVIL)
    age(root / ".git")
    watch = Watch([root])
    (root / "sub").mkdir()
    if is_link:
        (root / "sub" / ".git").symlink_to("../.git/evil")
    else:
        (root / "sub" / ".git").write_text("gitdir: ../.git/evil\n")
    assert watch.settle() == [hidden / "config"]


def test_no_link_is_followed(root: Path) -> None:
    """Between the look and the renaming a folder becomes a link to one outside."""
    outside = root.parent / "outside"
    (outside / "workflows").mkdir(parents=True)
    (outside / "workflows" / "x.yml").write_text("theirs")
    watch = Watch([root])
    (root / ".github").symlink_to(outside)
    watch.settle()
    assert (outside / "workflows" / "x.yml").read_text() == "theirs"
    assert [path.name for path in outside.iterdir()] == ["workflows"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("[core]\n\tbare = false\n\tfilemode = true\n[user]\nname = x", True),
        ('[remote "origin"]\n\turl = https://example.com/fsmonitor\n\tfetch = +refs/*:refs/*\n', True),
        ('[branch "core.fsmonitor"]\n\tmerge = refs/heads/x\n', True),
        ("; comment\n# [core] fsmonitor = x\n", True),
        (EVIL, False),
        ("[gc]\nrecentObjectsHook = ./evil\n", False),
        ("[init]\ntemplateDir = x\n", False),
        ("[gc]\nauto = 0\n[init]\ndefaultBranch = main\n", True),
        ("[core] fsmonitor = ./evil\n", False),
        ("[CORE]\nFSMonitor=./evil\n", False),
        ("[core]\nfs\\\nmonitor = x", False),
        ("[core]\nbare = false \\\n\nfsmonitor = x", False),
        ("[include]\npath = x\n", False),
        ('[includeIf "gitdir:/"]\npath = x\n', False),
        ("[alias]\nst = !evil\n", False),
        ('[filter "x"]\nclean = evil\n', False),
        ('[diff "x"]\ntextconv = evil\n', False),
        ('[remote "x"]\nurl = ext::evil\n', False),
        ('[remote "x"]\nuploadpack = evil\n', False),
        ("[core]\nhooksPath = x\n", False),
        ("[credential]\nhelper = !evil\n", False),
        ("fsmonitor = x\n", False),
        ("[core\nfsmonitor = x\n", False),
        ("[extensions]\nworktreeConfig = true\n", False),
        ("\ufeff[core]\nfsmonitor = x", False),
    ],
)
def test_plain_settings(text: str, plain: bool) -> None:
    assert is_plain(text) is plain

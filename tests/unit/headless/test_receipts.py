"""The receipt of a run: what it tells, and that what it asks git runs nothing of the repository's."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tracemalloc
from pathlib import Path

from support.agents import DONE, call, start, step

from k3agent.headless.receipts import RunReceipt, tree_state


def test_a_receipt_runs_no_monitor_of_the_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "a").touch()
    with (tmp_path / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {tmp_path}/ran; false"\n')
    subprocess.run(["git", "status"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "ran").exists(), "git itself would run it"
    (tmp_path / "ran").unlink()
    assert tree_state(tmp_path)["files"] == 1
    assert not (tmp_path / "ran").exists()


def test_a_pipe_that_git_would_wait_for_is_named(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    os.mkfifo(tmp_path / ".gitignore")
    (tmp_path / "below").mkdir()
    assert ".gitignore is no file; remove it" in tree_state(tmp_path / "below")["note"]


def test_large_files_are_hashed_piece_by_piece(tmp_path: Path) -> None:
    content = bytes(range(256)) * (32 << 12)
    (tmp_path / "large").write_bytes(content)
    tracemalloc.start()
    state = tree_state(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    line = f"0 {hashlib.sha256(content).hexdigest()} large\0"
    assert state["sha256"] == hashlib.sha256(line.encode()).hexdigest()
    assert peak < len(content) // 8


async def test_it_has_the_exit_codes_of_commands_and_of_every_check(tmp_path: Path) -> None:
    paper = RunReceipt(tmp_path / "receipt.json", tmp_path)
    answers = [step(call("shell", command="exit 3")), DONE, step(call("write", path="ok", content="x")), DONE]
    run = await start(tmp_path, answers, checks=("test -e ok",), allow=("shell",), sandbox="off")
    run.session.subscribe(paper.event)
    await run.session.submit("do it")
    await run.session.aclose()
    assert paper.write({}, {}) == ""
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    shell, write = receipt["ran"]
    assert (shell["tool"], shell["exit_code"]) == ("shell", 3)
    assert write["tool"] == "write" and "exit_code" not in write
    assert [(one["command"], one["exit_code"]) for one in receipt["checks"]] == [
        ("test -e ok", 1),
        ("test -e ok", 0),
    ]


def test_the_commit_is_one_whatever_the_repository_says_of_head(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", "-b", "main", repository], check=True)
    folder = repository / ".git"
    (tmp_path / "secret").write_text("a word of another file\n")
    known = "0123456789abcdef" * 2 + "01234567"
    (folder / "refs" / "heads" / "main").write_text(f"{known}\n")
    assert tree_state(repository)["commit"] == known
    (folder / "refs" / "heads" / "link").symlink_to(tmp_path / "secret")
    for head in ("ref: ../../secret", f"ref: {tmp_path}/secret", "ref: refs/heads/link", "a word", "ref: x"):
        (folder / "HEAD").write_text(f"{head}\n")
        assert tree_state(repository)["commit"] is None

"""`k3agent run --detach` as processes: goes on without a terminal, is heard, tells at once what is wrong."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from pathlib import Path

from support.headless import Bench
from support.runs import ANSWER, served, task

from k3agent.agent import sockets

PATIENCE_S = 60.0


def start(bench: Bench, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        bench.command("run", *words, "--detach"),
        cwd=bench.workspace, env=bench.environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def wait_for(text: str, path: Path) -> str:
    end = time.monotonic() + PATIENCE_S
    while text not in (found := path.read_text(encoding="utf-8")):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def test_it_goes_on_by_itself_and_leaves_its_answer(bench: Bench) -> None:
    with served(bench, task()):
        begun = start(bench, "change two to TWO", "--permission-mode", "auto", "--output-format", "json")
        assert begun.returncode == 0, begun.stderr
        session_id = str(uuid.UUID(begun.stdout.strip()))
        assert f"k3agent resume {session_id}" in begun.stderr
        folder = bench.home / "outputs" / session_id
        result = json.loads(wait_for('"type"', folder / "run.out"))
        assert result["result"] == ANSWER and result["session_id"] == session_id
    assert (bench.workspace / "a.txt").read_text() == "one\nTWO\nthree\n"
    end = time.monotonic() + PATIENCE_S
    while sockets.socket_path(bench.home, session_id).exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_is_wrong_is_told_at_once(bench: Bench) -> None:
    wrong = start(bench, "hi", "--base-url", "http://[::1")
    assert wrong.returncode == 52 and "base" in wrong.stderr and not wrong.stdout
    assert start(bench, "-").returncode == 2
    ended = start(bench, "hi", "--ephemeral")
    assert ended.returncode == 2 and "--ephemeral" in ended.stderr
    unknown = start(bench, "hi", "--resume", "nonsense")
    assert unknown.returncode == 1 and "nonsense" in unknown.stderr and "Traceback" not in unknown.stderr

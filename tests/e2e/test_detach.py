"""`k3agent run --detach` as processes: goes on without a terminal, is heard, tells at once what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from datetime import datetime, timedelta
from pathlib import Path

from support.headless import Bench, Ran
from support.runs import ANSWER, served, task

from k3agent.agent import sockets
from k3agent.providers.scripted import Step

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


def sessions(bench: Bench, *words: str) -> Ran:
    return bench.run("sessions", *words)


def begin_later(bench: Bench, seconds: float, *words: str) -> str:
    """A run that waits; its session's id."""
    at = (datetime.now() + timedelta(seconds=seconds)).isoformat(timespec="seconds")
    begun = start(bench, *words, "--permission-mode", "auto", "--at", at)
    assert begun.returncode == 0, begun.stderr
    session_id = begun.stdout.strip()
    assert "It waits in the background" in begun.stderr
    assert f"k3agent sessions stop {session_id}" in begun.stderr
    return session_id


def test_one_that_waits_is_listed_then_works_under_the_same_id(bench: Bench) -> None:
    with served(bench, task()):
        session_id = begin_later(bench, 15, "change two to TWO")
        listed = sessions(bench, "list")
        for text in ("○ waits until", "change two to TWO", session_id):
            assert text in listed.out
        (row,) = json.loads(sessions(bench, "list", "--json").out)
        assert (row["is_running"], row["is_waiting"], row["num_messages"]) == (False, True, 0)
        # Nobody else begins it meanwhile.
        taken = bench.run("run", "hi", "--resume", session_id)
        assert taken.code != 0 and "in use" in taken.err
        wait_for("success ·", bench.home / "outputs" / session_id / "run.log")
    assert (bench.workspace / "a.txt").read_text() == "one\nTWO\nthree\n"
    (row,) = json.loads(sessions(bench, "list", "--json").out)
    assert row["waits_until"] is None and row["num_messages"] > 3 and row["id"] == session_id


def test_one_that_waits_is_cancelled(bench: Bench) -> None:
    with served(bench, task()) as server:
        session_id = begin_later(bench, 3600, "change two to TWO")
        stopped = sessions(bench, "stop", session_id[:8])
        assert stopped.code == 0 and f"stopped {session_id}" in stopped.out
        log = wait_for("before the work began", bench.home / "outputs" / session_id / "run.log")
        assert "k3agent sessions stop" in log
        assert not server.requests
    assert "No sessions yet" in sessions(bench, "list").err
    again = sessions(bench, "stop", session_id)
    assert again.code == 1 and "no session" in again.err


def test_one_that_waits_for_a_session_leaves_it_as_it_was(bench: Bench) -> None:
    with served(bench, task()):
        done = bench.run("run", "change two to TWO", "--permission-mode", "auto", "--output-format", "json")
        first = done.result["session_id"]
        assert begin_later(bench, 3600, "more", "--resume", first) == first
        assert "○ waits until" in sessions(bench, "list").out
        assert sessions(bench, "stop", first).code == 0
    (row,) = json.loads(sessions(bench, "list", "--json").out)
    assert row["waits_until"] is None and row["num_messages"] > 3


def test_what_is_left_of_one_that_was_killed_while_it_waited(bench: Bench) -> None:
    with served(bench, task()):
        session_id = begin_later(bench, 3600, "change two to TWO")
        pid = int((bench.home / "locks" / f"{session_id}.lock").read_text())
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while "its process is gone" not in (listed := sessions(bench, "list").out):
            assert time.monotonic() < end
        assert "was to begin at" in listed and "change two to TWO" in listed
    gone = sessions(bench, "stop", session_id)
    assert gone.code == 0 and "removed from the list" in gone.out
    assert "No sessions yet" in sessions(bench, "list").err


def test_one_that_works_is_stopped(bench: Bench) -> None:
    with served(bench, [Step(text="slow " * 400, piece=5, piece_delay_s=0.05)]):
        session_id = start(bench, "go").stdout.strip()
        stopped = sessions(bench, "stop", session_id)
        assert stopped.code == 0, stopped.err
        wait_for("k3agent sessions stop", bench.home / "outputs" / session_id / "run.log")
    assert sessions(bench, "stop", session_id).code == 1

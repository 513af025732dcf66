"""The watch over a server process, with a small real server that can be told to die."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from k3agent.backend.errors import EngineUnavailableError
from k3agent.backend.handover import supervise
from k3agent.backend.handover.command import free_port
from k3agent.backend.handover.supervise import Supervisor

LONG_S = 120.0
SERVER = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
port, pids = int(sys.argv[1]), sys.argv[2]
worker = subprocess.Popen(["sleep", "600"])
open(pids, "a").write(f"{os.getpid()} {worker.pid}\\n")
print("a prompt", flush=True)
if len(sys.argv) > 3 and len(open(pids).readlines()) > int(sys.argv[3]):
    sys.exit("no more memory")
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Life:
    """A supervisor at work in a thread."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.port, self.pids, self.log = (
            free_port("127.0.0.1"),
            folder / "pids",
            folder / "log" / "server.log",
        )
        command = [sys.executable, "-c", SERVER, str(self.port), str(self.pids), *more]
        self.url = f"http://127.0.0.1:{self.port}"
        self.watched = Supervisor(command, dict(os.environ), self.url, self.log)
        self.ready = threading.Event()
        self.result: int | EngineUnavailableError | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.watched.run(self.ready.set, LONG_S)
        except EngineUnavailableError as error:
            self.result = error

    def end(self) -> None:
        self.watched.stop()
        self.thread.join(LONG_S)

    def started(self) -> list[list[int]]:
        return [[int(pid) for pid in line.split()] for line in self.pids.read_text().splitlines()]


def runs(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "POLL_S", 0.1)


@pytest.fixture
def life(tmp_path: Path, quick: None) -> Iterator[Life]:
    made = Life(tmp_path)
    yield made
    made.end()


def wait(condition: "threading.Event") -> None:
    assert condition.wait(LONG_S)


def test_it_is_started_and_stopped_with_its_workers(life: Life) -> None:
    wait(life.ready)
    ((server, worker),) = life.started()
    assert runs(server) and runs(worker)
    life.end()
    assert life.result == 0
    assert not runs(server) and not runs(worker)
    assert life.log.read_text() == "a prompt\n"
    assert life.log.stat().st_mode & 0o777 == 0o600


def test_it_comes_back_after_its_death(life: Life) -> None:
    wait(life.ready)
    first = life.started()[0]
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{life.url}/die", trust_env=False)
    end = time.monotonic() + LONG_S
    while life.watched.num_restarts == 0 or len(life.started()) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    # The worker of the dead one went with it.
    assert not any(map(runs, first))
    life.end()
    assert life.result == 0


@pytest.mark.usefixtures("quick")
def test_it_is_given_up_when_it_does_not_come(tmp_path: Path) -> None:
    life = Life(tmp_path, "0")
    life.thread.join(LONG_S)
    text = str(life.result)
    assert "ended with status 1 while loading" in text and "no more memory" in text and str(life.log) in text
    assert not any(map(runs, life.started()[0]))


@pytest.mark.usefixtures("quick")
def test_it_is_given_up_when_it_dies_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "MAX_RESTARTS", 1)
    life = Life(tmp_path)
    wait(life.ready)
    end = time.monotonic() + LONG_S
    while life.thread.is_alive():
        assert time.monotonic() < end
        os.kill(life.started()[-1][0], signal.SIGKILL) if runs(life.started()[-1][0]) else time.sleep(0.05)
    assert isinstance(life.result, EngineUnavailableError)
    assert "ended with status -9" in str(life.result)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    watched = Supervisor(["/no/such/vllm"], {}, "http://127.0.0.1:1", tmp_path / "log")
    with pytest.raises(EngineUnavailableError, match="/no/such/vllm: No such file"):
        watched.run(lambda: None, 1.0)

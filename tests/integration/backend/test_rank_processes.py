"""The processes of ranks without a model: who is blamed for a loss, and that nothing is left behind."""

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from k3agent.backend.parallel.processes import RankProcesses

LONG_S = 120
WORKER = """
import os, signal, sys, time
from k3agent.backend.parallel.processes import Raised, attach
rank, commands, life = int(sys.argv[1]), *attach(*sys.argv[2:])
while True:
    name, *rest = commands.recv()
    if name == "stop":
        break
    if name == "echo":
        commands.send((rank, *rest))
    if name == "hang":
        time.sleep(1000)
    if name == "words" :
        life.send(Raised(*rest))
        sys.exit(1)
    if name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""
# the thread that watches ends with the exception that stands for the end of the process
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
PARENT = """
import sys, time
from k3agent.backend.parallel.processes import RankProcesses, end_process
ranks = RankProcesses("a_rank", 3, end_process)
ranks.tell("hang")
print(*ranks.pids, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def losses() -> "queue.Queue[str]":
    return queue.Queue()


Start = Callable[[int], RankProcesses]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: "queue.Queue[str]") -> Iterator[Start]:
    (tmp_path / "a_rank.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    started: list[RankProcesses] = []

    def lost(message: str) -> NoReturn:
        losses.put(message)
        raise SystemExit

    def starter(world: int) -> RankProcesses:
        started.append(RankProcesses("a_rank", world, lost))
        return started[-1]

    yield starter
    for ranks in started:
        ranks.kill()


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + LONG_S
    while any(map(runs, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_commands_reach_all_and_answers_come_in_order(start: Start, losses: "queue.Queue[str]") -> None:
    ranks = start(4)
    ranks.tell("echo", "a", b"\0" * (1 << 20))
    assert [answer[:2] for answer in ranks.answers()] == [(1, "a"), (2, "a"), (3, "a")]
    ranks.close()
    wait_gone(ranks.pids)
    assert losses.empty()


def test_a_killed_rank_is_named(start: Start, losses: "queue.Queue[str]") -> None:
    ranks = start(3)
    ranks.tell_one(1, "hang")
    ranks.tell_one(2, "kill")
    assert losses.get(timeout=LONG_S) == f"rank 2 (process {ranks.pids[1]}) was ended by SIGKILL"
    wait_gone(ranks.pids)


def test_the_one_that_failed_is_named_and_not_those_that_noticed(
    start: Start, losses: "queue.Queue[str]"
) -> None:
    ranks = start(4)
    ranks.tell_one(1, "words", "a sum over all ranks broke off", True)
    ranks.tell_one(3, "words", "out of memory", False)
    assert losses.get(timeout=LONG_S) == "rank 3 failed: out of memory"
    wait_gone(ranks.pids)


def test_without_a_culprit_the_words_of_who_noticed_are_told(
    start: Start, losses: "queue.Queue[str]"
) -> None:
    ranks = start(3)
    ranks.tell_one(2, "words", "a sum over all ranks broke off: timeout", True)
    assert losses.get(timeout=LONG_S) == "rank 2: a sum over all ranks broke off: timeout"
    wait_gone(ranks.pids)


def test_a_rank_that_is_gone_is_noticed_by_whoever_asks_it(start: Start, losses: "queue.Queue[str]") -> None:
    ranks = start(2)
    os.kill(ranks.pids[0], signal.SIGKILL)
    with pytest.raises(SystemExit):
        ranks.tell("echo")
        ranks.answers()
    assert "rank 1" in losses.get(timeout=LONG_S)


def test_rank_0_is_named_when_it_fails(start: Start, losses: "queue.Queue[str]") -> None:
    ranks = start(2)
    with pytest.raises(SystemExit):
        ranks.fail(RuntimeError("out of memory"))
    assert losses.get(timeout=LONG_S) == "rank 0 failed: out of memory"
    wait_gone(ranks.pids)


@pytest.mark.usefixtures("start")
def test_ranks_do_not_outlive_rank_0() -> None:
    parent = subprocess.Popen([sys.executable, "-P", "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(runs, pids))
    parent.kill()
    parent.communicate()
    wait_gone(pids)

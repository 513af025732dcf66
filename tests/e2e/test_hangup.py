"""The terminal, or who reads what k3agent says, goes away in the middle: the process ends, leaves no child
behind, and the session goes on later.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.headless import make_bench
from support.panes import Pane
from support.runs import alive, wait_for

from k3agent.providers.scripted import ScriptedCall, Step, serving

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
# Closing a session and its helpers has limits of a few seconds each; the machine may be busy.
GONE_S = 60.0
SLEEPS = {"command": "echo $$ > pid; touch started; sleep 600"}
MOMENTS = ("idle", "turn", "question", "command", "own command")


def steps(moment: str) -> list[Step]:
    """A first answer, then what the moment needs."""
    told = [Step(text="Noted.")]
    if moment == "turn":
        told.append(Step(text="long " * 4_000, piece=20, piece_delay_s=0.05))
    elif moment in ("question", "command"):
        told.append(Step(calls=(ScriptedCall(name="shell", arguments=SLEEPS),)))
    return [*told, Step(text="Understood.")]


@pytest.fixture
def pane(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pane]:
    with serving(steps(request.param)) as server:
        pane = Pane(tmp_path, server.url)
        yield pane
        pane.stop()


def reach(pane: Pane, moment: str) -> int:
    """Be in the middle of it; the process."""
    pane.start(*([] if moment == "question" else ["--permission-mode", "auto"]))
    pane.until("scripted")
    pane.type("the first words")
    pane.keys("Enter")
    pane.until("Noted.", "done · 1 step")
    pid = pane.pid()
    if moment == "own command":
        pane.type(f"!{SLEEPS['command']}")
        pane.keys("Enter")
    elif moment != "idle":
        pane.type("go")
        pane.keys("Enter")
    if moment == "turn":
        pane.until("long long long")
    elif moment == "question":
        pane.until("May shell do this?")
    elif moment.endswith("command"):
        wait_for(lambda: (pane.workspace / "started").exists(), GONE_S)
    return pid


def check_gone(pane: Pane, pid: int, children: list[int]) -> None:
    wait_for(lambda: not alive(pid), GONE_S)
    wait_for(lambda: not any(map(alive, children)), GONE_S)
    pane.stop()
    pane.start("-c", "--permission-mode", "auto")
    pane.until("❯ the first words", "Noted.", "scripted")
    assert "Another process runs this session" not in pane.shown


def below(pid: int) -> list[int]:
    """The processes under it, at any depth."""
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [deeper for one in found for deeper in below(one)]


@pytest.mark.parametrize(("pane", "moment"), [(name, name) for name in MOMENTS], indirect=["pane"])
def test_the_terminal_goes_away(pane: Pane, moment: str) -> None:
    pid = reach(pane, moment)
    children = below(pid)
    assert bool(children) == moment.endswith("command")
    pane.stop()
    check_gone(pane, pid, children)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("pane", "moment"), [("question", "question"), ("command", "command")], indirect=["pane"]
)
def test_a_signal_to_the_process_alone(pane: Pane, moment: str, signum: signal.Signals) -> None:
    pid = reach(pane, moment)
    children = below(pid)
    os.kill(pid, signum)
    pane.until("To go on with this session: k3agent resume", f"ended with {128 + signum}")
    check_gone(pane, pid, children)


@pytest.mark.parametrize("pane", ["idle"], indirect=True)
def test_going_on_starts_nothing_twice(pane: Pane) -> None:
    pid = reach(pane, "idle")
    for signum in (signal.SIGCONT, signal.SIGCONT, signal.SIGSTOP, signal.SIGCONT):
        os.kill(pid, signum)
        time.sleep(0.2)
    pane.type("typed once")
    pane.until("typed once")
    pane.until("Noted.")
    pane.keys("Enter")
    pane.until("❯ typed once", "Understood.")
    pane.keys("C-d")
    pane.until("ended with 0")
    # The terminal is as it was before, and shows what is typed.
    pane.type("echoed")
    pane.until("echoed")


def test_a_terminal_that_takes_nothing_does_not_keep_it(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    with serving(steps("turn")) as server:
        master, slave = os.openpty()
        bench.url, command = server.url, [sys.executable, "-m", "k3agent.cli"]
        with (tmp_path / "err").open("w") as err:
            process = subprocess.Popen(
                [*command, "the first words", "--base-url", server.url],
                cwd=bench.workspace, env={**bench.environ, "TERM": "xterm"}, start_new_session=True,
                stdin=slave, stdout=slave, stderr=err,
            )  # fmt: skip
        seen = b""
        while b"Noted." not in seen:
            seen += os.read(master, 4096)
        os.write(master, b"go\r")
        # Nobody reads from now on, and the answer is long.
        wait_for(lambda: len(server.requests) == 2, GONE_S)
        time.sleep(2.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GONE_S) == 128 + signal.SIGTERM
    os.close(master)
    os.close(slave)
    assert (tmp_path / "err").read_text() == ""


def test_without_standard_output_it_says_what_to_use(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    command = shlex.join([sys.executable, "-m", "k3agent.cli"])
    done = subprocess.run(
        ["sh", "-c", f"{command} >&-"],
        cwd=bench.workspace, env=bench.environ, capture_output=True, text=True, timeout=GONE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "the UI needs a terminal" in done.stderr

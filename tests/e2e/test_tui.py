"""Journeys through the installed UI in tmux: they wait for text on the screen, never for time."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.panes import PROGRAM, Pane

from k3agent.providers.scripted import ScriptedCall, ScriptedServer, Step, serving

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def script() -> list[Step]:
    return [
        Step(
            reasoning="A file is wanted.",
            calls=(ScriptedCall(name="shell", arguments={"command": "touch made"}),),
        ),
        Step(text="The file **made** is there."),
        Step(text="long " * 4_000, piece=20, piece_delay_s=0.05),
        Step(text="Understood."),
    ]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving(script()) as running:
        yield running


@pytest.fixture
def pane(tmp_path: Path, server: ScriptedServer) -> Iterator[Pane]:
    pane = Pane(tmp_path, server.url)
    yield pane
    pane.stop()


def test_type_approve_interrupt_resize_leave_resume(pane: Pane, server: ScriptedServer) -> None:
    pane.start()
    pane.until("What shall be done?")
    # Keys and Enter in one go: nothing overtakes anything.
    pane.type("make the file")
    pane.keys("Enter")
    pane.until("❯ make the file", "May shell do this?", "$ touch made")
    assert not (pane.workspace / "made").exists()
    pane.until_gone("keys answer after a pause")
    pane.keys("y")
    pane.until("The file made is there.", "done · 2 steps")
    assert (pane.workspace / "made").exists()
    pane.type("tell a long story")
    pane.keys("Enter")
    pane.until("long long long")
    pane.keys("Escape")
    pane.until("interrupted · ")
    pane.tmux("resize-window", "-x", "60", "-y", "24")
    pane.until("What shall be done?")
    assert all(len(line) <= 60 for line in pane.shown.splitlines())
    pane.keys("C-d")
    pane.until("To go on with this session: k3agent resume", "ended with 0")
    pane.stop()
    pane.start("-c")
    pane.until("❯ tell a long story", "interrupted here")
    pane.type("go on")
    pane.keys("Enter")
    pane.until("Understood.")
    assert len(server.requests) == 4


def test_a_paste_is_folded_and_sent_whole(pane: Pane, server: ScriptedServer) -> None:
    pane.start("--permission-mode", "auto")
    pane.until("What shall be done?", "scripted")
    text = "\n".join(f"line {number}" for number in range(2_000))
    (pane.root / "paste").write_text(text)
    pane.tmux("load-buffer", str(pane.root / "paste"))
    pane.tmux("paste-buffer", "-p")
    pane.until("[pasted #1: 2,000 lines]")
    pane.keys("Enter")
    pane.until("The file made is there.")
    sent = server.requests[0].json["messages"][-1]["content"]
    assert "line 1999" in str(sent)


def test_killed_in_mid_answer_and_gone_on_with(pane: Pane) -> None:
    pane.start("--permission-mode", "auto")
    pane.until("scripted")
    pane.type("make the file")
    pane.keys("Enter")
    pane.until("done · 2 steps")
    pane.type("tell a long story")
    pane.keys("Enter")
    pane.until("long long long")
    os.kill(pane.pid(), signal.SIGKILL)
    pane.until("ended with 137")
    pane.stop()
    pane.start("-c")
    pane.until("❯ tell a long story", "/continue goes on")
    pane.type("/continue")
    pane.keys("Enter")
    pane.until("Understood.", "done · 1 step")


def test_a_fault_of_the_ui_leaves_a_session_and_no_secrets(pane: Pane) -> None:
    fault = (
        "import k3agent.tui.widgets.message as m\n"
        "def rows(self, width, palette):\n"
        "    secret = 'sk-very-secret'\n"
        "    raise RuntimeError('broken block')\n"
        "m.TurnEndBlock.rows = rows\n"
    )
    pane.start("--permission-mode", "auto", program=f"{fault}{PROGRAM}", size=(200, 40))
    pane.until("scripted")
    pane.type("make the file")
    pane.keys("Enter")
    pane.until(
        "k3agent's UI crashed: RuntimeError: broken block",
        "The session is safe: k3agent resume",
        "ended with 1",
    )
    assert "sk-very-secret" not in pane.shown
    pane.stop()
    pane.start("-c")
    pane.until("The file made is there.")


def test_a_signal_ends_it_in_good_order(pane: Pane) -> None:
    pane.start()
    pane.until("scripted")
    os.kill(pane.pid(), signal.SIGTERM)
    pane.until("ended with 143")


def test_the_editor_gives_the_screen_back(pane: Pane, server: ScriptedServer) -> None:
    pane.start("--permission-mode", "auto")
    pane.until("scripted")
    pane.type("to be replaced")
    pane.until("to be replaced")
    pane.keys("C-g")
    pane.until("written in the editor")
    # Keys arrive again, and Esc alone is still told from the beginning of a sequence.
    pane.type(" and typed on")
    pane.until("written in the editor and typed on")
    pane.keys("Enter")
    pane.until("The file made is there.")
    assert "written in the editor and typed on" in str(server.requests[0].json["messages"][-1])


def test_steering_and_queueing(pane: Pane, server: ScriptedServer) -> None:
    pane.start("--permission-mode", "auto")
    pane.until("scripted")
    pane.type("make the file")
    pane.keys("Enter")
    pane.until("done · 2 steps")
    pane.type("tell a long story")
    pane.keys("Enter")
    pane.until("long long long")
    pane.type("queued words")
    pane.keys("Enter")
    pane.until("⏎ next: queued words", "1 queued")
    pane.keys("Escape")
    # What waited is not sent into a turn that was cut short.
    pane.until("interrupted · ", "/send sends them")
    pane.type("/send")
    pane.keys("Enter")
    pane.until("❯ queued words", "Understood.")
    assert "queued words" in str(server.requests[-1].json["messages"][-1])

"""A headless run in this process: what comes from outside between two turns."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.agents import DONE, ReplayClient

from k3agent.config.settings import Settings
from k3agent.events import AnyEvent, TurnEnded
from k3agent.headless import run as headless
from k3agent.headless.formats import TextFormat
from k3agent.headless.output import PipeWriter
from k3agent.headless.progress import Progress
from k3agent.headless.runoptions import RunOptions


class Signalling(TextFormat):
    """Gets a signal when the first turn is over."""

    run: headless.HeadlessRun

    def event(self, event: AnyEvent) -> None:
        if isinstance(event, TurnEnded):
            self.run._signalled(signal.SIGTERM, None)


async def test_a_signal_while_a_turn_is_put_away_ends_the_run_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ws").mkdir()
    client = ReplayClient([DONE, DONE])
    monkeypatch.setattr(headless, "choose_client", lambda *_: client)
    monkeypatch.setattr(headless.HeadlessRun, "_listen_to_signals", lambda self: None)
    options = RunOptions(
        settings=Settings(checks_commands=("true",), sandbox="off"),
        environ={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        home=tmp_path / "home",
        cwd=tmp_path / "ws",
        goals=("Make a.", "Make b."),
    )
    form = Signalling(lambda text: None)
    form.run = headless.HeadlessRun(
        options, PipeWriter(1, is_lossless=True), form, Progress(lambda text: None, has_color=False)
    )
    end = await form.run.run()
    await form.run.close()
    assert (end.exit_code, end.outcome.value) == (143, "interrupted")
    assert len(client.requests) == 1 and "between two turns" in end.report
    assert end.receipt.goals == [
        {"goal": "Make a.", "state": "reached"},
        {"goal": "Make b.", "state": "active"},
    ]

"""What people see on standard error."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from k3agent.events import (
    CallStarted,
    CheckEnded,
    MessageAdded,
    Noticed,
    PrefillProgressed,
    ReasoningStreamed,
    TurnOutcome,
)
from k3agent.headless import progress as progress_module
from k3agent.headless.formats import End
from k3agent.headless.progress import Progress
from k3agent.types import Message, MessageId, Origin, ReasoningPart, Role, SessionId, TextPart


def event(kind: type[Any], **fields: Any) -> Any:
    return kind(session=SessionId("s"), seq=1, at=datetime.now(UTC), **fields)


def prompt() -> Message:
    return Message(
        id=MessageId("u"),
        parent=None,
        role=Role.USER,
        origin=Origin.HUMAN,
        parts=(TextPart(text="go"),),
        created_at=datetime.now(UTC),
    )


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: self.now)


@pytest.mark.parametrize("has_color", [True, False])
def test_a_prompt_that_is_read_quickly_is_not_worth_a_word(
    monkeypatch: pytest.MonkeyPatch, has_color: bool
) -> None:
    clock, said = Clock(monkeypatch), []
    progress = Progress(said.append, has_color=has_color)
    for done in range(0, 20, 2):
        progress.event(event(PrefillProgressed, done=done, total=20))
        clock.now += 0.2
    assert said == []


def test_on_a_terminal_one_line_changes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), []
    progress = Progress(said.append, has_color=True)
    for done in (0, 50, 75):
        progress.event(event(PrefillProgressed, done=done, total=100))
        clock.now += 2.5
    progress.event(event(Noticed, level="info", text="next"))
    text = "".join(said)
    assert "50 of 100 tokens (2 s)" in text and "75 of" in text and "\n" not in text.split("75 of")[0]
    assert said[-2] == "\r\x1b[K" and "next" in said[-1]


def test_in_a_log_it_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), []
    progress = Progress(said.append, has_color=False)
    for done in range(100):
        progress.event(event(PrefillProgressed, done=1000 * done, total=100_000))
        clock.now += 0.3
    heads = [text.partition(" tokens (")[0] for text in said]
    assert heads == [f"reading the prompt: {done},000 of 100,000" for done in (34, 68)]


def test_a_silent_model_is_waited_for_in_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), []
    progress = Progress(said.append, has_color=True)
    progress.event(event(MessageAdded, message=prompt()))
    for _ in range(5):
        progress.tick()
        clock.now += 1.0
    assert "".join(said).count("waiting for the model") == 3 and "(4 s)" in said[-1]
    progress.event(event(CallStarted, call_id="c", tool="shell"))
    clock.now += 7
    progress.tick()
    assert "shell runs (7 s)" in said[-1]
    progress.event(event(ReasoningStreamed, text="hm"))
    count = len(said)
    clock.now += 60
    progress.tick()
    assert len(said) == count


def test_a_log_is_told_of_a_silent_model_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), []
    progress = Progress(said.append, has_color=False)
    progress.event(event(MessageAdded, message=prompt()))
    for _ in range(26):
        progress.tick()
        clock.now += 1.0
    assert said == ["waiting for the model (10 s)\n", "waiting for the model (20 s)\n"]


def test_the_answer_starts_on_a_line_of_its_own() -> None:
    said: list[str] = []
    progress = Progress(said.append, has_color=True)
    progress.event(event(ReasoningStreamed, text="All pass."))
    answer = Message(
        id=MessageId("m"),
        parent=None,
        role=Role.ASSISTANT,
        origin=Origin.MODEL,
        parts=(ReasoningPart(text="All pass."), TextPart(text="Fixed.")),
        created_at=datetime.now(UTC),
    )
    progress.event(event(MessageAdded, message=answer))
    assert said[-1] == "\n"


@pytest.mark.parametrize(("exit_code", "shown"), [(1, ["  1 failed\n"]), (0, [])])
def test_a_failed_check_shows_the_end_of_its_output(exit_code: int, shown: list[str]) -> None:
    said: list[str] = []
    progress = Progress(said.append, has_color=False)
    progress.event(event(CheckEnded, command="pytest", exit_code=exit_code, output="1 failed\n"))
    assert "check pytest" in said[0] and said[1:] == shown


def test_of_a_failed_check_the_lines_that_tell_of_it_are_shown() -> None:
    output = "not ok 1 - adds\n# tests 1\n# fail 1\n# cancelled 0\n# skipped 0\n# todo 0\n"
    said: list[str] = []
    progress = Progress(said.append, has_color=False)
    progress.event(event(CheckEnded, command="node --test", exit_code=1, output=output))
    assert said == ["✗ check node --test: failed (exit code 1)\n", "  not ok 1 - adds\n"]


def test_last_words_without_an_end_are_shown_in_part() -> None:
    said: list[str] = []
    words = "I look.\n" + "I read the file again.\n" * 100
    end = End(outcome=TurnOutcome.EXECUTION, exit_code=1, report="Not finished: why.", last_words=words)
    Progress(said.append, has_color=False, is_quiet=True).ended(end)
    shown = "".join(said)
    assert "I look.\nI read the file again.\n" in shown and "94 lines left out" in shown
    assert shown.count("again") < 10

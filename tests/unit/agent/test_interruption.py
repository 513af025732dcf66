"""Turns that are stopped from outside, and what can be done with them afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.agents import (
    COMPACT,
    DONE,
    FULL,
    call,
    check_prefixes,
    options,
    start,
    step,
)

from k3agent.agent.options import Limits
from k3agent.agent.session import Session
from k3agent.errors import (
    K3AgentError,
)
from k3agent.events import (
    ApprovalAsked,
    ArgumentsStreamed,
    CallStarted,
    Decision,
    TextStreamed,
    TurnEnded,
    TurnOutcome,
)
from k3agent.providers.scripted import Step
from k3agent.types import (
    Finish,
    Origin,
    Role,
)


async def test_interrupting_an_answer_keeps_what_arrived(tmp_path: Path) -> None:
    slow = Step(text="word " * 200, reasoning="r", piece=5, piece_delay_s=0.01)
    run = await start(tmp_path, [slow, DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(TextStreamed, 5)
    run.session.interrupt("the user pressed Esc")
    end = await task
    assert end.outcome is TurnOutcome.INTERRUPTED and end.detail == "the user pressed Esc"
    assert run.last.finish is Finish.INTERRUPTED and 0 < len(run.last.text) < 1000
    assert (await run.session.submit("go on")).outcome is TurnOutcome.SUCCESS
    check_prefixes(run.client.requests)
    request = run.session._store.requests(run.session.id)[0]
    assert (request.outcome, request.usage, request.cost_usd) == ("interrupted", None, None)
    assert run.session.receipt.num_unmeasured == 1
    await run.session.aclose()


async def test_a_turn_interrupted_behind_its_last_answer_has_only_its_checks_left(tmp_path: Path) -> None:
    check = "test -f begun || { touch begun; sleep 60; }"
    run = await start(tmp_path, [DONE], checks=(check,))
    turn = asyncio.create_task(run.session.submit("go"))
    async with asyncio.timeout(30):
        while not (run.workspace / "begun").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
    run.session.interrupt("signal SIGTERM")
    assert (await turn).outcome is TurnOutcome.INTERRUPTED and run.last.text == "Done."
    again = await run.session.continue_turn(reopen=True)
    assert again is not None and again.outcome is TurnOutcome.SUCCESS
    assert len(run.client.requests) == 1 and run.last.text == "Done.", "the model was not asked again"
    await run.session.aclose()


async def test_interrupting_calls_gives_each_a_result(tmp_path: Path) -> None:
    calls = (
        call("glob", pattern="*"),
        call("shell", command="sleep 30"),
        call("write", path="a", content=""),
    )
    run = await start(tmp_path, [step(*calls), DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(CallStarted, 2)
    run.session.interrupt("the user pressed Esc")
    run.session.interrupt("again")
    assert (await task).outcome is TurnOutcome.INTERRUPTED
    assert len(run.results) == 3 and not (run.workspace / "a").exists()
    assert "the user pressed Esc" in run.results[1] and "the user pressed Esc" in run.results[2]
    assert (await run.session.submit("go on")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_interrupting_while_calls_are_written_gives_each_a_result(tmp_path: Path) -> None:
    slow = Step(calls=(call("write", path="a", content="x" * 400),), piece=5, piece_delay_s=0.01)
    run = await start(tmp_path, [slow, DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(ArgumentsStreamed, 5)
    run.session.interrupt("the user pressed Esc")
    assert (await task).outcome is TurnOutcome.INTERRUPTED
    assert run.results == ["Not run: the user pressed Esc."] and run.last.role is Role.TOOL
    assert not any(run.workspace.iterdir())
    assert (await run.session.submit("go on")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_interrupting_before_the_turn_has_begun(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE, DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await asyncio.sleep(0)
    run.session.interrupt("at once")
    end = await task
    assert (end.outcome, end.detail) == (TurnOutcome.INTERRUPTED, "at once")
    assert run.client.requests == []
    assert (await run.session.submit("now")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_interrupting_a_question_is_no_answer(tmp_path: Path) -> None:
    run = await start(
        tmp_path,
        [step(call("write", path="a", content="")), DONE],
        permission_mode="default",
        is_interactive=True,
    )
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(ApprovalAsked)
    run.session.interrupt("the user pressed Esc")
    assert (await task).outcome is TurnOutcome.INTERRUPTED
    run.session.answer(run.of(ApprovalAsked)[0].call_id, Decision.ALLOW)
    assert not any(run.workspace.iterdir()) and len(run.results) == 1
    await run.session.aclose()


@pytest.mark.parametrize("info", [FULL, COMPACT])
async def test_a_turn_that_was_stopped_can_be_reopened(tmp_path: Path, info: Any) -> None:
    answers = [step(call("shell", command="sleep 30")), step(call("write", path="a", content="")), DONE]
    run = await start(tmp_path, answers, info=info)
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(CallStarted)
    run.session.interrupt("SIGTERM")
    await task
    await run.session.aclose()
    again = await Session.resume(run.session.id, options(tmp_path, run.client))
    assert await again.continue_turn() is None
    end = await again.continue_turn(reopen=True)
    assert end is not None and end.outcome is TurnOutcome.SUCCESS and (run.workspace / "a").exists()
    assert await again.continue_turn(reopen=True) is None
    check_prefixes(run.client.requests)
    await again.aclose()


async def test_a_stopped_answer_is_reopened_with_a_word_of_the_harness(tmp_path: Path) -> None:
    slow = Step(text="word " * 200, piece=5, piece_delay_s=0.01)
    run = await start(tmp_path, [slow, DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(TextStreamed)
    run.session.interrupt("SIGTERM")
    await task
    end = await run.session.continue_turn(reopen=True)
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    assert run.client.requests[-1].messages[-1].origin is Origin.HARNESS
    await run.session.aclose()


async def test_a_timeout_inside_a_tool_is_not_the_limit_of_time(tmp_path: Path, monkeypatch: Any) -> None:
    run = await start(tmp_path, [step(call("glob", pattern="*")), DONE], limits=Limits(max_time_s=60))

    async def crash(self: Any, turn: int) -> None:
        raise TimeoutError("something else")

    monkeypatch.setattr("k3agent.agent.loop.TurnLoop.run", lambda self: crash(self, 1))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "something else" in end.detail
    await run.session.aclose()


async def test_cancelling_the_caller_ends_the_turn_in_good_order(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="sleep 30")), DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(CallStarted)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.of(TurnEnded)[0].outcome is TurnOutcome.INTERRUPTED
    assert run.session._store.last_turn(run.session.id).outcome == "interrupted"  # type: ignore[union-attr]
    await run.session.aclose()


async def test_closing_ends_what_runs(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="sleep 30")), DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(CallStarted)
    await run.session.aclose()
    assert (await task).outcome is TurnOutcome.INTERRUPTED


async def test_one_turn_at_a_time(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="sleep 0.5")), DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await asyncio.sleep(0.05)
    with pytest.raises(K3AgentError, match="in a turn already"):
        await run.session.submit("me too")
    assert (await task).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_interrupting_an_idle_session_is_nothing(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE])
    run.session.interrupt("no reason")
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()

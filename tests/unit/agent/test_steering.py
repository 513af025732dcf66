"""What a person in front of it adds to a turn: words into it, changed calls, going back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.agents import ReplayClient, Run, call, options, start, step

from k3agent.agent.session import Session
from k3agent.errors import ConfigError, StoreError
from k3agent.events import ApprovalAsked, Decision, MessageAdded, TurnOutcome
from k3agent.providers.scripted import Step
from k3agent.types import Origin


def asked(run: Run, answer) -> None:
    """Answer each question with `answer(session, event)`."""
    run.session.subscribe(
        lambda event: answer(run.session, event) if isinstance(event, ApprovalAsked) else None
    )


async def test_words_into_a_turn_come_after_its_calls(tmp_path: Path) -> None:
    run = await start(
        tmp_path, [step(call("shell", command="echo one")), Step(text="two"), Step(text="three")]
    )
    steered = False

    def steer(event) -> None:
        nonlocal steered
        if isinstance(event, MessageAdded) and event.message.calls and not steered:
            steered = True
            run.session.steer("in blue, please")

    run.session.subscribe(steer)
    ended = await run.session.submit("paint")
    assert ended.outcome is TurnOutcome.SUCCESS
    request = run.client.requests[1]
    assert request.messages[-2].results and request.messages[-1].text == "in blue, please"
    assert request.messages[-1].origin is Origin.HUMAN
    await run.session.aclose()


async def test_words_said_as_the_model_ends_make_it_go_on(tmp_path: Path) -> None:
    run = await start(tmp_path, [Step(text="done"), Step(text="done again")])
    run.session.subscribe(
        lambda event: (
            run.session.steer("one more thing")
            if isinstance(event, MessageAdded) and event.message.text == "done"
            else None
        )
    )
    await run.session.submit("go")
    assert run.last.text == "done again" and run.session.take_back_steering() == []
    await run.session.aclose()


async def test_a_changed_call_runs_changed_and_the_model_is_told(tmp_path: Path) -> None:
    script = [step(call("shell", command="touch wrong")), Step(text="ok")]
    run = await start(tmp_path, script, permission_mode="default", is_interactive=True)
    right = json.dumps({"command": "touch right"})
    asked(run, lambda session, event: session.answer(event.call_id, Decision.ALLOW, arguments=right))
    await run.session.submit("go")
    assert (run.workspace / "right").exists() and not (run.workspace / "wrong").exists()
    assert right in run.results[0]
    await run.session.aclose()


@pytest.mark.parametrize("arguments", ["no json at all {", '{"command": 7}', '{"command": "touch denied"}'])
async def test_a_change_that_cannot_be_used_runs_nothing(tmp_path: Path, arguments: str) -> None:
    script = [step(call("shell", command="touch wrong")), Step(text="ok")]
    run = await start(
        tmp_path, script, permission_mode="default", is_interactive=True, deny=("shell(touch denied:*)",)
    )
    asked(run, lambda session, event: session.answer(event.call_id, Decision.ALLOW, arguments=arguments))
    await run.session.submit("go")
    assert "permission denied" in run.results[0] and list(run.workspace.iterdir()) == []
    await run.session.aclose()


async def test_the_mode_changes_from_the_next_call_on(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("write", path="a", content="x")), Step(text="ok")])
    run.session.set_permission_mode("plan")
    await run.session.submit("go")
    assert "plan mode" in run.results[0]
    with pytest.raises(ConfigError, match="unknown"):
        run.session.set_permission_mode("everything")
    await run.session.aclose()


async def test_going_back_leaves_a_branch_and_survives_a_resume(tmp_path: Path) -> None:
    run = await start(tmp_path, [Step(text="one"), Step(text="two"), Step(text="three")])
    await run.session.submit("first")
    await run.session.submit("second")
    second = next(message for message in run.session.messages if message.text == "second")
    assert run.session.rewind(second.id) == "second"
    assert run.last.text == "one"
    with pytest.raises(StoreError, match="no message"):
        run.session.rewind(second.id)
    await run.session.submit("other")
    texts = [message.text for message in run.session.messages if message.origin is not Origin.HARNESS]
    assert texts[:3] == ["first", "one", "other"]
    session_id = run.session.id
    await run.session.aclose()
    again = await Session.resume(session_id, options(tmp_path, ReplayClient([])))
    assert [message.text for message in again.messages if message.origin is not Origin.HARNESS] == texts
    await again.aclose()

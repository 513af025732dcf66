"""What `k3agent stats` counts."""

from __future__ import annotations

from pathlib import Path

from support.agents import DONE, call, options, start, step
from support.fleet import FleetClient, fan_out, item

from k3agent.agent.session import Limits, Session
from k3agent.events import AnyEvent, CallStarted, TurnOutcome
from k3agent.providers.scripted import Fault, ScriptedCall, ScriptedClient, Step
from k3agent.stats import figures
from k3agent.store.sessions import SessionStore


async def test_turns_calls_and_checks(tmp_path: Path) -> None:
    answers = [step(call("glob", pattern="*"), call("read", path="none"), call("no_such_tool")), DONE, DONE]
    run = await start(tmp_path, answers, checks=("false",), check_retries=1)
    assert (await run.session.submit("go")).outcome is TurnOutcome.CHECKS_FAILED
    await run.session.aclose()
    store = SessionStore(tmp_path / "home")
    found = figures(store, None)
    store.close()
    assert (found["sessions"], found["turns"], found["turns_without_success"]) == (1, 1, 1)
    assert found["turns_with_failing_checks"] == 1 and found["restarts"] == 0
    assert (found["tool_calls_tried"], found["tool_calls_valid"], found["tool_calls_succeeded"]) == (3, 2, 1)
    assert found["tool_calls_failed"] == 1 and found["model_calls"] == 3
    assert found["human_corrections"] == 0


async def test_retries_restarts_and_words_into_a_turn(tmp_path: Path) -> None:
    fault = Fault(kind="status", status=500, times=2)
    look = ScriptedCall(name="glob", arguments={"pattern": "*"})
    client = ScriptedClient(
        [Step(calls=(look,), faults=(fault,)), Step(text="UNFINISHED: half."), Step(text="Whole.")]
    )
    session = await Session.create(options(tmp_path, client, limits=Limits(max_turns=2)))

    def correct(event: AnyEvent) -> None:
        if isinstance(event, CallStarted):
            session.steer("only the first one")

    session.subscribe(correct)
    assert (await session.submit("go")).outcome is TurnOutcome.MAX_TURNS
    session.receipt.num_turns = 0
    end = await session.continue_turn(reopen=True)
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    await session.aclose()
    store = SessionStore(tmp_path / "home")
    found = figures(store, None)
    store.close()
    assert found["model_calls_retried"] == 2 and found["restarts"] == 1
    assert found["human_corrections"] == 1 and found["turns"] == 1


async def test_a_folder_pays_for_its_subagents(tmp_path: Path) -> None:
    (tmp_path / "ws" / "sub").mkdir(parents=True)
    client = FleetClient({"go": fan_out(item("look", folder="sub")), "look": [DONE]})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    await run.session.aclose()
    store = SessionStore(tmp_path / "home")
    here, everywhere = figures(store, tmp_path / "ws"), figures(store, None)
    store.close()
    assert here == everywhere and here["sessions"] == 2 and here["cost_usd"] > 0

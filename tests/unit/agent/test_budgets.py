"""One account for a session and its subagents: shares, reserve, and a clean hand-off."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from support.agents import DONE, call, options, start, step
from support.fleet import FleetClient, fan_out, item

from k3agent.agent.options import Limits, TaskLimits
from k3agent.agent.session import Session
from k3agent.agent.tasks import TaskGraph
from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.events import TurnOutcome
from k3agent.types import Request


def endless(name: str) -> list[Any]:
    """Looks at something new for ever, but reports when it is told that this is its last answer."""

    def answer(request: Request) -> Any:
        if "your last answer in this run" in request.messages[-1].text:
            return step(text=f"UNFINISHED {name}: half of it is there.")
        return step(call("glob", pattern=f"{len(request.messages)}*"))

    return [answer] * 200


def workspace(root: Path) -> None:
    (root / "ws").mkdir(parents=True)
    (root / "ws" / "a.py").write_text("x = 1\n")


@pytest.mark.parametrize(
    "limits", [Limits(max_turns=12), Limits(max_tokens=60_000), Limits(max_budget_usd=0.15)], ids=str
)
async def test_the_tree_stays_within_the_limits_and_everybody_hands_off(
    tmp_path: Path, limits: Limits
) -> None:
    workspace(tmp_path)
    stories = {"go": [*fan_out(item("one"), item("two"))[:1], step(text="UNFINISHED: both are half done.")]}
    client = FleetClient({**stories, "one": endless("one"), "two": endless("two")})
    run = await start(tmp_path, client=client, limits=limits)
    end = await run.session.submit("go")
    receipt = run.session.receipt
    tokens = receipt.usage.input_tokens + receipt.usage.output_tokens
    assert limits.max_turns is None or receipt.num_turns <= limits.max_turns
    assert limits.max_tokens is None or tokens <= limits.max_tokens
    assert limits.max_budget_usd is None or receipt.cost_usd <= limits.max_budget_usd
    # Both subagents reported, and the session itself had an answer left.
    assert "one: half of it is there." in run.results[0] and "two: half of it is there." in run.results[0]
    assert run.session.messages[-1].text.startswith("UNFINISHED: both")
    assert end.outcome in (
        TurnOutcome.SUCCESS,
        TurnOutcome.MAX_TURNS,
        TurnOutcome.MAX_TOKENS,
        TurnOutcome.MAX_BUDGET,
    )
    nodes = TaskGraph(run.session._store, run.session.id).nodes()
    assert sum(node.num_turns for node in nodes) + 2 == receipt.num_turns
    assert sum(node.num_tokens for node in nodes) == receipt.subagents_tokens
    await run.session.aclose()


async def test_a_task_keeps_to_its_own_budget(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("one", max_turns=3)), "one": endless("one")})
    run = await start(tmp_path, client=client)
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert client.count("one") == 3 and "half of it is there" in run.results[0]
    await run.session.aclose()


async def test_a_task_cannot_take_more_than_the_settings_give(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("one", max_turns=50)), "one": endless("one")})
    run = await start(tmp_path, client=client, tasks=TaskLimits(max_turns=4))
    await run.session.submit("go")
    assert client.count("one") == 4
    await run.session.aclose()


async def test_what_was_used_before_a_pause_counts(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("one", max_turns=6)), "one": endless("one")})

    async def fail(name: str, position: int) -> None:
        if (name, position) == ("one", 4):
            raise ProviderError("503", kind=ProviderErrorKind.SERVER, status=503)

    client.hook = fail
    run = await start(tmp_path, client=client)
    assert (await run.session.submit("go")).outcome is TurnOutcome.PROVIDER
    await run.session.aclose()
    client.hook = None
    session = await Session.resume(run.session.id, options(tmp_path, client))
    await session.continue_turn(reopen=True)
    node = TaskGraph(session._store, session.id).nodes()[0]
    # The call that failed is no step of the task.
    assert (client.count("one"), node.num_turns) == (7, 6) and "half of it is there" in node.answer
    await session.aclose()


async def test_a_run_without_room_for_subagents_says_so(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("one"), item("two")), "one": [DONE], "two": [DONE]})
    run = await start(tmp_path, client=client, limits=Limits(max_turns=4))
    await run.session.submit("go")
    assert "its budget is used up" in run.results[0]
    await run.session.aclose()


async def test_a_fan_out_dearer_than_the_budget_does_not_start(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(*(item(f"t{n}") for n in range(16)))})
    run = await start(tmp_path, client=client, limits=Limits(max_budget_usd=0.05))
    with contextlib.suppress(KeyError):
        await run.session.submit("go")
    assert "the budget has $0.0" in run.results[0] and len(client.asked) == 2
    await run.session.aclose()

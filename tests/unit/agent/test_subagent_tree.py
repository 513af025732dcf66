"""Subagents with subagents of their own: bounds, budgets, pauses and kills of the whole tree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.agents import DONE, Run, call, options, start, step
from support.fleet import FleetClient, fan_out, item

from k3agent.agent.options import Limits, TaskLimits
from k3agent.agent.session import Session
from k3agent.agent.tasks import TaskGraph, TaskNode
from k3agent.commands.tasks import tree_rows
from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.events import TaskChanged, TurnOutcome
from k3agent.stats import figures
from k3agent.store.sessions import SessionStore
from k3agent.types import Request, SessionId

DEEP = TaskLimits(max_depth=2)
SPLIT = fan_out(item("inner", mode="write", folder="deep"), item("look"))[0]
STORIES: dict[str, Any] = {
    "go": fan_out(item("outer", mode="write", folder="sub"), item("side")),
    "outer": [SPLIT, step(text="Both are done.")],
    "inner": [step(call("write", path="b.py", content="y\n")), step(text="b.py is there.")],
    "look": [step(call("read", path="../a.py")), step(text="x is 1.")],
    "side": [step(call("read", path="a.py")), step(text="x is 1.")],
}


def workspace(root: Path) -> Path:
    (root / "ws" / "sub" / "deep").mkdir(parents=True)
    (root / "ws" / "a.py").write_text("x = 1\n")
    return root / "ws"


def nodes_of(store: SessionStore, session_id: str) -> dict[str, TaskNode]:
    """The nodes of the whole tree by their titles."""
    found: dict[str, TaskNode] = {}
    for node in TaskGraph(store, SessionId(session_id)).nodes():
        found[node.title] = node
        found.update(nodes_of(store, node.child))
    return found


async def begin(root: Path, stories: Any = STORIES, **more: Any) -> tuple[Run, FleetClient]:
    client = FleetClient(stories)
    more.setdefault("tasks", DEEP)
    return await start(root, client=client, **more), client


async def test_one_level_is_the_default(tmp_path: Path) -> None:
    workspace(tmp_path)
    run, client = await begin(tmp_path, tasks=TaskLimits())
    await run.session.submit("go")
    tools = {name: {spec.name for spec in request.tools} for name, request in client.requests}
    assert "task" in tools["go"] and "task" not in tools["outer"] and "inner" not in tools
    await run.session.aclose()


async def test_a_subagent_starts_its_own_and_they_none(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    run, client = await begin(tmp_path)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    assert (ws / "sub" / "deep" / "b.py").read_text() == "y\n"
    tools = {name: {spec.name for spec in request.tools} for name, request in client.requests}
    assert "task" in tools["outer"] and "ask" not in tools["outer"]
    assert not {"task", "ask"} & tools["inner"]
    assert run.results[0].count(": done") == 2 and "Both are done." in run.results[0]
    # Whoever is above has the account of all below, and is told while they work.
    store = run.session._store
    nodes = nodes_of(store, run.session.id)
    outer, own = nodes["outer"], store.requests(nodes["outer"].child)
    assert outer.num_turns == len(own) + nodes["inner"].num_turns + nodes["look"].num_turns == 6
    assert run.session.receipt.num_turns == len(client.asked)
    seen = [event.num_turns for event in run.of(TaskChanged) if event.title == "outer"]
    assert {1, 3, 5} & set(seen), seen
    # Shown as a tree, and counted in the figures of the folder.
    rows = [row.strip()[:20] for row in tree_rows(store, run.session.id)]
    assert [row.split()[2] for row in rows] == ["outer", "inner", "look", "side"]
    assert figures(store, ws)["sessions"] == 5
    store.close()
    await run.session.aclose()


@pytest.mark.parametrize("path", ["../b.py", "../../b.py", "../../ws/sub/x.py"])
async def test_nobody_below_writes_outside_of_its_own_folder(tmp_path: Path, path: str) -> None:
    ws = workspace(tmp_path)
    before = sorted(str(one) for one in ws.rglob("*"))
    tries = [
        step(call("write", path=path, content="y\n")),
        step(call("shell", command=f"echo y > {path}")),
        step(text="Refused."),
    ]
    run, _ = await begin(tmp_path, {**STORIES, "inner": tries}, allow=("write", "shell"))
    await run.session.submit("go")
    inner = nodes_of(run.session._store, run.session.id)["inner"]
    rows = run.session._store.calls(inner.child)
    assert [row.state.value for row in rows] == ["denied", "denied"], [row.result for row in rows]
    assert sorted(str(one) for one in ws.rglob("*")) == before
    await run.session.aclose()


async def test_deny_rules_mean_the_same_place_on_every_level(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    run, _ = await begin(tmp_path, deny=("write(sub/deep/b.py)",))
    await run.session.submit("go")
    assert not (ws / "sub" / "deep" / "b.py").exists()
    await run.session.aclose()


async def test_below_a_reader_all_only_read(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    run, _ = await begin(tmp_path, {**STORIES, "go": fan_out(item("outer", folder="sub"))})
    await run.session.submit("go")
    assert not (ws / "sub" / "deep" / "b.py").exists()
    await run.session.aclose()


async def test_all_levels_together_are_no_more_at_a_time_than_may_be(tmp_path: Path) -> None:
    workspace(tmp_path)
    leaves = [f"leaf {number}" for number in range(8)]
    stories: dict[str, Any] = {name: STORIES["look"] for name in leaves}
    stories["go"] = fan_out(item("one"), item("two"))
    stories["one"] = [fan_out(*map(item, leaves[:4]))[0], DONE]
    stories["two"] = [fan_out(*map(item, leaves[4:]))[0], DONE]
    run, client = await begin(tmp_path, stories, tasks=TaskLimits(max_depth=2, max_parallel=4))
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert client.most_busy <= 4
    await run.session.aclose()


def endless(name: str) -> list[Any]:
    def answer(request: Request) -> Any:
        if "your last answer in this run" in request.messages[-1].text:
            return step(text=f"UNFINISHED {name}: half of it is there.")
        return step(call("glob", pattern=f"{len(request.messages)}*"))

    return [answer] * 200


def splitting(name: str, *items: dict[str, Any]) -> list[Any]:
    """Hands everything on, then goes on for ever."""
    return [fan_out(*items)[0], *endless(name)]


@pytest.mark.parametrize(
    "limits", [Limits(max_turns=24), Limits(max_tokens=150_000), Limits(max_budget_usd=0.4)], ids=str
)
async def test_the_limits_hold_for_the_whole_tree(tmp_path: Path, limits: Limits) -> None:
    workspace(tmp_path)
    stories = {
        "go": [fan_out(item("outer"), item("side"))[0], step(text="UNFINISHED: all is half done.")],
        "outer": splitting("outer", item("inner"), item("look")),
        **{name: endless(name) for name in ("inner", "look", "side")},
    }
    run, _ = await begin(tmp_path, stories, limits=limits)
    await run.session.submit("go")
    receipt, store = run.session.receipt, run.session._store
    rows = [row for one in store.subtree(run.session.id) for row in store.requests(one)]
    tokens = sum(row.usage.input_tokens + row.usage.output_tokens for row in rows if row.usage is not None)
    cost = sum(row.cost_usd or 0.0 for row in rows)
    assert (receipt.num_turns, round(receipt.cost_usd, 9)) == (len(rows), round(cost, 9))
    assert limits.max_turns is None or len(rows) <= limits.max_turns
    assert limits.max_tokens is None or tokens <= limits.max_tokens
    assert limits.max_budget_usd is None or cost <= limits.max_budget_usd
    assert {"inner", "look", "outer", "side"} <= nodes_of(store, run.session.id).keys()
    assert "outer: half of it is there." in run.results[0]
    await run.session.aclose()


async def test_a_subtree_keeps_to_the_budget_of_its_task(tmp_path: Path) -> None:
    workspace(tmp_path)
    stories = {
        "go": fan_out(item("outer", max_turns=9)),
        "outer": splitting("outer", item("inner"), item("look")),
        **{name: endless(name) for name in ("inner", "look")},
    }
    run, client = await begin(tmp_path, stories)
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert sum(client.count(name) for name in ("outer", "inner", "look")) <= 9
    await run.session.aclose()


async def test_a_failing_endpoint_pauses_all_levels_and_resume_finishes_them(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    run, client = await begin(tmp_path)
    done, inner_is_done = asyncio.Event(), asyncio.Event()

    async def fail(name: str, position: int) -> None:
        if name == "inner" and position == 1:
            inner_is_done.set()
        if name == "side" and position == 1:
            await asyncio.wait_for(done.wait(), 30)
            raise ProviderError("503", kind=ProviderErrorKind.SERVER, status=503)
        if name == "look" and position == 1:
            await inner_is_done.wait()
            done.set()
            await asyncio.sleep(60)

    client.hook = fail
    end = await asyncio.wait_for(run.session.submit("go"), 40)
    assert end.outcome is TurnOutcome.PROVIDER
    store = SessionStore(tmp_path / "home")
    before = {title: node.state.value for title, node in nodes_of(store, run.session.id).items()}
    assert before == {"outer": "paused", "side": "paused", "inner": before["inner"], "look": "paused"}
    assert before["inner"] in ("paused", "done")
    known = {title: node.child for title, node in nodes_of(store, run.session.id).items()}
    await run.session.aclose()
    client.hook, asked = None, client.count("outer")
    session = await Session.resume(run.session.id, options(tmp_path, client, tasks=DEEP))
    again = await session.continue_turn(reopen=True)
    assert again is not None and again.outcome is TurnOutcome.SUCCESS
    nodes = nodes_of(store, session.id)
    assert {title: node.child for title, node in nodes.items()} == known
    assert {node.state.value for node in nodes.values()} == {"done"}
    assert client.count("outer") == asked + 1, "only its report was asked for"
    assert (ws / "sub" / "deep" / "b.py").read_text() == "y\n"
    assert sum(row.tool == "write" for one in store.subtree(session.id) for row in store.calls(one)) == 1
    store.close()
    await session.aclose()


async def test_an_interrupted_tree_is_finished_by_a_resume(tmp_path: Path) -> None:
    workspace(tmp_path)
    run, client = await begin(tmp_path)
    reached = asyncio.Event()

    async def hang(name: str, position: int) -> None:
        if name == "look" and position == 1:
            reached.set()
            await asyncio.sleep(60)

    client.hook = hang
    turn = asyncio.create_task(run.session.submit("go"))
    await asyncio.wait_for(reached.wait(), 30)
    run.session.interrupt("signal SIGTERM")
    assert (await asyncio.wait_for(turn, 30)).outcome is TurnOutcome.INTERRUPTED
    store = SessionStore(tmp_path / "home")
    known = {title: node.child for title, node in nodes_of(store, run.session.id).items()}
    assert nodes_of(store, run.session.id)["look"].state.value == "interrupted"
    await run.session.aclose()
    client.hook, asked = None, client.count("outer")
    session = await Session.resume(run.session.id, options(tmp_path, client, tasks=DEEP))
    again = await session.continue_turn(reopen=True)
    assert again is not None and again.outcome is TurnOutcome.SUCCESS
    nodes = nodes_of(store, session.id)
    assert {title: node.child for title, node in nodes.items()} == known
    assert {node.state.value for node in nodes.values()} == {"done"}
    assert client.count("outer") == asked + 1
    store.close()
    await session.aclose()


async def test_what_the_tree_used_before_a_kill_counts(tmp_path: Path) -> None:
    """The budget of a task is that of its subtree, over all lives of the process."""
    workspace(tmp_path)
    stories = {
        "go": fan_out(item("outer", max_turns=10)),
        "outer": splitting("outer", item("inner")),
        "inner": endless("inner"),
    }
    run, client = await begin(tmp_path, stories)

    async def fail(name: str, position: int) -> None:
        if (name, position) == ("inner", 4):
            raise ProviderError("503", kind=ProviderErrorKind.SERVER, status=503)

    client.hook = fail
    assert (await run.session.submit("go")).outcome is TurnOutcome.PROVIDER
    await run.session.aclose()
    client.hook = None
    session = await Session.resume(run.session.id, options(tmp_path, client, tasks=DEEP))
    await session.continue_turn(reopen=True)
    store = session._store
    outer = nodes_of(store, session.id)["outer"]
    rows = [row for one in store.subtree(outer.child) for row in store.requests(one)]
    assert sum(not row.outcome.startswith("failed") for row in rows) <= 10
    assert outer.num_turns <= 10
    await session.aclose()

"""Subagents: sessions of their own, run by the `task` tool."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.agents import COMPACT, FULL, call, check_request, options, start, step
from support.fleet import FleetClient, fan_out, item

from k3agent.agent import subagent
from k3agent.agent.session import Session
from k3agent.agent.tasks import TaskGraph, TaskState
from k3agent.events import (
    AnyEvent,
    ApprovalAsked,
    CallProgressed,
    Noticed,
    TaskChanged,
    TaskMessageAdded,
    TurnOutcome,
)

LOOK = [step(call("read", path="a.py")), step(text="a.py says x = 1.")]


def workspace(root: Path) -> Path:
    (root / "ws" / "sub").mkdir(parents=True)
    (root / "ws" / "a.py").write_text("x = 1\n")
    return root / "ws"


async def test_a_subagent_answers_and_the_session_waits_without_a_model_call(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("look")), "look": LOOK})
    run = await start(tmp_path, client=client)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    assert client.asked == [("go", 0), ("look", 0), ("look", 1), ("go", 1)]
    assert "look: done (2 model calls" in run.results[0] and "a.py says x = 1." in run.results[0]
    # The child got its brief and nothing of this conversation.
    first = client.requests[1][1]
    assert "Do look." in first.messages[-1].text and all(m.text != "go" for m in first.messages)
    assert not {"task", "ask"} & {tool.name for tool in first.tools}
    for _, request in client.requests:
        check_request(request)
    store = run.session._store
    node = TaskGraph(store, run.session.id).nodes()[0]
    assert node.state is TaskState.DONE and node.num_turns == 2 and node.cost_usd > 0
    assert [message.text for message in store.messages(node.child)][-1] == "a.py says x = 1."
    # One account: the requests of both are in the receipt.
    assert run.session.receipt.num_turns == 4
    own = sum(row.cost_usd or 0 for row in store.requests(run.session.id))
    assert run.session.receipt.cost_usd == pytest.approx(own + node.cost_usd)
    states = [event.state for event in run.of(TaskChanged)]
    assert states[0] == "waiting" and states[1] == "running" and states[-1] == "done"
    assert [event.message.text for event in run.of(TaskMessageAdded)][-1] == "a.py says x = 1."
    assert any("look: " in event.text for event in run.of(CallProgressed))
    await run.session.aclose()


async def test_the_price_is_told_before_anything_starts(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("look"), item("see")), "look": LOOK, "see": LOOK})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    told = next(event for event in run.of(Noticed) if event.text.startswith("2 subagents: about $"))
    assert told.data["usd"] > 0 and told.seq < run.of(TaskMessageAdded)[0].seq
    await run.session.aclose()


async def test_a_fan_out_above_the_cap_is_refused_where_nobody_is_there(tmp_path: Path) -> None:
    from k3agent.agent.options import TaskLimits

    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("look")), "look": LOOK})
    run = await start(tmp_path, client=client, tasks=TaskLimits(fan_out_usd=0.0001))
    await run.session.submit("go")
    assert client.count("look") == 0
    assert "nobody can be asked here" in run.results[0]
    assert TaskGraph(run.session._store, run.session.id).nodes() == []
    await run.session.aclose()


async def test_side_by_side_and_in_order(tmp_path: Path) -> None:
    workspace(tmp_path)
    items = (item("one"), item("two"), item("three", after=[1, 2]))
    client = FleetClient({"go": fan_out(*items), "one": LOOK, "two": LOOK, "three": LOOK})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    assert client.most_busy == 2
    names = [name for name, _ in client.asked]
    assert names.index("three") > max(i for i, n in enumerate(names) if n in ("one", "two"))
    await run.session.aclose()


async def test_writers_in_one_folder_take_turns(tmp_path: Path) -> None:
    workspace(tmp_path)
    items = (item("one", mode="write"), item("two", mode="write", folder="sub"))
    client = FleetClient({"go": fan_out(*items), "one": LOOK, "two": [step(text="Nothing to do.")]})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    assert client.most_busy == 1
    assert run.results[0].count(": done") == 2
    await run.session.aclose()


async def test_a_follower_of_a_failed_task_is_given_up(tmp_path: Path) -> None:
    workspace(tmp_path)
    endless = [step(call("read", path="a.py"), text=str(n)) for n in range(9)]
    items = (item("one", max_turns=2), item("two", after=[1]))
    client = FleetClient({"go": fan_out(*items), "one": endless, "two": LOOK})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    assert client.count("two") == 0 and client.count("one") == 2
    assert "which it waits for, failed" in run.results[0]
    await run.session.aclose()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("write", {"path": "../b.py", "content": "y\n"}),
        ("edit", {"path": "../a.py", "old": "x", "new": "y"}),
        ("shell", {"command": "echo y > ../b.py"}),
        ("shell", {"command": "cd .. && git init"}),
        ("shell", {"command": "cp ../a.py ../b.py"}),
    ],
)
async def test_a_subagent_writes_in_its_folder_only(
    tmp_path: Path, name: str, arguments: dict[str, str]
) -> None:
    ws = workspace(tmp_path)
    before = sorted(path.name for path in ws.iterdir())
    tries = [step(call("read", path="../a.py")), step(call(name, **arguments)), step(text="Refused.")]
    client = FleetClient({"go": fan_out(item("try", mode="write", folder="sub")), "try": tries})
    run = await start(tmp_path, client=client, allow=("write", "edit", "shell(cp:*)", "shell(git:*)"))
    await run.session.submit("go")
    node = TaskGraph(run.session._store, run.session.id).nodes()[0]
    rows = run.session._store.calls(node.child)
    assert [row.state.value for row in rows] == ["done", "denied"], [row.result for row in rows]
    assert sorted(path.name for path in ws.iterdir()) == before and (ws / "a.py").read_text() == "x = 1\n"
    await run.session.aclose()


@pytest.mark.parametrize("folder", [".git", ".git/hooks", ".github", ".vscode", ".k3agent"])
async def test_no_subagent_works_in_a_protected_folder(tmp_path: Path, folder: str) -> None:
    ws = workspace(tmp_path)
    (ws / folder).mkdir(parents=True, exist_ok=True)
    tries = [step(call("write", path="new", content="y\n")), step(call("shell", command="echo y > new"))]
    client = FleetClient({"go": fan_out(item("try", mode="write", folder=folder)), "try": tries})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    assert not (ws / folder / "new").exists()
    assert not TaskGraph(run.session._store, run.session.id).nodes()
    await run.session.aclose()


async def test_deny_rules_mean_the_same_place_in_a_subagents_folder(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    tries = [step(call("write", path="key.txt", content="y\n")), step(text="Refused.")]
    client = FleetClient({"go": fan_out(item("try", mode="write", folder="sub")), "try": tries})
    run = await start(tmp_path, client=client, deny=("write(sub/key.txt)",))
    await run.session.submit("go")
    assert not (ws / "sub" / "key.txt").exists()
    await run.session.aclose()


async def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    tries = [step(call("write", path="b.py", content="y\n")), step(text="Refused.")]
    client = FleetClient({"go": fan_out(item("try")), "try": tries})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    assert not (ws / "b.py").exists()
    await run.session.aclose()


async def test_the_small_model_has_no_subagents(tmp_path: Path) -> None:
    from k3agent.agent.building import frozen_part
    from k3agent.types import SessionId

    client = FleetClient({}, info=COMPACT)
    small = frozen_part(options(tmp_path, client), SessionId("s"))
    assert "task" not in {tool.name for tool in small.tools}
    large = frozen_part(options(tmp_path, FleetClient({}, info=FULL)), SessionId("s"))
    assert "task" in {tool.name for tool in large.tools}


async def test_subagents_are_left_out_of_the_newest_session_and_deleted_with_theirs(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("look")), "look": LOOK})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    await run.session.aclose()
    from k3agent.store.sessions import SessionStore

    store = SessionStore(tmp_path / "home")
    rows = store.list_sessions(ws)
    assert len(rows) == 2 and {row.owner for row in rows} == {"", run.session.id}
    latest = store.latest(ws)
    assert latest is not None and latest.id == run.session.id
    store.delete(run.session.id)
    assert store.list_sessions() == []
    store.close()
    assert isinstance(run.session, Session)


async def test_one_that_cannot_be_started_takes_no_answer_of_the_others_away(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("look"), item("last", after=[1])), "look": LOOK})
    run = await start(tmp_path, client=client)

    async def block(name: str, position: int) -> None:
        if (name, position) == ("look", 1):
            last = TaskGraph(run.session._store, run.session.id).nodes()[1]
            # Where its folder for outputs is to be.
            (tmp_path / "home" / "outputs" / last.child).write_text("")

    client.hook = block
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert "a.py says x = 1." in run.results[0] and "last: not done: " in run.results[0], run.results[0]
    states = [node.state for node in TaskGraph(run.session._store, run.session.id).nodes()]
    assert states == [TaskState.DONE, TaskState.FAILED]
    await run.session.aclose()


async def test_a_crash_leaves_no_task_running_and_tells_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("look"), item("last", after=[1])), "look": LOOK})
    run = await start(tmp_path, client=client)

    def crash(*arguments: object, **more: object) -> str:
        raise RuntimeError("no words")

    prompt = subagent.FanOut._prompt
    monkeypatch.setattr(
        subagent.FanOut,
        "_prompt",
        lambda self, node, folder: (crash if node.title == "last" else prompt)(self, node, folder),
    )
    await run.session.submit("go")
    assert "crashed" in run.results[0] and "a.py says x = 1." in run.results[0], run.results[0]
    states = [node.state for node in TaskGraph(run.session._store, run.session.id).nodes()]
    assert states == [TaskState.DONE, TaskState.INTERRUPTED]
    await run.session.aclose()


async def test_a_subagent_that_wants_another_goal_gets_the_users_words(tmp_path: Path) -> None:
    workspace(tmp_path)
    steps = [{"text": "look", "status": "active"}]
    turns = [
        step(call("todo", items=steps, goal="Read it all.")),
        step(call("todo", items=steps, goal="Read a part.")),
        step(text="Read."),
    ]
    client = FleetClient({"go": fan_out(item("look")), "look": turns})
    run = await start(tmp_path, client=client, is_interactive=True)

    def say_no(event: AnyEvent) -> None:
        if isinstance(event, ApprovalAsked):
            assert event.tool == "ask" and "look: The model wants to change" in event.summary
            asyncio.get_running_loop().call_soon(run.session.reply, event.call_id, "no, all of it")

    run.session.subscribe(say_no)
    end = await asyncio.wait_for(run.session.submit("go"), 60)
    assert end.outcome is TurnOutcome.SUCCESS
    child = TaskGraph(run.session._store, run.session.id).nodes()[0].child
    results = [result.text for item in run.session._store.messages(child) for result in item.results]
    assert "the user does not want that: no, all of it" in results[1]
    await run.session.aclose()


@pytest.mark.parametrize("folder", ["a\0b", "x" * 5000, "\ud800"])
async def test_a_folder_with_a_name_that_none_can_have_is_refused_in_words(
    tmp_path: Path, folder: str
) -> None:
    workspace(tmp_path)
    client = FleetClient({"go": fan_out(item("look", folder=folder)), "look": LOOK})
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    assert "look: " in run.results[0] and "is no folder" in run.results[0]
    assert "crashed" not in run.results[0] and len(run.results[0]) < 400
    await run.session.aclose()

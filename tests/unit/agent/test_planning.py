"""The plan: the user's words stay beside what the model made of them, and done steps have evidence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.agents import DONE, call, start, step

from k3agent import cli
from k3agent.agent.tasks import load_goals, load_steps
from k3agent.events import ApprovalAsked, Noticed

ASK = "Please make x 2, and\nkeep the tests green."
FIRST = {"goal": "x is 2", "criteria": ["a.py says x = 2", "tests pass"]}


def todo(*items: tuple[str, str], **more: Any) -> Any:
    return call("todo", items=[{"text": text, "status": status} for text, status in items], **more)


async def play(root: Path, *steps: Any, **more: Any) -> Any:
    run = await start(root, [*steps, DONE], **more)
    (root / "ws" / "a.py").write_text("x = 1\n")
    return run


async def test_the_ask_stays_word_by_word_beside_what_the_model_made_of_it(tmp_path: Path) -> None:
    run = await play(tmp_path, step(todo(("change", "active"), **FIRST)))
    await run.session.submit(ASK)
    goal = load_goals(run.session._store, run.session.id)[0]
    assert goal.ask == ASK and goal.goal == "x is 2" and goal.criteria == ("a.py says x = 2", "tests pass")
    assert any(event.text == "Understood as: x is 2" for event in run.of(Noticed))
    await run.session.aclose()


@pytest.mark.parametrize(
    "change",
    [{"goal": "x is tried", "criteria": FIRST["criteria"]}, {"goal": "x is 2", "criteria": ["tests pass"]}],
)
async def test_narrowing_is_seen_and_refused_where_nobody_is(tmp_path: Path, change: dict[str, Any]) -> None:
    first, second = step(todo(("change", "active"), **FIRST)), step(todo(("change", "done"), **change))
    run = await play(tmp_path, first, second)
    await run.session.submit(ASK)
    assert "nobody can be asked here" in run.results[1]
    goal = load_goals(run.session._store, run.session.id)[0]
    assert (goal.goal, list(goal.criteria), goal.history) == (FIRST["goal"], FIRST["criteria"], ())
    warned = [event for event in run.of(Noticed) if event.level == "warning"]
    assert any("change what it works for" in event.text and event.data["ask"] == ASK for event in warned)
    # Nothing of the refused plan was taken over.
    assert load_steps(run.session._store, run.session.id)[0].status == "active"
    await run.session.aclose()


@pytest.mark.parametrize(("answer", "goal"), [("yes", "x is tried"), ("no", "x is 2")])
async def test_a_person_decides_about_a_change(tmp_path: Path, answer: str, goal: str) -> None:
    second = step(todo(("change", "active"), goal="x is tried"))
    run = await play(tmp_path, step(todo(("change", "active"), **FIRST)), second, is_interactive=True)
    task = asyncio.create_task(run.session.submit(ASK))
    await run.until(ApprovalAsked)
    asked = run.of(ApprovalAsked)[0]
    assert "“x is 2” becomes “x is tried”" in asked.summary and ASK in asked.summary
    run.session.reply(asked.call_id, answer)
    await asyncio.wait_for(task, 30)
    found = load_goals(run.session._store, run.session.id)[0]
    assert found.goal == goal and len(found.history) == (answer == "yes")
    await run.session.aclose()


async def test_more_criteria_are_free_and_new_words_of_the_user_open_the_goal(tmp_path: Path) -> None:
    more = {"goal": "x is 2", "criteria": [*FIRST["criteria"], "no other file changes"]}
    run = await play(
        tmp_path,
        step(todo(("change", "active"), **FIRST)),
        step(todo(("change", "active"), **more)),
        DONE,
        step(todo(("look", "active"), goal="y is known")),
    )
    await run.session.submit(ASK)
    assert len(load_goals(run.session._store, run.session.id)[0].criteria) == 3
    await run.session.submit("Now only tell me y.")
    goals = load_goals(run.session._store, run.session.id)
    assert [goal.ask for goal in goals] == [ASK, "Now only tell me y."] and goals[1].goal == "y is known"
    await run.session.aclose()


async def test_a_done_step_has_the_calls_that_show_it_or_is_marked(tmp_path: Path) -> None:
    run = await play(
        tmp_path,
        step(todo(("change", "active"), ("test", "pending"), ("think", "pending"))),
        step(call("edit", path="a.py", old="x = 1", new="x = 2"), call("shell", command="false")),
        step(todo(("change", "done"), ("test", "active"), ("think", "pending"))),
        step(call("shell", command="grep -q 2 a.py")),
        step(todo(("change", "done"), ("test", "done"), ("think", "active"))),
        step(todo(("change", "done"), ("test", "done"), ("think", "done"))),
    )
    await run.session.submit(ASK)
    steps = load_steps(run.session._store, run.session.id)
    assert [[entry["what"] for entry in one.evidence] for one in steps] == [
        ["changed a.py"],
        ["$ grep -q 2 a.py"],
        [],
    ]
    assert "[step 3 is done by your word alone: no call shows it]" in run.results[-1]
    assert "by your word alone" not in "".join(run.results[:-1])
    await run.session.aclose()


async def test_steps_wait_for_those_before_them(tmp_path: Path) -> None:
    items = [{"text": "a", "status": "pending"}, {"text": "b", "status": "active", "after": [1]}]
    run = await play(tmp_path, step(call("todo", items=items)))
    await run.session.submit(ASK)
    assert "step 2 (b) is active, but it comes after step 1 (a), which is pending" in run.results[0]
    await run.session.aclose()


async def test_a_plan_that_gets_shorter_is_seen(tmp_path: Path) -> None:
    run = await play(
        tmp_path,
        step(todo(("one", "active"), ("two", "pending"), ("three", "pending"))),
        step(todo(("one, better", "active"), ("two", "pending"), ("three", "pending"))),
        step(todo(("one, better", "done"), ("two", "pending"))),
    )
    await run.session.submit(ASK)
    told = [event.text for event in run.of(Noticed) if event.text.startswith("Dropped")]
    assert told == ["Dropped from the plan without being done: three."]
    await run.session.aclose()


async def test_the_command_shows_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await play(
        tmp_path,
        step(todo(("change", "active"), **FIRST)),
        step(call("edit", path="a.py", old="x = 1", new="x = 2")),
        step(todo(("change", "done"))),
    )
    await run.session.submit(ASK)
    await run.session.aclose()
    monkeypatch.setenv("K3AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "ws")
    assert cli.main(["tasks", "list"]) == 0
    out = capsys.readouterr().out
    for words in ("asked: Please make x 2, and keep", "understood as: x is 2", "must hold: tests pass"):
        assert words in out
    assert "[x] 1. change  shown by: changed a.py" in out
    assert cli.main(["tasks", "list", run.session.id[:8], "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["asks"][0]["ask"] == ASK and body["steps"][0]["evidence"][0]["tool"] == "edit"
    assert body["cost_usd"] > 0
    with pytest.raises(SystemExit):
        cli.main(["tasks", "shown"])
    assert cli.main(["tasks", "show", run.session.id, "7"]) == 1
    assert "has no task 7" in capsys.readouterr().err

"""The queue of goals: only its own turn says that a goal is reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agents import DONE, Run, start

from k3agent.events import TurnEnded
from k3agent.headless.goals import ACTIVE, GoalQueue, reach_all

CHECKS = ("true",)


async def go_on(root: Path, run: Run) -> tuple[list[str | None], GoalQueue]:
    """What a later run asks for, and what it leaves."""
    asked: list[str | None] = []
    session = run.session
    queue = GoalQueue(root / "home", session.receipt, session.id)
    queue.load()

    async def turn(text: str | None) -> TurnEnded:
        asked.append(text)
        ended = await (session.continue_turn(reopen=True) if text is None else session.submit(text))
        assert ended is not None
        return ended

    await reach_all(queue, session, turn, CHECKS, lambda text: None)
    return asked, queue


@pytest.mark.parametrize("between", ["Look around.", "Is this done: Make a.txt"])
async def test_a_prompt_in_between_reaches_no_goal(tmp_path: Path, between: str) -> None:
    run = await start(tmp_path, [DONE, DONE])
    queue = GoalQueue(tmp_path / "home", run.session.receipt, run.session.id)
    queue.add(["Make a.txt"])
    queue.note(queue.goals[0], ACTIVE)
    await run.session.submit(between)
    asked, later = await go_on(tmp_path, run)
    assert asked == [queue.prompt(queue.goals[0], CHECKS)]
    assert [goal.state for goal in later.goals] == ["reached"]
    await run.session.aclose()


async def test_a_goal_in_the_same_words_is_not_reached_by_the_first(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE, DONE, DONE])
    queue = GoalQueue(tmp_path / "home", run.session.receipt, run.session.id)
    queue.add(["Make a.txt", "Make a.txt"])
    asked, later = await go_on(tmp_path, run)
    assert len(asked) == 2
    # Killed after it was noted that work for the second begins, before its turn did.
    later.goals[1].after = 2
    later.note(later.goals[1], ACTIVE)
    asked, _ = await go_on(tmp_path, run)
    assert asked == [queue.prompt(queue.goals[1], CHECKS)]
    await run.session.aclose()


async def test_its_own_turn_that_came_to_a_good_end_counts(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE])
    queue = GoalQueue(tmp_path / "home", run.session.receipt, run.session.id)
    queue.add(["Make a.txt"])
    queue.note(queue.goals[0], ACTIVE)
    await run.session.submit(queue.prompt(queue.goals[0], CHECKS))
    asked, later = await go_on(tmp_path, run)
    assert asked == [] and later.goals[0].state == "reached"
    await run.session.aclose()

"""Amounts and settings in several places: what the oracle does is accepted, a wrong value or place is not."""

import random
import re

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.amounts import MEASURES
from k3agent.backend.training.episodes.families.equalkeys import draw_sections, places
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Plan, Session, played
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS

PLAYER_SEED = 31


def play(player: Player, name: str, rng: random.Random) -> tuple[Plan, Session, Outcome] | None:
    """A plan of a goal, played in a project."""
    words = Words(rng)
    project = draw_project(rng, words)
    files = dict(project.files)
    plan = GOALS[name].make(Setting(Facts(files), rng, words, project))
    if plan is None:
        return None
    files = dict(files)
    if plan.prepare is not None:
        plan.prepare(files)
    player.box.workspace.reset(files)
    player.box.new_session()
    session = Session(player.box, rng, max_chars=10**6)
    session.user(plan.prompt or "a task")
    _, answer = played(plan, session)
    outcome = Outcome(files, player.box.workspace.snapshot(), answer)
    return plan, session, outcome


@pytest.mark.parametrize("name", ["set_amount", "set_unit", "set_equal", "set_doubled"])
def test_the_oracle_is_accepted_and_another_number_is_not(player: Player, name: str) -> None:
    rng, done, asked = random.Random(name), 0, 0
    for _ in range(50):
        found = play(player, name, rng)
        if found is None:
            continue
        plan, session, outcome = found
        assert plan.check(outcome) is None, (plan.check(outcome), outcome.answer)
        assert plan.check(Outcome(outcome.before, outcome.before, "Done.")) is not None
        if not session.edits:
            asked += 1
            continue
        path, old, new = session.edits[0]
        path = path.removeprefix("./")
        wrong = {**outcome.after, path: outcome.before[path].replace(old, new + "7", 1)}
        assert plan.check(Outcome(outcome.before, wrong, outcome.answer)) is not None
        done += 1
    assert done >= 12
    assert asked if name in ("set_equal", "set_doubled") else not asked


def test_what_was_calculated_is_said_and_true(player: Player) -> None:
    rng, seen = random.Random(4), 0
    for _ in range(60):
        for name in ("set_amount", "set_unit"):
            found = play(player, name, rng)
            if found is None:
                continue
            thoughts = " ".join(
                message["reasoning_content"] for message in found[1].messages if "tool_calls" in message
            )
            sums = re.findall(r"(\d+ (?:\+|-|\*|//) \d+) = (\d+)", thoughts)
            assert all(eval(left) == int(right) for left, right in sums)
            assert len(sums) == 1 or " 1 " in thoughts
            seen += len(sums)
    assert seen > 40


def test_larger_units_are_what_they_are_worth() -> None:
    worth = {(item.unit, larger): value for item in MEASURES for larger, value in item.larger}
    assert worth["seconds", "day"] == 24 * worth["minutes", "hour"] * worth["seconds", "minute"]
    assert worth["milliseconds", "minute"] == 60 * worth["milliseconds", "second"] == 60_000


def test_a_key_stands_below_each_section_and_an_edit_names_the_head() -> None:
    rng = random.Random(6)
    kinds = set()
    for _ in range(80):
        drawn = draw_sections(rng, Words(rng))
        if drawn is None:
            continue
        lines = drawn.text.splitlines()
        found = places(list(enumerate(lines, 1)), drawn.key)
        assert [item.section for item in found] == list(drawn.sections)
        for item in found:
            assert item.section in lines[item.head - 1] and drawn.key in lines[item.line - 1]
        kinds.add(drawn.path.rsplit(".", 1)[1])
    assert kinds == {"ini", "cfg", "toml", "yaml", "yml", "json"}


def test_an_edit_of_an_equal_key_cannot_mean_another_section(player: Player) -> None:
    rng, near = random.Random(12), 0
    for _ in range(40):
        found = play(player, "set_equal", rng)
        if found is None or not found[1].edits:
            continue
        path, old, _ = found[1].edits[0]
        if "\n" in old:
            near += 1
            assert found[2].before[path.removeprefix("./")].count(old) == 1
    assert near > 20

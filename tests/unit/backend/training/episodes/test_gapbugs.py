"""Code that lacks a line: the tests notice it, the edit mends it, and every kind comes."""

import random

import pytest

from k3agent.backend.training.episodes import gapbugs, goals
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families import mending
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Session, played
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS

PLAYER_SEED = 23


def test_the_edit_mends_what_the_tests_notice() -> None:
    rng, kinds = random.Random(2), set()
    for _ in range(150):
        gap = gapbugs.draw_gap(Setting(Facts({}), rng, Words(rng)))
        if gap is None:
            continue
        rows = gap.bad.split("\n")
        row = rows[gap.line - 1]
        assert row.strip() == gap.old != gap.new
        rows[gap.line - 1] = row.replace(gap.old, gap.new)
        assert "\n".join(rows) == gap.good
        assert gap.sample.works(gap.good) and not gap.sample.works(gap.bad)
        kinds.add(gap.thought.split()[0] if not gap.thought.startswith("Nothing") else gap.thought[:10])
    assert {"All", "It", "Nothing is"} < kinds


def test_a_repair_is_played_to_its_end(player: Player) -> None:
    rng, solved = random.Random(3), 0
    while solved < 6:
        plan = GOALS["fix_gap"].make(Setting(Facts({}), rng, Words(rng)))
        if plan is None or plan.prepare is None:
            continue
        files: dict[str, str] = {}
        plan.prepare(files)
        player.box.workspace.reset(files)
        player.box.new_session()
        before = player.box.workspace.snapshot()
        session = Session(player.box, rng, max_chars=10**6)
        _, answer = played(plan, session)
        after = player.box.workspace.snapshot()
        assert plan.check(Outcome(before, after, answer, player.box.workspace.root)) is None, answer
        assert plan.check(Outcome(before, before, answer, player.box.workspace.root)) is not None
        assert "Fixed" in answer
        solved += 1


@pytest.mark.parametrize("item", mending.NEEDY, ids=lambda item: item.names.split()[0])
def test_a_function_without_its_import_fails_and_with_it_works(item: mending.Needy) -> None:
    code = f"def f({item.params}):\n    {item.body}\n"
    claim = f"f({item.case}) == {item.value}"
    scope: dict[str, object] = {}
    exec(f"{item.imported}\n{code}", scope)
    assert eval(claim, scope)
    bare: dict[str, object] = {}
    exec(code, bare)
    with pytest.raises(NameError, match=item.missing):
        eval(claim, bare)

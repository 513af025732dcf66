"""Natural code: every unit runs, stays right in other words, and its slips are noticed by its tests."""

import random
from collections.abc import Iterator

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.oddlines import draw_odd
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Session, played
from k3agent.backend.training.episodes.symptoms import symptom
from k3agent.backend.training.episodes.testruns import parse_run
from k3agent.backend.training.episodes.unitbugs import draw_unit_bug
from k3agent.backend.training.episodes.units import UnitSample, computed, draw_unit, natural_function, units
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS


@pytest.fixture
def player() -> Iterator[Player]:
    made = Player(19, 0, strict=True)
    yield made
    made.close()


def test_every_unit_runs_and_its_claims_say_something() -> None:
    assert len(units()) >= 400
    for unit in units():
        expected = computed(unit)
        assert expected is not None, unit.names
        sample = UnitSample(expected)
        assert sample.works(unit.text) and len(sample.wanted) >= 2, unit.names
        assert not sample.works("x = 1\n")


def test_units_in_other_words_do_what_their_claims_say() -> None:
    rng, texts = random.Random(3), set()
    for _ in range(150):
        unit, sample = draw_unit(rng, Words(rng))
        assert sample.works(unit.text)
        texts.add(unit.text)
    assert len(texts) > 120


def test_natural_functions_have_cases() -> None:
    rng = random.Random(4)
    for _ in range(60):
        func = natural_function(rng, Words(rng))
        assert len(func.cases) >= 1 and func.params and func.body


def test_a_slip_fails_the_tests_and_the_right_line_passes_them(player: Player) -> None:
    rng, found = random.Random(5), 0
    for _ in range(40):
        broken = draw_unit_bug(Setting(Facts({}), rng, Words(rng)))
        if broken is None:
            continue
        found += 1
        before, after = (text.splitlines() for text in (broken.good, broken.bad))
        changed = [index for index, (one, two) in enumerate(zip(before, after, strict=True), 1) if one != two]
        assert changed == [broken.line] and broken.works(broken.good) and not broken.works(broken.bad)
        player.box.workspace.reset(broken.files)
        player.box.new_session()
        shown = player.box.call("shell", {"command": "python -m pytest -q --tb=short"})
        names = {item.name.split("[")[0].split(".")[-1] for item in parse_run(shown.text).failures}
        assert broken.failing in names
        player.box.workspace.reset({**broken.files, broken.path: broken.good})
        shown = player.box.call("shell", {"command": "python -m pytest -q --tb=short"})
        assert shown.text.endswith("[exit code 0]"), shown.text
    assert found > 15


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("assert None == 4", "return missing"),
        ("AssertionError: assert [3, 2] == [2, 3]", "turned round"),
        ("AssertionError: 'Ab' != 'ab'", "Capitals"),
        ("assert 5 == 6", "off by one"),
        ("assert -7 == 7", "sign"),
        ("assert 9 == 2", "too high"),
        ("AssertionError: True is not False", "opposite"),
        ("assert [] == [1]", "empty"),
        ("assert [1, 2] == [1]", "too many elements"),
        ("AssertionError: {'a': 1} != {'a': 2}", "a value is wrong"),
        ("assert 2.0 == 2", "kind of number"),
    ],
)
def test_a_symptom_is_what_the_two_values_show(error: str, said: str) -> None:
    assert said in symptom(error)


@pytest.mark.parametrize("error", ["NameError: name 'a' is not defined", "assert x == 3", "assert False", ""])
def test_nothing_is_said_of_what_cannot_be_read(error: str) -> None:
    assert symptom(error) == ""


def test_an_odd_line_of_the_library_is_put_right(player: Player) -> None:
    rng, found = random.Random(6), 0
    for _ in range(60):
        broken = draw_odd(Setting(Facts({}), rng, Words(rng)))
        if broken is None:
            continue
        found += 1
        rows = list(zip(broken.good.split("\n"), broken.bad.split("\n"), strict=True))
        assert [index for index, (one, two) in enumerate(rows, 1) if one != two] == [broken.line]
        assert broken.wrong.strip() != broken.right.strip() and broken.func.name in broken.bad
        ctx = Setting(Facts({}), rng, Words(rng))
        plan = GOALS["fix_odd"].make(ctx) if found < 6 else None
        if plan is not None and plan.prepare is not None:
            files: dict[str, str] = {}
            plan.prepare(files)
            player.box.workspace.reset(files)
            player.box.new_session()
            session = Session(player.box, rng, max_chars=10**6)
            _, answer = played(plan, session)
            assert plan.check(Outcome(files, player.box.workspace.snapshot(), answer)) is None, answer
    assert found > 30

"""Natural code: every unit runs, stays right in other words, and its slips are noticed by its tests."""

import random
import re

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.editing import letters_apart
from k3agent.backend.training.episodes.evident import oddities
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.mutate import Bug
from k3agent.backend.training.episodes.nearby import near_hint
from k3agent.backend.training.episodes.oddlines import draw_odd, is_misspelt
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.policy import View
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Session, played
from k3agent.backend.training.episodes.symptoms import symptom
from k3agent.backend.training.episodes.testruns import parse_run
from k3agent.backend.training.episodes.unitbugs import draw_unit_bug
from k3agent.backend.training.episodes.units import (
    Unit,
    UnitSample,
    computed,
    draw_unit,
    natural_function,
    units,
    with_other_numbers,
)
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS

PLAYER_SEED = 19


def test_every_unit_runs_and_its_claims_say_something() -> None:
    assert len(units()) >= 1000
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


def test_an_odd_line_is_mended_if_the_text_tells_and_asked_about_if_not(player: Player) -> None:
    rng, evident, untold = random.Random(6), 0, 0
    for _ in range(40):
        odd = draw_odd(Setting(Facts({}), rng, Words(rng)))
        if odd is None:
            continue
        broken = odd.broken
        rows = list(zip(broken.good.split("\n"), broken.bad.split("\n"), strict=True))
        apart = [index for index, (one, two) in enumerate(rows, 1) if one != two]
        assert apart == ([broken.line] if broken.wrong != broken.right else [])
        assert oddities(broken.good, broken.func.name) == []
        assert len(oddities(broken.bad, broken.func.name)) == bool(odd.said)
        evident, untold = evident + bool(odd.said), untold + (not odd.said)
    assert evident > 10 and untold > 5
    for _ in range(8):
        plan = GOALS["fix_odd"].make(Setting(Facts({}), rng, Words(rng)))
        if plan is not None and plan.prepare is not None:
            files: dict[str, str] = {}
            plan.prepare(files)
            player.box.workspace.reset(files)
            player.box.new_session()
            session = Session(player.box, rng, max_chars=10**6)
            _, answer = played(plan, session)
            after = player.box.workspace.snapshot()
            assert plan.check(Outcome(files, after, answer)) is None, answer
            assert (after == files) == ("?" in answer)


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        ("def f(kept):\n    return sorted(keppt)\n", 2, "keppt stands nowhere else"),
        ("def f(a):\n    a + 1\n", 2, "a return is missing"),
        ("def f(a):\n    a == 1\n    return a\n", 2, "= is meant"),
        ("def f(a):\n    if a is not None:\n        a = []\n    return a\n", 2, "replaces"),
        ("def f(a):\n    if a is None:\n        return a.b\n    return 1\n", 2, "is None"),
        ("def f(self):\n    count = 0\n    return self.count\n", 2, "must be self.count"),
        ("def f(a):\n    a = a.append(1)\n    return a\n", 2, "append gives None"),
        ("def f(a):\n    return a.strip\n", 2, "strip is not called"),
        ("def f(a):\n    ValueError(a)\n", 2, "not raised"),
        ("def f(a):\n    return 'no {a}'\n", 2, "the f in front"),
        ("def f(a):\n    for b in a:\n        return b\n", 3, "first round"),
        ("def f(a):\n    if a:\n        return True\n    return True\n", 4, "all returns give True"),
        ('def f(a, b):\n    """Return a list b."""\n    return a\n', 0, ""),
        ('def f(path, text):\n    """Return the path."""\n    return text\n', 3, "it returns path"),
        ("def f(a, b):\n    return a - b\n", 0, ""),
        ("def f(a):\n    return a > 0\n", 0, ""),
    ],
)
def test_what_is_evident_stands_in_the_text(code: str, line: int, said: str) -> None:
    found = oddities(code, "f")
    assert [item.line for item in found] == ([line] if line else [])
    assert not line or said in found[0].said


def test_a_misspelt_name_is_said_to_be_like_one_in_view() -> None:
    rows = ["def f(a):", "    kept = []", "    for one in a:", "        kept.append(one)", "    return keppt"]
    view = View("a.py", list(enumerate(rows, 1)), 5)
    hint = near_hint(view, 5, "return keppt", "return kept")
    assert hint == " keppt stands only in line 5; line 4 has kept: p is too much."
    part = View("a.py", [(1, "TAX_RATE = 5"), (2, "def f(a):"), (3, "    return a * TAX")], 3)
    hint = near_hint(part, 3, "return a * TAX", "return a * TAX_RATE")
    assert hint == " TAX stands only in line 3; line 1 has TAX_RATE: _RATE is missing."
    far = View("a.py", [(1, "RATE = 5"), (2, "def f(a):"), (3, "    return a * RTE")], 3)
    assert near_hint(far, 3, "return a * RTE", "return a * RATE").endswith("line 1 has RATE: A is missing.")
    assert near_hint(view, 5, "return keppt", "return one") == ""
    assert near_hint(view, 5, "return one", "return kept") == ""


@pytest.mark.parametrize(
    ("above", "said"),
    [
        (['    """What is kept."""', "    kept = [0]  # kept, all"], "line 3 has kept: p is too much."),
        (["    kept = [0]", "    # what is kept"], "line 2 has kept: p is too much."),
        (['    """A list.', "", "    What is kept.", '    """', "    kept = [0]"], "line 6 has kept"),
        (["    a = b['kept']", "    print('all that is kept')"], "line 2 has kept"),
        (["    print(f'{kept} # rows')", "    print('all kept')"], "line 2 has kept"),
        (["    print('all # kept')", "    a = it('#', kept)  # kept"], "line 3 has kept"),
        (['    """What is kept."""', "    # kept"], ""),
        (["    kept = [0]", "    # keppt is too long"], ""),
    ],
)
def test_a_name_is_like_one_in_the_code_not_in_what_is_told_of_it(above: list[str], said: str) -> None:
    rows = ["def f(a):", *above, "    return keppt"]
    view = View("a.py", list(enumerate(rows, 1)), len(rows))
    hint = near_hint(view, len(rows), "return keppt", "return kept")
    assert said in hint and bool(said) == bool(hint)


def test_the_letters_that_differ_are_said() -> None:
    pairs = (("rarly", "rarely"), ("keppt", "kept"), ("kpet", "kept"), ("price", "prize"), ("rows", "row"))
    said = [letters_apart(*pair) for pair in pairs]
    assert said == ["e is missing", "p is too much", "pe for ep", "c for z", "s is too much"]
    attribute = View("a.py", [(1, "def f(user):"), (2, "    return user.zone_a + user.zone_at")], 2)
    hint = near_hint(attribute, 2, "return user.zone_a + user.zone_at", "return user.zone_at + user.zone_at")
    assert hint == " zone_a stands only in line 2; line 2 also has zone_at: t is missing."


def test_a_name_written_wrongly_is_never_passed_over_as_right() -> None:
    right = "    return total_price * count"
    assert is_misspelt(Bug(1, right, "    return total * count"), "return total * count")
    assert is_misspelt(Bug(1, right, "    return totel_price * count"), "return totel_price * count")
    assert not is_misspelt(Bug(1, right, "    return total_price + count"), "return total_price + count")
    assert not is_misspelt(Bug(1, right, "    return count * count"), "count = 1\nreturn count * count")


def test_misspelt_names_raise_the_error_that_is_told(player: Player) -> None:
    rng, told = random.Random(3), 0
    for _ in range(30):
        plan = GOALS["fix_misspelt"].make(Setting(Facts({}), rng, Words(rng)))
        if plan is None or plan.prepare is None or told > 3:
            continue
        files: dict[str, str] = {}
        plan.prepare(files)
        player.box.workspace.reset(files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        _, answer = played(plan, session)
        assert plan.check(Outcome(files, player.box.workspace.snapshot(), answer)) is None, answer
        told += " stands only in line " in str(session.messages)
    assert told > 2


def test_numbers_change_in_code_docstring_and_tests_alike() -> None:
    code = ("def fee(size):", '    """Free from 55 on."""', "    return 0 if size >= 55 else 9")
    base = Unit(code, (("? fee(54)", "? fee(55)", "? fee(56)"),))
    seen = set()
    for seed in range(30):
        text = "\n".join((*(other := with_other_numbers(base, random.Random(seed))).code, *other.groups[0]))
        bound = re.search(r">= (\d+)", text)
        assert bound is not None
        assert f"from {bound[1]} on" in text
        assert f"? fee({bound[1]})" in text
        seen.add(bound[1])
    assert len(seen) > 3

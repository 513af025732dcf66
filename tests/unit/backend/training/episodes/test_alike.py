"""Lines that are alike and lost brackets: the slips, and what tells of them."""

import random

import pytest

from k3agent.backend.training.episodes import goals, unitbugs
from k3agent.backend.training.episodes.alike import alike_slips
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.evidence import evidence
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families import gaps, repair
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Report, Session
from k3agent.backend.training.episodes.testruns import Failure
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS

PLAYER_SEED = 23


def test_slips_are_of_lines_beside_and_of_brackets() -> None:
    body = [
        "def f(row, size):",
        "    left = row[0]",
        "    top = row[1]",
        "    return (left - 1) * size + top",
    ]
    wrong = {bug.wrong.strip() for bug in alike_slips(Func("f", [], body, ""), random.Random(1))}
    assert wrong == {"left = row[1]", "top = row[0]", "return left - 1 * size + top"}
    other = ["def f(row):", "    left = row[0]", "    top = max(row)", "    return left"]
    assert alike_slips(Func("f", [], other, ""), random.Random(1)) == []


@pytest.mark.parametrize(
    ("rows", "line", "right", "said"),
    [
        (
            ["def f(row):", "    left = row[0]", "    top = row[0]", "    return left"],
            3,
            "top = row[1]",
            "Lines 2 and 3 both take row[0], none takes row[1].",
        ),
        (
            ["def f(a, b):", "    height = a.width", "    return height"],
            2,
            "height = a.height",
            "The name height tells of a.height, not of a.width.",
        ),
        (
            ["def f(page, size):", "    return page - 1 * size, size"],
            2,
            "return (page - 1) * size, size",
            "The brackets are lost: 1 - 1 * 20 is -19, (1 - 1) * 20 is 0 as wanted.",
        ),
        (
            ["def f(page, size):", "    page = max(page, 1)", "    return page - 1 * size, size"],
            3,
            "return (page - 1) * size, size",
            "Without brackets 1 * size comes first.",
        ),
        (["def f(a, b):", "    c = a", "    d = a", "    e = b"], 3, "d = b", ""),
        (
            ["def f(a, b):", "    c = a", "    d = a"],
            3,
            "d = b",
            "Lines 2 and 3 both take a, none takes b.",
        ),
        (["def f(a):", "    c = x", "    d = x"], 3, "d = None", ""),
        (["def f(a):", "    c = 0", "    d = 0"], 3, "d = 1", ""),
        (["def f(a):", "    c = a['x']", "    d = a['x']"], 3, "d = a['y']", ""),
    ],
)
def test_what_is_said_stands_in_the_lines_and_the_failure(
    rows: list[str], line: int, right: str, said: str
) -> None:
    places = [("tests/test_a.py", 4, "test_f", "assert f(1, 20) == (0, 20)")]
    failure = Failure("test_f", places, "assert (-19, 20) == (0, 20)")
    found = evidence(list(enumerate(rows, 1)), line, rows[line - 1].strip(), right, failure)
    assert (found == said) if said else "both take" not in found


@pytest.mark.parametrize(
    ("right", "first"),
    [
        ("return (a + b) * c", "b * c"),
        ("return n - (a + b) * c[0]", "b * c[0]"),
        ("return c * (a + b)", "c * a"),
        ("return x + c * (a + b)", "c * a"),
        ("return (a + b) * c ** 2", ""),
        ("return (a + b) * c**2", ""),
        ("return (a + b) % len(rows)", ""),
        ("return (a + b) * rate_for(day)", ""),
        ("return (a + b) * rates[day][0]", ""),
        ("return (a + b) // (high - low)", ""),
        ("return c * n * (a + b)", ""),
        ("return c ** n * (a + b)", ""),
        ("return c * (a + b) ** 2", ""),
        ("return rows[0].c * (a + b)", ""),
    ],
)
def test_what_comes_first_without_brackets_is_true(right: str, first: str) -> None:
    old = right.replace("(a + b)", "a + b")
    found = evidence(
        [(1, "def f(a, b, c, n):"), (2, f"    {old}")], 2, old, right, Failure("test_f", [], "assert 1 == 2")
    )
    assert found == (f"Without brackets {first} comes first." if first else "")


def test_such_slips_are_repaired_with_what_tells_of_them(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unitbugs, "ALIKE", 1.0)
    rng, told = random.Random(6), 0
    for _ in range(40):
        broken = unitbugs.draw_unit_bug(Setting(Facts({}), rng, Words(rng)))
        if broken is None or told > 3:
            continue
        player.box.workspace.reset(broken.files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        try:
            _, answer = repair.play_fix(session, [broken], "Fix it.")
        except Report:
            continue
        check = repair.fixed([broken])
        assert check(Outcome(broken.files, player.box.workspace.snapshot(), answer)) is None
        assert check(Outcome(broken.files, broken.files, answer)) is not None
        thoughts = " ".join(message.get("reasoning_content", "") for message in session.messages)
        told += " both take " in thoughts or "brackets" in thoughts
    assert told > 3


def test_a_case_is_asked_for_only_where_one_is_missing() -> None:
    failure = Failure("test_f", [("test_a.py", 3, "test_f", "assert f([]) == 0")], "assert 1 == 0")
    assert "is that case missing" not in repair.reason(failure)
    rng, said = random.Random(2), set[bool]()
    for _ in range(40):
        gap = gaps.draw_gap(Setting(Facts({}), rng, Words(rng)))
        if gap is not None:
            asks = "is that case missing" in gaps.gap_reason(failure, gap)
            assert asks == gap.thought.startswith("Nothing is done for ")
            said.add(asks)
    assert said == {True, False}

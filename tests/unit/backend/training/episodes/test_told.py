"""Repairs by the user's words: they mean one line, the oracle changes that one, other work is rejected."""

import random
import re

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.saying import kinds, spoken, tell
from k3agent.backend.training.episodes.session import Outcome, Session, played
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS

PLAYER_SEED = 29


def test_each_kind_is_told_in_several_ways_and_its_places_exist() -> None:
    assert len(kinds()) > 50
    for kind in kinds():
        assert kind.does and kind.why and len(kind.does) + len(kind.should) >= 2
        count = re.compile(kind.right).groups
        used = re.findall(r"\{(\d)\}", " ".join((*kind.does, *kind.should)))
        assert all(1 <= int(number) <= count for number in used), kind.right


@pytest.mark.parametrize(
    ("body", "index", "right", "said"),
    [
        (["def f(a, b):", "    return a + b"], 1, "    return a - b", "add|plus|increase|subtract|take|puts"),
        (["def f(a):", "    return a[-1]"], 1, "    return a[0]", "first"),
        (["def f(a, b):", "    return a > b"], 1, "    return a >= b", "equal|exactly|limit|bound|include"),
        (["def f(a, b):", "    return a * 3"], 1, "    return b * 3", "\\ba\\b.*\\bb\\b|\\bb\\b.*\\ba\\b"),
    ],
)
def test_words_tell_what_the_line_does(body: list[str], index: int, right: str, said: str) -> None:
    for seed in range(12):
        found = tell(body, index, right, body[index], random.Random(seed))
        assert found is not None and re.search(said, found.words), found


def test_words_that_could_mean_another_line_are_not_said() -> None:
    body = ["def f(a, b, c):", "    total = a + b", "    return total + c"]
    right = "    return total - c"
    texts = {tell(body, 2, right, body[2], random.Random(seed)) for seed in range(40)}
    assert None not in texts
    for found in texts:
        assert found is not None and re.search(r"\bc\b|total", found.words), found
    same = ["def f(a):", "    first = a[-1]", "    return a[-1]"]
    assert tell(same, 2, "    return a[0]", same[2], random.Random(1)) is None


def test_an_operand_is_said_as_it_is_or_in_words() -> None:
    rng = random.Random(1)
    assert {spoken("self.tax_rate", rng) for _ in range(40)} == {"self.tax_rate", "tax_rate", "the tax rate"}
    assert spoken("12", rng) == "12"


def test_the_oracle_changes_the_line_once_and_other_work_is_rejected(player: Player) -> None:
    rng, told, tried = random.Random(8), 0, 0
    for _ in range(60):
        plan = GOALS["fix_told"].make(Setting(Facts({"a.py": "x = 1\n"}), rng, Words(rng)))
        if plan is None:
            continue
        files = {"a.py": "x = 1\n"}
        assert plan.prepare is not None
        plan.prepare(files)
        player.box.workspace.reset(files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        session.user("a task")
        _, answer = played(plan, session)
        after = player.box.workspace.snapshot()
        assert plan.check(Outcome(files, after, answer)) is None, answer
        words = plan.slots.get("symptom") or plan.slots["should"]
        thoughts = [message["reasoning_content"] for message in session.messages if "tool_calls" in message]
        assert plan.check(Outcome(files, files, answer)) is not None
        if not session.edits:
            # The tests fail: a small change makes them pass.
            assert any("Try small changes of" in thought for thought in thoughts) and after != files
            tried += 1
            continue
        # No test tells: the words do.
        assert any(f'"{words}": ' in thought and " has " in thought for thought in thoughts)
        assert len(session.edits) == 1
        path, old, new = session.edits[0]
        harmed = {**after, path: files[path].replace(old, f"{new}  # looked at {old}")}
        assert plan.check(Outcome(files, {**harmed, "a.py": "x = 2\n"}, answer)) is not None
        told += 1
    assert told >= 5 and tried >= 15

"""Some of the tests: the reports of real runs are accepted, and those that say the opposite are not."""

import random
import re

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Session, played
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS

PLAYER_SEED = 37


def test_failures_are_told_of_in_any_words() -> None:
    for name in ("run_some", "run_unittest"):
        rng, judged = random.Random(name), set[bool]()
        for _ in range(40):
            plan = GOALS[name].make(Setting(Facts({}), rng, Words(rng)))
            files: dict[str, str] = {}
            if plan is None or plan.prepare is None:
                continue
            plan.prepare(files)
            count, names = next(iter(files.values())).count("def test_"), " ".join(files.values())
            shown = f"{plan.slots['name']} {names} Ran {count} tests:"
            said = [
                f"{shown} {text}" for text in ("all pass, 0 failed.", "pass, it does not fail.", "1 failing.")
            ]
            passes, also, fails = (plan.check(Outcome({}, {}, answer)) is None for answer in said)
            assert passes == also and not (passes and fails)
            judged.add(passes)
        assert judged == {True, False}


@pytest.mark.parametrize("name", ["run_some", "run_nowhere", "run_unittest"])
def test_reports_of_real_runs_are_accepted_and_others_are_not(player: Player, name: str) -> None:
    rng, ends = random.Random(name), set()
    for _ in range(24):
        files = {"a.py": "x = 1\n", "tests/test_a.py": "def test_x():\n    assert True\n"}
        plan = GOALS[name].make(Setting(Facts(dict(files)), rng, Words(rng)))
        if plan is None:
            continue
        if plan.prepare is not None:
            plan.prepare(files)
        player.box.workspace.reset(files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        session.user(plan.prompt or "a task")
        _, answer = played(plan, session)
        outcome = Outcome(files, player.box.workspace.snapshot(), answer)
        assert plan.check(outcome) is None, (plan.check(outcome), answer)
        passes = re.search(r"\bpass(es)?\b", answer) is not None
        turned = re.sub(r"\bpass(es)?\b", "FAIL", answer) if passes else "All tests pass: 3 passed."
        assert plan.check(Outcome(files, files, turned)) is not None, turned
        assert plan.check(Outcome(files, {**files, "b.py": ""}, answer)) is not None
        shown = [message["content"] for message in session.messages if message["role"] == "tool"]
        for count in re.findall(r"\d+ (?:passed|failed|deselected)", answer):
            assert count in shown[-1]
        ends.add("no" if "No test" in answer or "no folder" in answer else passes)
    assert len(ends) == {"run_some": 3, "run_nowhere": 1, "run_unittest": 2}[name]

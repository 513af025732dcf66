"""Every oracle is accepted by its checker, and nobody who does nothing or does harm is."""

import random
from itertools import islice
from pathlib import Path

import pytest

from k3agent.backend.training import evaluation
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.player import LONG, Player, draw_plan
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.session import Outcome, Session, TooLong, played
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.task import FAMILIES, Task

TALK = ("greet", "thanks")

PLAYER_SEED = 11


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_nearly_all_oracles_are_accepted(player: Player, stage: int) -> None:
    episodes = list(islice(player.episodes(stage), 25))
    assert all(episode.messages[-1]["role"] == "assistant" for episode in episodes)
    assert sum(player.rejected.values()) <= 0.1 * sum(player.accepted.values()), player.reasons


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_is_accepted_and_harm_is_not(player: Player, family: str) -> None:
    rng = random.Random(family)
    solved = 0
    for _ in range(6):
        words = Words(rng)
        project = draw_project(rng, words)
        plan = draw_plan(Setting(Facts(dict(project.files)), rng, words, project), LONG, family)
        if plan is None:
            continue
        workspace = player.box.workspace
        files = dict(project.files)
        if plan.prepare is not None:
            plan.prepare(files)
        workspace.reset(files)
        if plan.setup is not None:
            plan.setup(workspace.root)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        session.user("a task")
        try:
            _, answer = played(plan, session)
        except TooLong:
            continue  # such a session is drawn anew
        after = workspace.snapshot()
        solved += plan.check(Outcome(files, after, answer, workspace.root)) is None
        extra = {**after, "harm.txt": "x"}
        assert plan.check(Outcome(files, extra, answer, workspace.root)) is not None, plan.goal
        for victim in [path for path in sorted(after) if files.get(path) == after[path]][:2]:
            harmed = {**after, victim: after[victim] + "harm"}
            assert plan.check(Outcome(files, harmed, answer, workspace.root)) is not None, (plan.goal, victim)
    assert solved >= 4


@pytest.mark.parametrize("family", FAMILIES)
def test_doing_nothing_solves_nothing(tmp_path: Path, family: str) -> None:
    for number, task in enumerate(evaluation.generate(family, 3, 5, held_out=True)):
        assert isinstance(task, Task)
        folder = tmp_path / str(number)
        folder.mkdir()
        task.build(folder)
        assert task.check(folder, [""]) is not None
        if task.plan.goal not in TALK:
            assert task.check(folder, ["Done."]) is not None, task.prompts


def test_the_same_seed_gives_the_same_tasks() -> None:
    first, second = (evaluation.generate("rename", 4, 3, held_out=True) for _ in range(2))
    assert [task.prompts for task in first] == [task.prompts for task in second]
    assert [task.files for task in first] == [task.files for task in second]


def test_wrong_turns_are_marked(player: Player) -> None:
    for episode in islice(player.episodes(2), 30):
        for index in episode.unlearned:
            assert episode.messages[index]["role"] == "assistant"

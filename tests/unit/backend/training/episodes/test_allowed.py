"""What the oracle runs is what the product runs without asking: else nobody could solve the task."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k3agent.agent.permissions import Action, Permissions, Territory
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Session, TooLong
from k3agent.backend.training.episodes.toolbox import Result, Toolbox
from k3agent.backend.training.episodes.words import Words
from k3agent.headless.run import DEFAULT_MODE
from k3agent.tools.base import Access


class Judged(Toolbox):
    """A toolbox that asks the product's permissions before each shell command."""

    verdicts: list[tuple[str, Action, str]]
    permissions: Permissions

    def call(self, name: str, args: dict[str, Any]) -> Result:
        if name == "shell":
            verdict = self.permissions.judge("shell", Access(runs=args["command"]))
            self.verdicts.append((args["command"], verdict.action, verdict.reason))
        return super().call(name, args)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    made = Player(21, 0, strict=True)
    box, home = Judged(made.box.workspace), tmp_path_factory.mktemp("home")
    root = Path(box.workspace.root)
    territory = Territory(cwd=root, extra_dirs=(), home=home, environ={"HOME": str(home)}, readable=())
    box.verdicts, made.box = [], box
    box.permissions = Permissions(mode=DEFAULT_MODE, allow=(), deny=(), territory=territory)
    yield made
    made.close()


def _verdicts(player: Player, name: str) -> list[tuple[str, Action, str]]:
    """What the product says to the commands of an episode of a goal."""
    box, rng = player.box, random.Random(name)
    assert isinstance(box, Judged)
    for _ in range(20):
        words = Words(rng)
        project = draw_project(rng, words)
        plan = GOALS[name].make(Setting(Facts(dict(project.files)), rng, words, project))
        if plan is None:
            continue
        box.workspace.reset(project.files)
        box.new_session()
        box.verdicts.clear()
        try:
            player.play(Session(box, rng, max_chars=10**6), plan)
        except TooLong:
            continue
        break
    return list(box.verdicts)


@pytest.mark.parametrize("name", sorted(GOALS))
def test_no_command_of_the_oracle_is_asked_about(player: Player, name: str) -> None:
    for command, action, reason in _verdicts(player, name):
        assert action is Action.ALLOW, f"{command}: {reason}"


def test_what_the_product_asks_about_is_noticed(player: Player) -> None:
    box = player.box
    assert isinstance(box, Judged)
    for command in ("find src -mindepth 1 -delete", "git push", "rm -r ../other"):
        verdict = box.permissions.judge("shell", Access(runs=command))
        assert verdict.action is not Action.ALLOW, command

"""Rules that are offered with a question: they allow the call they are offered for, and little else."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3agent.agent.permissions import Action, Permissions, Territory
from k3agent.agent.suggestions import rules_for
from k3agent.tools.base import Access

COMMANDS = {
    "git push origin main": ("shell(git push:*)",),
    "git -C .. push": ("shell(git -C .. push)",),
    "git config core.pager x": ("shell(git config core.pager x)",),
    "make": ("shell(make)",),
    "make all": ("shell(make all:*)",),
    "touch a && mkdir b": ("shell(touch:*)", "shell(mkdir:*)"),
    "touch a; touch b": ("shell(touch:*)",),
    "python setup.py build": ("shell(python setup.py build)",),
    "uv run anything": ("shell(uv run anything)",),
    "./configure --prefix=x": ("shell(./configure --prefix=x)",),
    "rm -r build": ("shell(rm -r build)",),
    "echo x > file": (),
    "rm -r *": (),
    "echo $(whoami": (),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_rules_for_commands(tmp_path: Path, command: str) -> None:
    assert rules_for("shell", Access(runs=command), tmp_path) == COMMANDS[command]


@pytest.mark.parametrize("command", [command for command, rules in COMMANDS.items() if rules])
def test_what_is_offered_is_enough(tmp_path: Path, command: str) -> None:
    access = Access(runs=command)
    territory = Territory(cwd=tmp_path, extra_dirs=(), home=tmp_path / "home", environ={}, readable=())
    permissions = Permissions(mode="default", allow=(), deny=(), territory=territory)
    if permissions.judge("shell", access).by == "protection":
        return
    for rule in rules_for("shell", access, tmp_path):
        permissions.add_allow(rule)
    assert permissions.judge("shell", access).action is Action.ALLOW


def test_rules_for_files_stay_in_the_workspace(tmp_path: Path) -> None:
    inside, outside = tmp_path / "a/b.py", Path("/elsewhere/c.py")
    assert rules_for("edit", Access(writes=(inside,)), tmp_path) == ("edit(./**)",)
    assert rules_for("edit", Access(writes=(inside, outside)), tmp_path) == ()
    territory = Territory(cwd=tmp_path, extra_dirs=(), home=tmp_path / "home", environ={}, readable=())
    permissions = Permissions(mode="default", allow=("edit(./**)",), deny=(), territory=territory)
    assert permissions.judge("edit", Access(writes=(inside,))).action is Action.ALLOW
    assert permissions.judge("edit", Access(writes=(outside,))).action is Action.ASK
    search = Access(writes=(inside,), runs="pytest -q a.py")
    assert rules_for("try", search, tmp_path) == ("edit(./**)", "shell(pytest:*)")
    assert rules_for("try", Access(writes=(outside,), runs="pytest -q a.py"), tmp_path) == ()
    assert rules_for("try", Access(writes=(inside,), runs="pytest > log"), tmp_path) == ()
    assert rules_for("fetch", Access(connects=("example.org",)), tmp_path) == ("fetch(example.org)",)

"""`kill -9` of agent, model server or both at random points of a task; the long version is `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3agent.soak.kills import prove


@pytest.mark.timeout(600)
def test_killed_anywhere_the_task_ends_as_if_undisturbed(tmp_path: Path) -> None:
    done = prove(tmp_path, num_kills=12, num_chapters=2, kills_per_task=12, seed=3, say=print)
    assert done["killed agent"] >= 5 and done["killed backend"] >= 2
    assert done["lives"] > done["killed agent"]

"""File states: what was destroyed comes back byte for byte: modes, links, empty folders, odd names."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.trees import grow, picture, wreck

from k3agent.store import restoring
from k3agent.store.filetree import Extra, Rules, Tree
from k3agent.store.snapshots import Snapshots

PLENTY = int(os.environ.get("EXAMPLES", "40"))


def restore(place: Snapshots, commit: str, session: str = "s") -> Tree:
    """What undo does: save what is there, plan, carry out. Returns what was saved."""
    target = place.load(commit)
    extra = [Extra(path) for path in (*target.whole, *target.files)]
    now = place.save(session, Rules(), extra=extra)
    with place.contents() as contents:
        restorer = restoring.Restorer(place.root, target, contents)
        restorer.apply(restoring.plan(now.tree, target))
    assert restorer.failures == {}
    return now.tree


@given(seed=st.integers(0, 2**32))
@settings(max_examples=PLENTY, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_wrecked_comes_back(tmp_path: Path, seed: int) -> None:
    root, home = tmp_path / "ws", tmp_path / "home"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    chance = random.Random(seed)
    grow(root, chance, chance.randint(0, 14))
    place = Snapshots(home, root)
    states = []
    for _ in range(3):
        states.append((picture(root), place.save("s", Rules()).commit))
        wreck(root, chance)
    wrecked = picture(root)
    chance.shuffle(states)
    undone = place.save("s", Rules()).commit
    for seen, commit in states:
        restore(place, commit)
        assert picture(root) == seen
    # The undo is undone, by a process that knows nothing yet.
    restore(Snapshots(home, root), undone)
    assert picture(root) == wrecked

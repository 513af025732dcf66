"""A process that saves or restores the files of a folder, to be killed while it does."""

from __future__ import annotations

import sys
from pathlib import Path

from k3agent.store import restoring
from k3agent.store.filetree import Extra, Rules
from k3agent.store.snapshots import Snapshots


def main() -> None:
    action, home, root, commit = sys.argv[1:5]
    place = Snapshots(Path(home), Path(root))
    print("ready", flush=True)
    sys.stdin.readline()
    if action == "save":
        print(place.save("s", Rules()).commit, flush=True)
        return
    target = place.load(commit)
    now = place.save("s", Rules(), extra=[Extra(path) for path in target.files])
    plan = restoring.plan(now.tree, target)
    print("restoring", flush=True)
    with place.contents() as contents:
        restoring.Restorer(place.root, target, contents).apply(plan)


if __name__ == "__main__":
    main()

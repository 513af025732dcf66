"""`python -m k3agent.soak PROOF`: the proofs, as long as wanted. They tell what held, or the first fault."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from k3agent.soak import appends, disks, kills, served, turns
from k3agent.soak.proof import ProofFailed

# name -> (what it does, what is counted, how many by default)
PROOFS = {
    "kills": ("kill -9 of agent, backend or both at random points of a task", "kills", 300),
    "served": (
        "kill -9 of the real engine while it streams: server, engine, agent or both",
        "kills",
        24,
    ),
    "faults": ("a disk that is full or does not sync, from a random commit of a task on", "faults", 120),
    "cuts": ("the store's log cut or torn at random bytes, as by a power failure", "cuts", 1000),
    "full": ("the store on a small file system that is full, then has room again", "runs", 1),
    "appends": ("processes that append to one session at the same time, one killed", "rows", 10_000),
    "turns": ("turns of one session with compactions; what they cost early and late", "turns", 10_000),
}
LONG_CHAPTERS, SHORT_CHAPTERS = 8, 2
# Shorter tasks serve few kills as well.
FEW = 40


def run(proof: str, folder: Path, count: int, seed: int, say: Callable[[str], None]) -> Counter[str]:
    """One proof with `count` of what it counts. Raises ProofFailed."""
    chapters = LONG_CHAPTERS if count > FEW else SHORT_CHAPTERS
    if proof == "kills":
        return kills.prove(
            folder, num_kills=count, num_chapters=chapters, kills_per_task=5 * chapters, seed=seed, say=say
        )
    if proof == "served":
        if not served.is_possible():
            say("the engine or its model is not here: left out")
            return Counter()
        return served.prove(folder, num_kills=count, kills_per_run=4, seed=seed, say=say)
    if proof == "faults":
        return disks.prove_faults(
            folder, num_faults=count, num_chapters=SHORT_CHAPTERS, per_task=8, seed=seed, say=say
        )
    if proof == "cuts":
        return disks.prove_power_cuts(folder, num_cuts=count, seed=seed, say=say)
    if proof == "full":
        if not disks.is_mountable():
            say("no file system can be mounted here: left out")
            return Counter()
        return disks.prove_full(folder, {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)})
    if proof == "appends":
        return appends.prove(folder, num_appends=count, num_processes=4, seed=seed, say=say)
    # So 10,000 turns are compacted more than 40 times.
    return asyncio.run(turns.prove(folder, num_turns=count, compact_tokens=90_000, say=say))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 when everything held."""
    parser = argparse.ArgumentParser(prog="python -m k3agent.soak", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the runs lie (default: a temporary folder)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    proofs = parser.add_subparsers(dest="proof", required=True, metavar="PROOF")
    proofs.add_parser("all", help="every proof with its default")
    for name, (text, unit, count) in PROOFS.items():
        proof = proofs.add_parser(name, help=text, description=text)
        proof.add_argument(
            "--count", type=int, default=count, metavar="N", help=f"number of {unit} ({count})"
        )
    options = parser.parse_args(argv)
    chosen = (
        {options.proof: options.count}
        if options.proof != "all"
        else {name: PROOFS[name][2] for name in PROOFS}
    )
    root = options.folder or Path(tempfile.mkdtemp(prefix="k3agent-soak-"))
    # Nothing that the proofs start may find the settings of whoever runs them.
    os.environ.pop("K3AGENT_HOME", None)
    for name, count in chosen.items():
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        began = time.monotonic()
        print(f"{name}: {PROOFS[name][0]}", flush=True)
        try:
            done = run(name, folder, count, options.seed, lambda text: print(f"  {text}", flush=True))
        except ProofFailed as fault:
            print(f"FAULT: {fault}\nThe runs lie in {folder}.", file=sys.stderr)
            return 1
        print(f"  held in {time.monotonic() - began:.0f} s: {dict(done)}", flush=True)
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

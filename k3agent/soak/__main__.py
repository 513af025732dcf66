"""`python -m k3agent.soak kills`: the proofs, as long as wanted. They tell what held, or the first fault."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from k3agent.soak import kills


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 when everything held."""
    parser = argparse.ArgumentParser(prog="python -m k3agent.soak", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="where the runs lie; kept after a fault (default: a temporary one)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: 0)")
    proofs = parser.add_subparsers(dest="proof", required=True, metavar="PROOF")
    proof = proofs.add_parser("kills", help="kill -9 of agent, backend or both at random points of a task")
    proof.add_argument("--kills", type=int, default=300, metavar="N", help="in all (default: 300)")
    proof.add_argument("--chapters", type=int, default=12, metavar="N", help="of the task (default: 12)")
    proof.add_argument(
        "--per-task", type=int, default=20, metavar="N", help="kills in one task (default: 20)"
    )
    options = parser.parse_args(argv)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="k3agent-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        done = kills.prove(
            folder,
            num_kills=options.kills,
            num_chapters=options.chapters,
            kills_per_task=options.per_task,
            seed=options.seed,
            say=print,
        )
    except kills.ProofFailed as fault:
        print(f"FAULT: {fault}\nThe runs lie in {folder}.", file=sys.stderr)
        return 1
    print(f"held: {dict(done)} in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

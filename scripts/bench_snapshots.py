"""What saving files before each call costs: the same scripted session with and without it, side by side.

    python scripts/bench_snapshots.py --files 20000 --steps 12

Prints the milliseconds of a step (a shell command that changes one file) as wall time and as CPU time of this
process and its children, and what the first one costs, which takes up the whole folder.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from k3agent.agent.session import Session, SessionOptions
from k3agent.events import AnyEvent, CallEnded, CallProposed
from k3agent.providers.base import ModelInfo
from k3agent.providers.scripted import ScriptedCall, ScriptedClient, Step

INFO = ModelInfo(
    provider="scripted", model="s", base_url="scripted:", context_window=262_144, max_output_tokens=32_000
)


def make_repository(root: Path, num_files: int) -> None:
    for number in range(num_files):
        path = root / f"package{number % 100}" / f"part{number // 100 % 20}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""Module {number}."""\n' + f"def f(x):\n    return x + {number}\n\n\n" * 60)
    who = ("-c", "user.name=b", "-c", "user.email=b@localhost")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run(["git", *who, *arguments], cwd=root, check=True)
    old = time.time() - 3600
    for path in root.rglob("*.py"):
        os.utime(path, (old, old))


def cpu_s() -> float:
    return sum(os.times()[:4])


async def play(root: Path, home: Path, steps: int, *, has_snapshots: bool) -> tuple[list[float], list[float]]:
    """(wall seconds, CPU seconds) of each call."""
    script = [
        Step(
            calls=(
                ScriptedCall(name="shell", arguments={"command": f"echo {n} >> package1/part1/module101.py"}),
            )
        )
        for n in range(steps)
    ]
    options = SessionOptions(
        cwd=root,
        client=ScriptedClient([*script, Step(text="done")], info=INFO),
        home=home,
        environ={"PATH": os.environ["PATH"], "HOME": str(home)},
        permission_mode="auto",
        sandbox="off",
        snapshots=has_snapshots,
    )
    session = await Session.create(options)
    wall: list[float] = []
    cpu: list[float] = []
    began: list[float] = []

    def watch(event: AnyEvent) -> None:
        if isinstance(event, CallProposed):
            began[:] = [time.monotonic(), cpu_s()]
        elif isinstance(event, CallEnded):
            wall.append(time.monotonic() - began[0])
            cpu.append(cpu_s() - began[1])

    session.subscribe(watch)
    await session.submit("go")
    await session.aclose()
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="k3agent-bench-"))
    try:
        root, home = folder / "ws", folder / "home"
        root.mkdir()
        make_repository(root, args.files)
        print(f"{args.files} files, {args.steps} steps; ms: first call | median of the others (wall, CPU)")
        # Two rounds: in the second one the folder is known from the first.
        for number in (1, 2):
            for has_snapshots in (False, True):
                wall, cpu = asyncio.run(play(root, home, args.steps, has_snapshots=has_snapshots))
                first = f"{wall[0] * 1000:7.0f} {cpu[0] * 1000:7.0f}"
                others = f"{statistics.median(wall[1:]) * 1000:7.0f} {statistics.median(cpu[1:]) * 1000:7.0f}"
                print(f"round {number}, snapshots {'on ' if has_snapshots else 'off'}: {first} | {others}")
        size = sum(path.stat().st_size for path in (home / "snapshots").rglob("*") if path.is_file())
        print(f"the snapshots take {size / 1e6:.1f} MB")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

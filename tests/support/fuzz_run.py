"""Gives random commands to the judge and those that it calls harmless to a real bash.

`python -m support.fuzz_run REPORT ROOT SEED COUNT` reports one JSON line: how many were run, and which of
them changed something beside the workspace. It is started by `behind_wall`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from support.fuzz import command, pool
from support.hostile import Runner
from support.hostile_world import World

BATCH = 40


async def _bad(runner: Runner, commands: list[str]) -> list[str]:
    """Those of `commands` that have an effect outside, found by halves."""
    world = runner.world
    runner.renew("")
    world.remember("fuzz")
    script = "".join(f"( {_in_bash(text)} )\n" for text in commands)
    (world.workspace / "all.sh").write_text(script, encoding="utf-8")
    await runner.shell("bash all.sh > /dev/null 2>&1 < /dev/null")
    if not world.proofs("fuzz", ""):
        return []
    if len(commands) == 1:
        return commands
    half = len(commands) // 2
    return await _bad(runner, commands[:half]) + await _bad(runner, commands[half:])


def _in_bash(text: str) -> str:
    quoted = "'" + text.replace("'", "'\\''") + "'"
    return f"exec timeout -k 1 3 bash -c {quoted}"


async def main(root: Path, seed: int, count: int) -> dict[str, Any]:
    dice, texts = random.Random(seed), pool()
    with World(root) as world:
        runner = Runner(world, "control")
        runner.renew("")
        chosen: list[str] = []
        for _ in range(count):
            text = command(dice, texts)
            if runner.verdicts(text)["default"] == "allow":
                chosen.append(text)
        bad: list[str] = []
        for at in range(0, len(chosen), BATCH):
            bad += await _bad(runner, chosen[at : at + BATCH])
    return {"seed": seed, "generated": count, "ran": len(chosen), "bad": bad}


if __name__ == "__main__":
    report_, root_, seed_, count_ = sys.argv[1:]
    row_ = asyncio.run(main(Path(root_), int(seed_), int(count_)))
    Path(report_).write_text(json.dumps(row_) + "\n", encoding="utf-8")

"""Runs everyday commands as the agent would: what is asked about, fails or is stopped is a finding.

`python -m support.harmless REPORT ROOT BACKEND STEP` writes the findings; it is started by `behind_wall`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from support.hostile import CORPUS, Runner
from support.hostile_world import World

MODES = {"looks": ("default", "auto"), "works": ("auto",), "judged": ("auto",)}


@dataclass(frozen=True, slots=True)
class Everyday:
    kind: str
    command: str


def everyday() -> list[Everyday]:
    groups = tomllib.loads((CORPUS / "harmless.toml").read_text(encoding="utf-8"))["group"]
    return [
        Everyday(group["kind"], text)
        for group in groups
        for text in group["commands"]
        if group["kind"] in MODES
    ]


def project() -> str:
    """The script that makes the workspace of these commands."""
    return str(tomllib.loads((CORPUS / "harmless.toml").read_text(encoding="utf-8"))["setup"]["script"])


async def hindered(backend: str, root: Path, chosen: list[Everyday]) -> list[str]:
    """What went wrong with which of the commands; a renewed workspace for each that works."""
    found: list[str] = []
    with World(root) as world:
        runner = Runner(world, backend)
        runner.renew(project())
        for row in chosen:
            verdicts = runner.verdicts(row.command)
            asked = [mode for mode in MODES[row.kind] if verdicts[mode] != "allow"]
            if asked:
                found.append(f"{row.command!r}: {', '.join(asked)} mode says {verdicts[asked[0]]}")
            if row.kind == "judged":
                continue
            if row.kind == "works":
                runner.renew(project())
            output = await runner.shell(row.command)
            if not output.endswith("[exit code 0]") or "[sandbox:" in output:
                found.append(f"{row.command!r}: {output[-300:]}")
    return found


if __name__ == "__main__":
    report_, root_, backend_, step_ = sys.argv[1:]
    found_ = asyncio.run(hindered(backend_, Path(root_), everyday()[:: int(step_)]))
    Path(report_).write_text("".join(json.dumps(row) + "\n" for row in found_), encoding="utf-8")

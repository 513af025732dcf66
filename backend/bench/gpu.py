"""Everything that a GPU has to show, and the page that tells it: `make gpu`.

Parts: `tests` (agreement of kernels, graphs, exactness), `kernels` (every operation by implementation and
shape), and the stand-ins by name. Each leaves its table in a folder, so that parts can run one by one, on a
machine that is only lent, and the page is written from whatever is there. Without a GPU nothing is run.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from k3agent.backend.bench import standins
from k3agent.backend.kernels.bench import environment

STANDINS = ("kimi-linear", "k3-group", "k3-rank")
PARTS = ("tests", "kernels", *STANDINS)
_TITLES = {"tests": "Tests", "kernels": "Kernels"}
_HEAD = """# Performance on one GPU

Written by `make gpu` (`python -m k3agent.backend.bench.gpu`); do not edit by hand. Times are medians. A
floor is the least that the hardware allows: bytes that must move over the copy bandwidth, or operations over
the rate of bf16 products, whichever is longer. Stand-ins have random weights of real shape and run through
the runner and the prefix cache of the engine; transformers, with the kernels of fla, runs after them
in the same process.
"""


@dataclass(frozen=True)
class Outcome:
    """How one part went."""

    part: str
    command: str
    status: int
    seconds: float
    machine: str


def command_of(part: str, folder: Path, extra: Sequence[str]) -> list[str]:
    """What runs a part; it writes its table to `PART.md` of the folder."""
    files = ["--json", str(folder / f"{part}.json"), "--markdown", str(folder / f"{part}.md")]
    python = [sys.executable, "-P", "-m"]
    if part == "tests":
        return [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", "-q", *extra]
    if part == "kernels":
        return [*python, "k3agent.backend.kernels.bench", *files, *extra]
    return [*python, "k3agent.backend.bench.standin", part, *files, *extra]


def run(part: str, folder: Path, extra: Sequence[str]) -> Outcome:
    """Run one part and leave its outcome; what it prints is shown."""
    command = command_of(part, folder, extra)
    shown = " ".join(["python", *command[1:]]).replace(f"{folder}/", "")
    print(f"== {part}: {shown}", flush=True)
    begun = time.perf_counter()
    if part == "tests":
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        print(ended.stdout[-8000:] + ended.stderr[-2000:], flush=True)
        lines = ended.stdout.strip().splitlines()
        (folder / "tests.md").write_text(f"`{lines[-1] if lines else 'no output'}`\n", "utf-8")
    else:
        ended = subprocess.run(command, check=False)
    versions = ", ".join(f"{name} {value}" for name, value in environment(torch.device("cuda")).items())
    outcome = Outcome(part, shown, ended.returncode, round(time.perf_counter() - begun, 1), versions)
    (folder / f"{part}.outcome.json").write_text(json.dumps(asdict(outcome)), "utf-8")
    return outcome


def page(folder: Path) -> str:
    """The page from all that lies in the folder."""
    sections = [_HEAD]
    for part in PARTS:
        file = folder / f"{part}.outcome.json"
        if not file.exists():
            continue
        outcome = Outcome(**json.loads(file.read_text("utf-8")))
        title = _TITLES.get(part) or standins.find(part).title
        sections.append(f"## {title}\n")
        how = "" if outcome.status == 0 else f" It ended with status {outcome.status}."
        sections.append(f"`{outcome.command}`, {outcome.seconds:.0f} s, {outcome.machine}.{how}\n")
        table = folder / f"{part}.md"
        if table.exists():
            # the stand-ins' own heading says what ours does
            text = (
                table.read_text("utf-8").split("\n", 2)[2] if part in STANDINS else table.read_text("utf-8")
            )
            sections.append(text.strip() + "\n")
    return "\n".join(sections)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and write the page; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.bench.gpu", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--folder", type=Path, default=Path("build/gpu"), help="where the tables are left")
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    parser.add_argument("--only-page", action="store_true", help="run nothing, write the page")
    parser.add_argument("extra", nargs="*", help="flags behind --, for the command of the only part")
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"--parts {','.join(unknown)}: known are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available() and not options.only_page:
        print("No GPU that PyTorch can use: nothing was run, and docs/performance.md stays as it is.")
        return 0
    outcomes = [] if options.only_page else [run(part, options.folder, options.extra) for part in parts]
    options.page.write_text(page(options.folder), "utf-8")
    for outcome in outcomes:
        print(f"{outcome.part}: status {outcome.status}, {outcome.seconds:.0f} s")
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

"""Everything that a GPU has to show, and the page that tells it: `make gpu`.

Parts: `tests` (agreement of kernels, graphs, exactness), `tune` (the best configurations, into `tuned.json`),
`kernels` (every operation by implementation and shape), `fla` (its KDA beside ours), the stand-ins by name,
`exact` (resumes of Kimi-Linear, bit by bit), `peers` (Kimi-Linear in transformers). Each leaves its table in
a folder, so that parts can run one by one, and the page is written from whatever is there; `bench.session`
runs them on a machine that is only lent. Without a GPU nothing is run.
"""

import argparse
import importlib.util
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
PARTS = ("tests", "tune", "kernels", "fla", *STANDINS, "exact", "peers")
_USUAL = ("tests", "kernels", *STANDINS)
"""The stand-ins run their peers themselves."""
_TITLES = {
    "tests": "Tests",
    "tune": "Tuning",
    "kernels": "Kernels",
    "fla": "Kernels of fla",
    "exact": "Exact resumes, Kimi-Linear-48B",
    "peers": "Kimi-Linear-48B in transformers",
}
_TUNED_OPS = ("moe_experts", "kda_prefill", "mla_decode", "mla_prefill", "kda_decode")
_EXACT_CHUNK = 512
"""A short grid has more points to resume at, and its passes are those that graphs hold."""
_HEAD = """# Performance on one GPU

Written by `make gpu` (`python -m k3agent.backend.bench.gpu`); do not edit by hand. Times are medians. A
floor is the least that the hardware allows: bytes that must move over the copy bandwidth, or operations over
the rate of bf16 products, whichever is longer. Stand-ins have random weights of real shape and run through
the runner and the prefix cache of the engine; transformers, with the kernels of fla, on the same machine.
"""


_WITH_HEADING = (*STANDINS, "exact", "peers")


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
        return [*python, "pytest", "tests/gpu", "-m", "gpu", "-q", *_side_by_side(), *extra]
    tuned = str(folder / "tuned.json")
    if part == "tune":
        ops = () if extra and not extra[0].startswith("-") else _TUNED_OPS
        return [*python, "k3agent.backend.kernels.tune", "--write", tuned, *ops, *extra]
    if part == "kernels":
        return [*python, "k3agent.backend.kernels.bench", "--faster", tuned, *files, *extra]
    if part == "fla":
        fla = ("kda_prefill", "--shape", "K3 T=", "--repeats", "15")
        return [*python, "k3agent.backend.kernels.bench", *fla, *files, *extra]
    standin = [*python, "k3agent.backend.bench.standin"]
    if part == "exact":
        flags = ("--parts", "exact", "--chunk", str(_EXACT_CHUNK), "--no-peers")
        return [*standin, "kimi-linear", "--kernels", "triton", *flags, *files, *extra]
    if part == "peers":
        beside = ("--only-peers", "--beside", str(folder / "kimi-linear.json"))
        return [*standin, "kimi-linear", *beside, *files, *extra]
    return [*standin, part, "--kernels", "triton", *files, *extra]


def _side_by_side() -> list[str]:
    """Tests spend most of their time compiling."""
    return ["-n", "12"] if importlib.util.find_spec("xdist") is not None else []


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
                table.read_text("utf-8").split("\n", 2)[2]
                if part in _WITH_HEADING
                else table.read_text("utf-8")
            )
            sections.append(text.strip() + "\n")
    # of bench.ranks, one for each number of them
    sections += [file.read_text("utf-8") for file in sorted(folder.glob("ranks*.md"))]
    return "\n".join(sections)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and write the page; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.bench.gpu", description=__doc__)
    parser.add_argument("--parts", default=",".join(_USUAL), help=f"some of {','.join(PARTS)}")
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

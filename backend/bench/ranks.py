"""All that several ranks have to show, on a machine that is lent for minutes:
`python -m k3agent.backend.bench.ranks --ranks 2 --device cuda --fixtures DIR --out DIR`.

Steps, each a process of its own with a time limit: `reduce` (sums over ranks), `tokens` (tiny models through
the engine, hits of all tiers), `graphs` (the same with CUDA graphs), `server` (answers, and a rank killed),
`layers` (each layer of real shape), `check` (rankcheck), `slice` (a K3 that one card does not hold), `rates`.
After each one the folder holds what is known in three files, with two ranks `ranks2.md`, `ranks2.json` and
`ranks2.log`, together with steps that an earlier command left there; `bench.gpu --only-page` puts the first
one into `docs/performance.md` if it finds it in its folder.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from k3agent.backend.bench.steps import status_of

WORK = Path("build/ranks")
OUTCOMES = "outcomes.json"
LEAST_S = 15.0
"""A step that has less is not begun."""
GRACE_S = 8.0
"""Between the time that a step is told and the time at which it is ended."""
LOG_CHARACTERS, SHOWN_CHARACTERS = 400_000, 3000


@dataclass(frozen=True)
class Step:
    """`seconds` at most, of which `kept` are kept for it while earlier steps run."""

    name: str
    module: str
    extra: tuple[str, ...] = ()
    seconds: float = 60.0
    kept: float = 0.0
    is_ours: bool = True
    """Does it take the flags of `rank_results.parser`?"""


def steps() -> tuple[Step, ...]:
    """What is worth most comes first."""
    ours = "k3agent.backend.bench.rank_"
    return (
        Step("reduce", f"{ours}reduce", seconds=45),
        Step("tokens", f"{ours}tokens", seconds=120, kept=80),
        Step("graphs", f"{ours}graphs", seconds=100, kept=60),
        Step("server", f"{ours}server", seconds=100, kept=60),
        Step("layers", f"{ours}layers", seconds=90, kept=45),
        Step("slice", f"{ours}rates", ("--slice",), 130, kept=90),
        Step("rates", f"{ours}rates", (), 180, kept=100),
        Step("check", "k3agent.backend.rankcheck", ("--no-warm-up", "--dtype", "float64"), 60, is_ours=False),
    )


@dataclass(frozen=True)
class Outcome:
    """How one step went."""

    step: str
    command: str
    status: int
    seconds: float


@dataclass
class Session:
    """One run of all steps."""

    options: argparse.Namespace
    outcomes: list[Outcome]

    def run(self, several: Sequence[Step]) -> None:
        """Those for which no time is left are told and left out."""
        begun, options = time.monotonic(), self.options
        for place, step in enumerate(several):
            later = sum(one.kept for one in several[place + 1 :])
            left = options.limit_s - (time.monotonic() - begun)
            allowed = min(step.seconds, max(left - later, min(step.kept, left)) - GRACE_S)
            if allowed < LEAST_S:
                print(f"== {step.name}: no time is left for it", flush=True)
                continue
            self._step(step, allowed)
            self._bundle()

    def command(self, step: Step, allowed: float) -> list[str]:
        options = self.options
        command = [sys.executable, "-P", "-m", step.module, "--ranks", str(options.ranks)]
        command += ["--device", options.device, *step.extra]
        if step.is_ours:
            command += ["--out", str(options.folder), "--limit-s", f"{allowed:.0f}"]
            command += ["--fixtures", str(options.fixtures), *(["--tiny"] if options.tiny else [])]
            command += ["--sums", options.sums] if options.sums != "auto" else []
        return command

    def _step(self, step: Step, allowed: float) -> None:
        command = self.command(step, allowed)
        shown = " ".join(["python", *command[1:]])
        print(f"== {step.name}, at most {allowed:.0f} s: {shown}", flush=True)
        begun, log = time.monotonic(), self.options.folder / f"{step.name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, PYTHONUNBUFFERED="1"),
                start_new_session=True,
            )
            status = status_of(process, allowed + GRACE_S)
        text = log.read_text("utf-8", errors="replace")
        print(text[-SHOWN_CHARACTERS:], flush=True)
        if not step.is_ours:
            (self.options.folder / f"{step.name}.md").write_text(
                f"```\n{text[-2000:].strip()}\n```\n", "utf-8"
            )
        outcome = Outcome(step.name, shown, status, round(time.monotonic() - begun, 1))
        self.outcomes = [one for one in self.outcomes if one.step != step.name] + [outcome]
        (self.options.folder / OUTCOMES).write_text(json.dumps([asdict(one) for one in self.outcomes]))
        print(f"== {step.name}: status {status}, {outcome.seconds:.0f} s", flush=True)

    def _bundle(self) -> None:
        """What is known by now, in three files."""
        options, versions = self.options, dict[str, str]()
        page, logs, found = [f"## {options.ranks} ranks"], list[str](), list[dict[str, object]]()
        for outcome in self.outcomes:
            table, data, log = (options.folder / f"{outcome.step}.{end}" for end in ("md", "json", "log"))
            page.append(
                f"#### {outcome.step}\n\n`{outcome.command}`: status {outcome.status}, {outcome.seconds} s"
            )
            page.append(table.read_text("utf-8") if table.exists() else "It left no table.")
            # a look at the GPU from here would take memory that the steps need
            known = json.loads(data.read_text("utf-8")) if data.exists() else {}
            rows = known.pop("rows", [])
            known.pop("step", None)
            versions |= known
            found.append({**asdict(outcome), "rows": rows})
            text = log.read_text("utf-8", errors="replace")
            logs.append(f"== {outcome.step}: status {outcome.status}\n{text[-LOG_CHARACTERS:]}")
        page.insert(1, ", ".join(f"{name} {value}" for name, value in versions.items()))
        (options.out / f"ranks{options.ranks}.md").write_text("\n\n".join(page) + "\n", "utf-8")
        (options.out / f"ranks{options.ranks}.json").write_text(
            json.dumps({**versions, "steps": found}, indent=1), "utf-8"
        )
        (options.out / f"ranks{options.ranks}.log").write_text("\n".join(logs), "utf-8")


def earlier(folder: Path) -> list[Outcome]:
    """What an earlier command ran in this folder."""
    file = folder / OUTCOMES
    return [Outcome(**one) for one in json.loads(file.read_text("utf-8"))] if file.exists() else []


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps; 1 when one of them failed."""
    known = [step.name for step in steps()]
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.bench.ranks", description=__doc__)
    add = parser.add_argument
    add("--ranks", type=int, default=2)
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--fixtures", type=Path, default=Path("../shared/fixtures"), help="folder of tiny models")
    add("--out", type=Path, required=True, help="the folder that comes back")
    add("--limit-s", type=float, default=520.0, help="seconds, at most (default: 520)")
    add("--steps", default=",".join(known), help=f"some of {','.join(known)}")
    sums = "symmetric: `graphs` and `rates` also with small sums through symmetric memory (default: auto)"
    add("--sums", choices=("auto", "symmetric"), default="auto", help=sums)
    add("--tiny", action="store_true", help="tiny shapes, for a test of the command itself")
    add("--folder", type=Path, default=WORK, help=f"of the steps, by number of ranks (default: {WORK})")
    options = parser.parse_args(argv)
    wanted = options.steps.split(",")
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"--steps {','.join(unknown)}: known are {', '.join(known)}")
    if options.device == "cuda" and torch.cuda.device_count() < options.ranks:
        print(f"{torch.cuda.device_count()} GPUs, --ranks {options.ranks}: nothing was run.", file=sys.stderr)
        return 2
    # another number of ranks leaves tables by the same names
    options.folder /= str(options.ranks)
    for folder in (options.out, options.folder):
        folder.mkdir(parents=True, exist_ok=True)
    session = Session(options, earlier(options.folder))
    session.run([step for step in steps() if step.name in wanted])
    mine = [outcome for outcome in session.outcomes if outcome.step in wanted]
    return int(not mine or any(outcome.status for outcome in mine))


if __name__ == "__main__":
    sys.exit(main())

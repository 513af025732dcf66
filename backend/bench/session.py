"""All that is measured on a GPU that is lent for minutes: `python -m k3agent.backend.bench.session 1 --out
DIR`, then 2 and 3. Several numbers run as one, `--only` takes some of their steps.

A session runs its steps one after the other, each a process of its own with a time limit, so that none takes
the others with it. After each step the folder holds what is known by then in four files: a log, the tables,
an archive of all that the steps wrote, from which `bench.gpu --only-page` makes the page, and `tuned.json`.
Copy that last one to `backend/kernels/` before the next session, unless the machine has kept its files.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from k3agent.backend.bench.gpu import Outcome, command_of
from k3agent.backend.bench.steps import status_of
from k3agent.backend.disk_cache import kernels_folder
from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.bench import environment

TUNED = "tuned.json"
WORK = Path("build/gpu")
LEAST_S = 12.0
"""A step that has less is not begun: to start takes as long."""
GRACE_S = 12.0
"""Between the time that a step is told and the time at which it is ended."""
LOG_BYTES, SHOWN_CHARACTERS = 2 << 20, 1600


@dataclass(frozen=True)
class Step:
    """`part` as in bench.gpu; `seconds` at most, of which `kept` are kept for it while earlier ones run."""

    name: str
    part: str
    extra: tuple[str, ...] = ()
    seconds: float = 60.0
    kept: float = 0.0


def _tune(name: str, ops: str, seconds: float, each: float, shape: str = "") -> Step:
    flags = (*ops.split(), "--seconds", str(each), *(("--shape", shape) if shape else ()))
    return Step(f"tune-{name}", "tune", flags, seconds)


_ALL_BUT_EXACT = "first,prefill,decode,chunks,checkpoint"
"""Of a stand-in: what is timed; resumes are a step of their own."""

SESSIONS: dict[int, tuple[Step, ...]] = {
    1: (
        Step("tests", "tests", seconds=150),
        _tune("experts", "moe_experts", 85, 16, "Kimi-Linear"),
        _tune("kda", "kda_prefill", 100, 32),
        _tune("mla", "mla_decode mla_prefill", 80, 6),
        _tune("packed", "moe_experts", 70, 8, "K3"),
        _tune("decode", "kda_decode", 30, 3),
        Step("kernels", "kernels", ("--no-fla",), 120, kept=110),
    ),
    2: (
        Step("kimi-linear", "kimi-linear", ("--no-peers", "--parts", _ALL_BUT_EXACT), 270, kept=180),
        Step("peers", "peers", (), 260, kept=200),
    ),
    3: (
        Step("exact", "exact", ("--points", "1000", "--cache-bytes", "8G"), 230),
        Step("k3-rank", "k3-rank", ("--parts", "first,decode,prefill,checkpoint"), 130, kept=110),
        Step("k3-group", "k3-group", ("--parts", "first,decode,prefill"), 80, kept=70),
        Step("fla", "fla", (), 150, kept=60),
    ),
}
_OF_KERNELS = ("tune", "kernels", "fla")
_TINY = {"kimi-linear": "tiny-linear", "k3-rank": "tiny-k3-rank", "k3-group": "tiny-k3"}
_TINY_FLAGS = ["--kernels", "reference", "--graphs", "padded", "--chunk", "128"]
_TINY_FLAGS += ["--cache-bytes", "8M", "--max-model-len", "512"]


@dataclass
class Session:
    """One run of a session's steps."""

    numbers: Sequence[int]
    only: Sequence[str]
    out: Path
    folder: Path
    limit_s: float
    device: str
    tiny: bool

    @property
    def name(self) -> str:
        return "session" + "".join(map(str, self.numbers))

    def run(self) -> list[Outcome]:
        """All steps; those for which no time is left are told and left out."""
        begun, outcomes = time.monotonic(), list[Outcome]()
        steps = [step for number in self.numbers for step in SESSIONS[number]]
        steps = [step for step in steps if not self.only or step.name in self.only]
        (self.folder / f"{self.name}.log").write_text("", "utf-8")
        for place, step in enumerate(steps):
            left = self.limit_s - (time.monotonic() - begun) - sum(s.kept for s in steps[place + 1 :])
            allowed = min(step.seconds, left - GRACE_S)
            if allowed < LEAST_S:
                print(f"== {step.name}: no time is left for it", flush=True)
                continue
            outcomes.append(self._step(step, allowed))
            self._bundle(outcomes)
        return outcomes

    def _step(self, step: Step, allowed: float) -> Outcome:
        command = self._command(step, allowed)
        shown = " ".join(["python", *command[1:]]).replace(f"{self.folder}/", "")
        print(f"== {step.name}, at most {allowed:.0f} s: {shown}", flush=True)
        begun, log = time.monotonic(), self.folder / f"{step.name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )
            status = status_of(process, allowed + GRACE_S)
        text = log.read_text("utf-8", errors="replace")
        print(text[-SHOWN_CHARACTERS:], flush=True)
        if step.part == "tests":
            (self.folder / "tests.md").write_text(f"`{(text.strip().splitlines() or ['no output'])[-1]}`\n")
        with (self.folder / f"{self.name}.log").open("a", encoding="utf-8") as file:
            file.write(f"== {step.name}: {shown}\n{text[-LOG_BYTES:]}\n")
        versions = ", ".join(f"{k} {v}" for k, v in environment(torch.device(self.device)).items())
        seconds = round(time.monotonic() - begun, 1)
        outcome = Outcome(step.part, shown, status, seconds, versions)
        (self.folder / f"{step.name}.outcome.json").write_text(json.dumps(asdict(outcome)), "utf-8")
        print(f"== {step.name}: status {status}, {seconds:.0f} s", flush=True)
        return outcome

    def _command(self, step: Step, allowed: float) -> list[str]:
        extra = list(step.extra)
        if step.part != "tests":
            extra += ["--total", f"{allowed:.0f}"]
            if self.tiny or self.device != "cuda":
                extra += ["--device", self.device]
        if not self.tiny or step.part == "tests":
            return command_of(step.part, self.folder, extra)
        extra += ["--tiny"] if step.part in _OF_KERNELS else _TINY_FLAGS
        return [_TINY.get(word, word) for word in command_of(step.part, self.folder, extra)]

    def _environment(self) -> dict[str, str]:
        found = dict(os.environ, PYTHONUNBUFFERED="1")
        found[pinned.TUNED_VARIABLE] = str(self.folder.absolute() / TUNED)
        found.setdefault("TRITON_CACHE_DIR", str(kernels_folder()))
        return found

    def _bundle(self, outcomes: Sequence[Outcome]) -> None:
        """What is known by now, in few files."""
        name = self.name
        lines = [f"{one.part}: status {one.status}, {one.seconds:.0f} s" for one in outcomes]
        tables = [file.read_text("utf-8") for file in sorted(self.folder.glob("*.md"))]
        (self.out / f"{name}.md").write_text("\n\n".join(["\n".join(lines), *tables]), "utf-8")
        with tarfile.open(self.out / f"{name}.tar.gz", "w:gz") as archive:
            for file in sorted(self.folder.iterdir()):
                if file.suffix in (".md", ".json"):
                    archive.add(file, file.name)
        for kept in (f"{name}.log", TUNED):
            if (self.folder / kept).exists():
                (self.out / kept).write_bytes((self.folder / kept).read_bytes())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a session; 1 when one of its steps failed."""
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.bench.session", description=__doc__)
    parser.add_argument("sessions", type=int, nargs="+", choices=sorted(SESSIONS), metavar="session")
    parser.add_argument("--only", default="", help="steps, divided by commas (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="the folder that comes back")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds, at most (default: 540)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, for a test of the command itself")
    parser.add_argument("--folder", type=Path, default=WORK, help=f"of the steps (default: {WORK})")
    options = parser.parse_args(argv)
    only = [name for name in options.only.split(",") if name]
    known = [step.name for number in options.sessions for step in SESSIONS[number]]
    if unknown := [name for name in only if name not in known]:
        parser.error(f"--only {','.join(unknown)}: these sessions have {', '.join(known)}")
    for folder in (options.out, options.folder):
        folder.mkdir(parents=True, exist_ok=True)
    kept, shipped = options.folder / TUNED, pinned.tuned_file()
    if shipped.exists() and shipped.absolute() != kept.absolute():
        kept.write_bytes(shipped.read_bytes())
    session = Session(
        options.sessions, only, options.out, options.folder, options.limit, options.device, options.tiny
    )
    outcomes = session.run()
    return int(not outcomes or any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

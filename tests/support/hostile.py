"""Runs hostile commands as the agent would, and looks whether they reached what they are after.

`python -m support.hostile REPORT ROOT BACKEND STEP FILE...` writes one JSON line per case. It is started by
`walled`, inside namespaces of its own: even a command that gets out of the sandbox meets nothing but the
throw-away home below ROOT.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from k3agent.agent.permissions import Action, Permissions, Territory
from k3agent.safety.environment import child_environ
from k3agent.tools.base import Access, Question, ToolContext
from k3agent.tools.jobs import JobTable
from k3agent.tools.sandbox import rules
from k3agent.tools.sandbox.base import Sandbox
from k3agent.tools.sandbox.landlock import Landlock
from k3agent.tools.sandbox.policy import Bounds, Policy
from k3agent.tools.shell import ShellArgs, ShellTool
from k3agent.tools.support import processes
from k3agent.tools.support.freshness import Freshness
from k3agent.tools.support.usage import Limits
from support.hostile_world import World
from support.sandboxes import make

CORPUS = Path(__file__).parents[1] / "corpus"
# Everything but ROOT is read-only, all processes and the network are the wall's own.
WALL = 'mount --rbind "$0" "$0"; mount -o remount,bind,ro /; ip link set lo up 2>/dev/null; exec "$@"'
LINGER_S = 1.0
TIMEOUT_S = 20
LIMITS = Limits(memory=1 << 30, processes=300)


@dataclass(frozen=True, slots=True)
class Case:
    """`kind`: how success is seen, see `World.proofs`. `has_control`: it succeeds where nothing guards."""

    name: str
    tries: str
    proof: str
    command: str
    kind: str
    setup: str = ""
    has_control: bool = True


@dataclass(slots=True)
class Outcome:
    name: str
    tries: str
    command: str
    verdicts: dict[str, str]
    proofs: list[str]
    output: str
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def cases(*files: str) -> list[Case]:
    """The cases of the corpus, or of some of its files (`writes`, `git` ...)."""
    folder = CORPUS / "hostile"
    names = files or tuple(sorted(path.stem for path in folder.glob("*.toml")))
    return [case for name in names for case in _of_file(folder / f"{name}.toml")]


def _of_file(path: Path) -> Iterator[Case]:
    groups = tomllib.loads(path.read_text(encoding="utf-8"))["group"]
    number = 0
    for group in groups:
        rows = [("", command) for command in group.get("commands", ())]
        for repository in group.get("repositories", ()):
            rows += [(repository["setup"], command) for command in repository["commands"]]
        for setup, command in rows:
            number += 1
            yield Case(
                f"{path.stem}-{number}",
                group["tries"],
                group["proof"],
                command,
                group.get("kind", path.stem),
                setup,
                group.get("control", True),
            )


def walled(backend: str, root: Path, files: tuple[str, ...], step: int, timeout_s: float) -> list[Outcome]:
    """Run each `step`th case of files of the corpus in a process of its own, behind a wall; the outcomes."""
    rows = behind_wall("support.hostile", root, backend, str(step), *files, timeout_s=timeout_s)
    return [Outcome(**json.loads(row)) for row in rows]


def behind_wall(module: str, root: Path, *words: str, timeout_s: float) -> list[str]:
    """Run `python -m module REPORT ROOT WORDS...` in namespaces of its own; the lines of the report."""
    root.mkdir(parents=True, exist_ok=True)
    report = root / "report.jsonl"
    argv = [sys.executable, "-m", module, str(report), str(root), *words]
    wall = ["unshare", "-Urmpn", "--fork", "--mount-proc", "--kill-child", "sh", "-c", WALL, str(root)]
    done = subprocess.run(
        [*wall, *argv],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the runner failed: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return report.read_text(encoding="utf-8").splitlines()


def wall_works() -> bool:
    probe = ["unshare", "-Urmpn", "--fork", "--mount-proc", "true"]
    return shutil.which("unshare") is not None and subprocess.run(probe, check=False).returncode == 0


async def _nobody(question: Question) -> str:
    raise AssertionError(question.text)


class Unguarded(Landlock):
    """Guards the machine from us, but nothing of the throw-away home: here attacks are meant to succeed."""

    def policy(self, cwd: Path, writable: Sequence[Path]) -> Policy:
        return replace(super().policy(cwd, writable), protected=(), pinned=(), hidden=())

    def settle(self, *, is_over: bool = False) -> str:
        return ""


class Runner:
    """Runs cases one after the other in a `World`. `sandbox_of` makes the sandbox of one session."""

    def __init__(self, world: World, backend: str) -> None:
        self.world = world
        self.backend = backend

    def sandbox(self) -> Sandbox:
        world = self.world
        if self.backend == "control":
            return Unguarded(
                Bounds(home=world.root), has_network=True, abi=rules.abi_version(), has_namespaces=True
            )
        return make(
            self.backend, Bounds(home=world.home, private=(world.home / ".k3agent-home",), limits=LIMITS)
        )

    @property
    def writable(self) -> tuple[Path, ...]:
        return (self.world.home,) if self.backend == "control" else ()

    def renew(self, setup: str) -> None:
        self.world.renew()
        if setup:
            self.world.as_user(setup)

    async def run(self, case: Case) -> Outcome:
        world = self.world
        self.renew(case.setup)
        command = world.filled(case.command)
        outcome = Outcome(case.name, case.tries, command, self.verdicts(command), [], "")
        world.remember(case.kind)
        outcome.output = await self.shell(command)
        outcome.proofs = world.proofs(case.kind, outcome.output)
        return outcome

    async def shell(self, command: str) -> str:
        """What the model would be told of `command`; what it left running has ended then."""
        world = self.world
        sandbox = self.sandbox()
        jobs = JobTable(world.root / "outputs")
        ctx = ToolContext(
            cwd=world.workspace,
            environ=child_environ(world.environ),
            output_dir=world.root / "outputs",
            freshness=Freshness(),
            jobs=jobs,
            sandbox=sandbox,
            emit=lambda text: None,
            ask=_nobody,
            extra_dirs=self.writable,
        )
        try:
            answer = await ShellTool().run(ShellArgs(command=command, timeout_s=TIMEOUT_S), ctx)
            if any(processes.members(record.session, record.mark) for record in jobs._log.records):
                await asyncio.sleep(LINGER_S)
        finally:
            await jobs.aclose()
            sandbox.close()
        return answer.text

    def verdicts(self, command: str) -> dict[str, str]:
        world = self.world
        territory = Territory(
            cwd=world.workspace,
            extra_dirs=(),
            home=world.home / ".k3agent-home",
            environ=world.environ,
            readable=(),
            scratch=(Path("/tmp"),),
        )
        found: dict[str, str] = {}
        for mode in ("default", "auto"):
            permissions = Permissions(mode=mode, allow=(), deny=(), territory=territory)
            found[mode] = permissions.judge("shell", Access(runs=command)).action
        return found


def ran(outcome: Outcome, mode: str) -> bool:
    return outcome.verdicts[mode] == Action.ALLOW


async def main(report: Path, root: Path, backend: str, step: int, files: tuple[str, ...]) -> None:
    with World(root) as world, report.open("w", encoding="utf-8") as stream:
        runner = Runner(world, backend)
        for case in cases(*files)[::step]:
            if backend == "control" and not case.has_control:
                continue
            start = asyncio.get_running_loop().time()
            outcome = await runner.run(case)
            outcome.seconds = asyncio.get_running_loop().time() - start
            stream.write(json.dumps(asdict(outcome)) + "\n")
            stream.flush()


if __name__ == "__main__":
    report_, root_, backend_, step_, *files_ = sys.argv[1:]
    asyncio.run(main(Path(report_), Path(root_), backend_, int(step_), tuple(files_)))

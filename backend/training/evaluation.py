"""Evaluates a model through the real agent: fresh projects, the real command line, checkers on real files.

`python -m k3agent.backend.training.evaluation --tasks 20-per-family --held-out --out report` writes
report.json
and report.md with a table per family. `--handwritten` takes the hand-written tasks instead.
"""

import argparse
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.player import LONG, draw_plan
from k3agent.backend.training.episodes.programs import write_answering, write_refusing
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.session import Outcome, Plan
from k3agent.backend.training.episodes.wording import say
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.episodes.workspace import read_tree
from k3agent.backend.training.task import EDITIONS, FAMILIES, SECOND_EDITION, Task

HANDWRITTEN = "k3agent.backend.training.handwritten"
SECONDS_A_PROMPT = 600


@dataclass(slots=True)
class GeneratedTask:
    """A task drawn by the episodes' goals; `files` is the project as the user has it."""

    name: str
    family: str
    prompts: list[str]
    files: dict[str, str]
    plan: Plan

    @property
    def checks(self) -> Sequence[str]:
        """Commands that the agent runs when the model says that it is done."""
        return self.plan.commands

    def build(self, folder: Path) -> None:
        """Write the project."""
        for path, text in self.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode("utf-8", "surrogateescape"))
        if self.plan.setup is not None:
            self.plan.setup(str(folder))
            # what was set up there was there before the agent came
            self.files = read_tree(folder)

    def check(self, folder: Path, answers: list[str]) -> str | None:
        """Judge files and the last answer."""
        answer = answers[-1] if answers else ""
        return self.plan.check(Outcome(dict(self.files), read_tree(folder), answer, str(folder)))


def generate(family: str, count: int, seed: int, held_out: bool, part: str = "") -> list[GeneratedTask]:
    """Tasks of a family; the same seed gives the same tasks. `part` overrides which wordings are used."""
    rng = random.Random(f"evaluation/{family}/{seed}/{held_out}/{part}")
    tasks: list[GeneratedTask] = []
    while len(tasks) < count:
        words = Words(rng, held_out, part)
        project = draw_project(rng, words)
        plan = draw_plan(Setting(Facts(dict(project.files)), rng, words, project), LONG, family)
        if plan is None:
            continue
        files = dict(project.files)
        if plan.prepare is not None:
            plan.prepare(files)
        prompt = plan.prompt if plan.prompt is not None else say(plan.goal, plan.slots, rng, words.part)
        tasks.append(GeneratedTask(f"{family}-{len(tasks):03d}-{plan.goal}", family, [prompt], files, plan))
    return tasks


@dataclass(slots=True)
class Verdict:
    """What became of a task."""

    name: str
    family: str
    solved: bool
    reason: str
    prompts: list[str]
    answers: list[str] = field(default_factory=list)
    turns: int = 0
    seconds: float = 0.0
    transcript: list[Any] = field(default_factory=list)


class Runner:
    """Runs tasks with the command line of the agent."""

    def __init__(self, command: str, max_turns: int, home: Path, extra: Sequence[str] = ()) -> None:
        self.command = shlex.split(command)
        self.max_turns = max_turns
        self.extra = list(extra)
        self.environ = dict(os.environ)
        self.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.environ.get('PATH', '')}"
        self.home = home
        for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "MOONSHOT_API_KEY", "KIMI_API_KEY"):
            self.environ.pop(name, None)

    def run(self, task: Task) -> Verdict:
        """Build, ask, judge."""
        verdict = Verdict(task.name, task.family, False, "", list(task.prompts))
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="task-", ignore_cleanup_errors=True) as name:
            folder = Path(name) / "project"
            folder.mkdir()
            task.build(folder)
            try:
                self._talk(task, folder, verdict, self._environ(task, Path(name)))
                wrong = task.check(folder, verdict.answers)
            except Exception as error:  # one task, or its check, must not end all the others
                wrong = f"{type(error).__name__}: {error}"
        verdict.solved, verdict.reason = wrong is None, wrong or ""
        verdict.seconds = round(time.monotonic() - start, 1)
        return verdict

    def _environ(self, task: Task, folder: Path) -> dict[str, str]:
        """The environment of a task's runs: with programs of its own where it needs them."""
        # a home of its own for each of the tasks side by side, and so a model server of its own
        environ = self.environ | {"K3AGENT_HOME": str(self.home / threading.current_thread().name)}
        if isinstance(task, GeneratedTask) and (task.plan.refused or task.plan.programs):
            programs = folder / "programs"
            if task.plan.refused:
                write_refusing(programs, task.plan.refused)
            write_answering(programs, task.plan.programs)
            environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
        return environ

    def _talk(self, task: Task, folder: Path, verdict: Verdict, environ: dict[str, str]) -> None:
        """All prompts in one session."""
        session = ""
        for prompt in task.prompts:
            checks = [flag for command in task.checks for flag in ("--check", command)]
            is_only = len(task.prompts) == 1
            result = self._ask(prompt, folder, session, checks, environ, ephemeral=is_only, verdict=verdict)
            session = str(result.get("session_id", ""))
            verdict.turns += int(result.get("num_turns") or 0)
            verdict.answers.append(str(result.get("result") or ""))

    def _ask(
        self,
        prompt: str,
        folder: Path,
        session: str,
        checks: Sequence[str],
        environ: dict[str, str],
        *,
        ephemeral: bool,
        verdict: Verdict,
    ) -> dict[str, Any]:
        flags = [
            "--output-format",
            "stream-json",
            "--permission-mode",
            "auto",
            "--max-turns",
            str(self.max_turns),
        ]
        flags += ["--ephemeral"] if ephemeral else []
        flags += ["--resume", session] if session else []
        done = subprocess.run(
            [*self.command, "run", *flags, *checks, *self.extra, "--", prompt],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_A_PROMPT,
            check=False,
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        verdict.transcript += [row for row in rows if row.get("type") in ("assistant", "user")]
        if not rows or rows[-1].get("type") != "result":
            raise RuntimeError(f"no result line, exit code {done.returncode}: {done.stderr[-500:]}")
        if rows[-1].get("subtype") == "error_provider":
            raise RuntimeError(f"the model could not be asked: {rows[-1].get('errors')}")
        return rows[-1]


def interval(solved: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson)."""
    if not total:
        return 0.0, 1.0
    z, share = 1.96, solved / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, middle - spread), min(1.0, middle + spread)


def table(verdicts: Iterable[Verdict]) -> str:
    """Markdown: a row a family, and all."""
    found = list(verdicts)
    rows = [
        "| family | solved | share | 95 % interval | turns | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    groups = {name: [item for item in found if item.family == name] for name in FAMILIES}
    groups |= {name: [item for item in found if item.family == name] for name in _others(found)}
    if any(item.family in SECOND_EDITION for item in found):
        for edition, families in EDITIONS.items():
            groups[f"**{edition} edition**"] = [item for item in found if item.family in families]
    groups["**all**"] = found
    for name, group in groups.items():
        if not group and name != "**all**":
            continue
        solved = sum(item.solved for item in group)
        low, high = interval(solved, len(group))
        turns = sum(item.turns for item in group) / max(1, len(group))
        seconds = sum(item.seconds for item in group) / max(1, len(group))
        share = 100 * solved / max(1, len(group))
        rows.append(
            f"| {name} | {solved}/{len(group)} | {share:.0f} % | {100 * low:.0f}-{100 * high:.0f} % "
            f"| {turns:.1f} | {seconds:.1f} |"
        )
    return "\n".join(rows)


def _others(found: list[Verdict]) -> list[str]:
    """Families that are none of the known ones."""
    return sorted({item.family for item in found} - set(FAMILIES))


def failures(verdicts: Iterable[Verdict], limit: int = 60) -> str:
    """Markdown: what was not solved and why."""
    rows = [
        f"* `{item.name}`: {item.prompts[-1][:160]!r}: {item.reason[:200]} (answer "
        f"{item.answers[-1:]!r:.160})"
        for item in verdicts
        if not item.solved
    ]
    return "\n".join(rows[:limit]) or "None."


def handwritten(name: str) -> list[Task]:
    """The tasks of a module or folder with `load_tasks()`."""
    folder = Path(name)
    if folder.is_dir():
        sys.path.insert(0, str(folder.resolve().parent))
        name = folder.name
    return list(import_module(name).load_tasks())


def write_report(out: Path, verdicts: list[Verdict], title: str) -> str:
    """Write OUT.json and OUT.md; the table."""
    shown = table(verdicts)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(
        json.dumps([asdict(item) for item in verdicts], indent=1), encoding="utf-8"
    )
    text = f"# {title}\n\n{shown}\n\n## Not solved\n\n{failures(verdicts)}\n"
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    return shown


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tasks", default="20-per-family", help="how many tasks a family, such as 20-per-family")
    add(
        "--families", default=",".join(FAMILIES), help="comma list; `first` and `second` stand for an edition"
    )
    add(
        "--held-out",
        action="store_true",
        help="words that training never sees, natural wordings unlike its own",
    )
    add(
        "--hard",
        action="store_true",
        help="held-out words, and wordings far from all others, many strange on purpose",
    )
    add("--seed", type=int, default=1)
    add("--jobs", type=int, default=1, help="tasks side by side")
    add("--k3agent", default="k3agent", help="the command to evaluate")
    add("--extra", default="", help="further flags for the command")
    add("--max-turns", type=int, default=20)
    add(
        "--handwritten",
        nargs="?",
        const=HANDWRITTEN,
        help="hand-written tasks: a module or folder with load_tasks()",
    )
    add("--only", default="", help="regular expression on task names")
    add("--home", type=Path, default=None, help="K3AGENT_HOME for the runs (default: a temporary folder)")
    add("--out", type=Path, default=Path("evaluation"), help="path of the reports, without ending")
    return parser.parse_args(argv)


def draw_tasks(options: argparse.Namespace) -> list[Task]:
    """The tasks that the command line asks for."""
    if options.handwritten:
        tasks = handwritten(options.handwritten)
    else:
        count = int(re.match(r"\d+", options.tasks)[0])  # type: ignore[index]
        tasks = [
            task
            for name in options.families.split(",")
            for family in EDITIONS.get(name, (name,))
            for task in generate(
                family, count, options.seed, options.held_out or options.hard, "hard" if options.hard else ""
            )
        ]
        # family after family in turn, so that a run cut short has seen all of them
        tasks = [task for i in range(count) for task in tasks[i::count]]
    return [task for task in tasks if re.search(options.only, task.name)]


def kind_of(options: argparse.Namespace) -> str:
    """What the tasks are called in the report."""
    if options.handwritten:
        return "hand-written tasks"
    return "hard tasks" if options.hard else "held-out tasks" if options.held_out else "new tasks"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation; 0 when every task was judged."""
    options = arguments(argv)
    # set for this command's own imports; the projects' tests must find their modules as on a user's machine
    os.environ.pop("PYTHONSAFEPATH", None)
    tasks = draw_tasks(options)
    with tempfile.TemporaryDirectory(prefix="k3agent-home-", ignore_cleanup_errors=True) as home:
        runner = Runner(
            options.k3agent, options.max_turns, options.home or Path(home), shlex.split(options.extra)
        )
        verdicts: list[Verdict] = []
        with ThreadPoolExecutor(options.jobs, thread_name_prefix="job") as pool:
            for running in as_completed([pool.submit(runner.run, task) for task in tasks]):
                verdict = running.result()
                verdicts.append(verdict)
                mark = "ok  " if verdict.solved else "FAIL"
                print(f"{mark} {verdict.name} {verdict.seconds:.1f} s {verdict.reason[:120]}", flush=True)
                if len(verdicts) % 20 == 0:
                    # what was judged so far outlives a kill
                    write_report(options.out, verdicts, f"Evaluation on {len(verdicts)} {kind_of(options)}")
    print(write_report(options.out, verdicts, f"Evaluation on {len(verdicts)} {kind_of(options)}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

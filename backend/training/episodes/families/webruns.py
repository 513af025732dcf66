"""The tests of projects in JavaScript and Go: pytest finds none there, so their own command is run."""

import re

from k3agent.backend.training.episodes import checks, weboutput
from k3agent.backend.training.episodes.families.running import COMMANDS, play_tests
from k3agent.backend.training.episodes.families.web import new_project
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Session
from k3agent.backend.training.episodes.webcode import WebFunc
from k3agent.backend.training.episodes.webproject import WebProject, draw_web_project, test_file

PASS_SHARE = 0.45
MISSING_SHARE = 0.15
"""Of the machines, those without node or go."""


def _passing(ctx: Setting, project: WebProject, path: str, names: list[str]) -> str:
    """What a run says in which all tests pass."""
    rng, count = ctx.rng, len(names)
    if project.language == "go":
        folder = path.rpartition("/")[0]
        module = f"example.com/{project.package}{f'/{folder}' if folder else ''}"
        return f"ok  \t{module}\t0.00{rng.randint(1, 9)}s"
    if project.runner == "jest":
        return f"PASS {path}\n\nTest Suites: 1 passed, 1 total\nTests:       {count} passed, {count} total"
    rows = [f"✔ {name} ({rng.randint(0, 3)}.{rng.randint(10, 99)}ms)" for name in names]
    return "\n".join([*rows, f"ℹ tests {count}", f"ℹ pass {count}", "ℹ fail 0"])


def _failing(
    ctx: Setting, project: WebProject, func: WebFunc, facts: tuple[str, str, str], place: tuple[str, int, str]
) -> str:
    """What a run says in which the test of one function fails."""
    path, line, text = place
    if project.language == "go":
        return weboutput.go_failure(func, facts, path, line, project, ctx.rng)
    if project.runner == "jest":
        return weboutput.jest_failure(func, facts, path, line, text, ctx.rng)
    root = weboutput.home(ctx.rng, ctx.words, project)
    return weboutput.node_failure(func, facts, path, line, root, ctx.rng)


def _output(ctx: Setting, project: WebProject) -> tuple[str, Check] | None:
    """What the tests print, to the end, and the check of what is told of it."""
    module = ctx.rng.choice(project.modules)
    func = ctx.rng.choice(module.functions)
    fresh, line, facts = test_file(project, module, ctx.rng, ctx.words, func)
    if not fresh:
        return None
    path, text = next(iter(fresh.items()))
    project.files |= fresh
    is_js = project.language == "js"
    command, program = ("npm test", "npm") if is_js else ("go test ./...", "go")
    runner = "jest" if project.runner == "jest" else "node --test"
    version = re.search(r'"version": "(.+)"', project.files.get("package.json", ""))
    head = f"\n> {project.package}@{version[1]} test\n> {runner}\n\n" if version else ""
    roll = ctx.rng.random()
    if roll < MISSING_SHARE:
        return f"bash: line 1: {program}: command not found\n[exit code 127]", checks.declines(command)
    if roll < MISSING_SHARE + PASS_SHARE:
        passing = _passing(ctx, project, path, [func.name])
        return f"{head}{passing}\n[exit code 0]", checks.answers(command, "pass")
    failing = _failing(ctx, project, func, facts, (path, line, text))
    return f"{head}{failing}\n[exit code 1]", checks.answers(command, "fail", func.name)


@goal("web_run_tests", "web", 1.6, level=1)
def web_run_tests(ctx: Setting) -> Plan | None:
    """Run the tests of a project in JavaScript or Go."""
    project = draw_web_project(ctx.rng, ctx.words)
    drawn = _output(ctx, project)
    if drawn is None or all(path in project.files for path in COMMANDS):
        return None
    said, is_told = drawn
    command = COMMANDS["package.json" if project.language == "js" else "go.mod"]

    programs = {command: said}

    def play(session: Session) -> tuple[str, str]:
        session.box.machine.programs = programs
        try:
            return play_tests(session, "Run the tests.")
        finally:
            session.box.machine.programs = {}

    def check(outcome: Outcome) -> str | None:
        if re.search(r"\b(may|could) not run", outcome.answer):
            return checks.declines()(outcome)
        return is_told(outcome)

    prepare = new_project(project.files)
    return Plan("run_tests", "web", {}, play, check, prepare=prepare, alone=True, programs=programs)


@goal("no_tests", "run", 0.5, level=1)
def no_tests(ctx: Setting) -> Plan | None:
    """Run the tests of a project that has none."""
    if ctx.facts.test_paths() or any(path in ctx.facts.files for path in COMMANDS):
        return None

    def check(outcome: Outcome) -> str | None:
        return checks.declines()(outcome) or checks.says(outcome, "tests")

    return Plan("run_tests", "run", {}, lambda session: play_tests(session, "Run the tests."), check)

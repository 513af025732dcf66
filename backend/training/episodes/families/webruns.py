"""The tests of projects in JavaScript and Go: pytest finds none there, so their own command is run."""

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.running import COMMANDS, NODE_TEST, play_own, play_tests
from k3agent.backend.training.episodes.families.web import new_project
from k3agent.backend.training.episodes.families.webrepairs import (
    LANGUAGES,
    Repair,
    draw_repair,
    named_command,
    with_programs,
)
from k3agent.backend.training.episodes.programs import Said
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Play, Session

PASS_SHARE = 0.45
MISSING_SHARE = 0.12
"""Of the machines, those without node or go."""


def _drawn(ctx: Setting) -> tuple[Repair, dict[str, Said], Check] | None:
    """A project, what its commands print, and the check of what is told of it."""
    repair = draw_repair(ctx)
    if repair is None or all(path in repair.project.files for path in COMMANDS):
        return None
    files, commands = repair.project.files, list(repair.programs)
    is_js = repair.project.language == "js"
    usual = COMMANDS["package.json" if is_js else "go.mod"]
    command = usual if usual in commands else NODE_TEST
    roll = ctx.rng.random()
    if roll < MISSING_SHARE:
        missing = {
            name: f"bash: line 1: {name.split()[0]}: command not found\n[exit code 127]" for name in commands
        }
        return repair, dict(missing), checks.declines(command)
    if roll < MISSING_SHARE + PASS_SHARE:
        files[repair.path] = repair.right
        return repair, repair.programs, checks.answers(command, "pass")
    return repair, repair.programs, checks.answers(command, "fail", repair.shown)


def _run_plan(
    ctx: Setting, drawn: tuple[Repair, dict[str, Said], Check], name: str, play: Play, **slots: str
) -> Plan:
    repair, programs, is_told = drawn

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        told = outcome.answer.lower()
        if "may not run" in told or "could not run" in told:
            return checks.declines()(outcome)
        return is_told(outcome)

    prepare = new_project(dict(repair.project.files))
    whole = with_programs(programs, play)
    return Plan(name, "web", slots, whole, check, prepare=prepare, alone=True, programs=programs)


@goal("web_run_tests", "web", 1.4, level=1)
def web_run_tests(ctx: Setting) -> Plan | None:
    """Run the tests of a project in JavaScript or Go."""
    drawn = _drawn(ctx)
    name = ctx.rng.choice(("run_tests", "run_tests", "check_then_report"))
    return (
        _run_plan(ctx, drawn, name, lambda session: play_tests(session, "Run the tests.")) if drawn else None
    )


@goal("web_run_lang_tests", "web", 1.4, level=1)
def web_run_lang_tests(ctx: Setting) -> Plan | None:
    """Run the tests of a named language."""
    drawn = _drawn(ctx)
    if drawn is None:
        return None
    language = drawn[0].project.language
    said = ctx.rng.choice(LANGUAGES[language])

    def play(session: Session) -> tuple[str, str]:
        return play_own(session, *named_command(session, said, language))

    return _run_plan(ctx, drawn, "run_lang_tests", play, lang=said)


@goal("no_tests", "run", 0.5, level=1)
def no_tests(ctx: Setting) -> Plan | None:
    """Run the tests of a project that has none."""
    if ctx.facts.test_paths() or any(path in ctx.facts.files for path in COMMANDS):
        return None

    def check(outcome: Outcome) -> str | None:
        return checks.declines()(outcome) or checks.says(outcome, "tests")

    return Plan("run_tests", "run", {}, lambda session: play_tests(session, "Run the tests."), check)

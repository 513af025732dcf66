"""Repairs of code that lacks a line (a return, a case that nothing handles, a first value, a step), or whose
calls share a default.
"""

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import around, edit_text
from k3agent.backend.training.episodes.families.repair import reason, run_tests, try_at
from k3agent.backend.training.episodes.gapbugs import Gap, draw_gap
from k3agent.backend.training.episodes.policy import View, one_definition, several
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session
from k3agent.backend.training.episodes.symptoms import case_said
from k3agent.backend.training.episodes.testruns import Failure
from k3agent.backend.training.episodes.tracing import view_function
from k3agent.backend.training.episodes.trying import Tried, is_evident

SYMPTOMS = ("gives wrong results", "is wrong", "does not work", "has a bug", "returns the wrong value")


def _mend(session: Session, gap: Gap, why: str) -> None:
    """Put in what is missing."""
    edit_text(session, gap.path, gap.old, gap.new, f"{why} {gap.thought}", line=gap.line)


def _search(session: Session, gap: Gap, view: View, name: str, failure: Failure) -> Tried | None:
    """Nothing shows that a line is missing rather than wrong: small changes are tried first."""
    if is_evident(failure):
        return None
    return try_at(session, [gap], view, name, failure)


def _ended(session: Session, view: View, name: str, tried: Tried) -> tuple[str, str]:
    """A small change helped: all tests, and the report."""
    run, _ = run_tests(session, "It passes with that. Run all tests.", stop=True)
    place = f"{tried.place(view, name)}: {tried.said}."
    if run.ok:
        return "All pass.", f"Fixed {place} The tests pass now: {run.summary}."
    failing = several([one.name for one in run.failures])
    return "Some fail; say so.", f"Changed {place} Still failing: {failing}."


def gap_reason(failure: Failure, gap: Gap) -> str:
    """What failed; where a case is not handled, also for which kind of case: elsewhere that would ask for a
    guard that nobody wants.
    """
    case = case_said(failure.test_code) if gap.thought.startswith("Nothing is done for ") else ""
    return f"{reason(failure)} {case}".rstrip()


def play_tests(session: Session, gap: Gap) -> tuple[str, str]:
    """The tests say what fails."""
    run, python = run_tests(session, "Fix the failing tests. Run them first.", stop=True)
    if not run.failures:
        raise Report("I cannot read that.", f"The tests do not run: {run.summary}. Nothing was changed.")
    failure = run.failures[0]
    name, view = view_function(session, failure)
    if tried := _search(session, gap, view, name, failure):
        return _ended(session, view, name, tried)
    if (gap.line, gap.old) not in [(number, text.strip()) for number, text in view.lines]:
        around(session, gap.path, gap.line, f"The cause is not there. Read what belongs to {gap.name}.")
    _mend(session, gap, gap_reason(failure, gap))
    run, _ = run_tests(session, "The diff is right. Run the tests again.", python=python, stop=True)
    return _told(run.ok, gap, [one.name for one in run.failures], run.summary)


def _play_named(session: Session, gap: Gap, task: str) -> tuple[str, str]:
    """The function is named: read it, see what the tests say, change it, run them again."""
    name, hit = one_definition(session, gap.name, f"{task} Find its definition.")
    view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.")
    try:
        run, python = run_tests(session, f"{name} is wrong. See what the tests say.", stop=True)
    except Report:
        _mend(session, gap, f"{name} is wrong.")
        return "I could not run the tests.", f"In `{gap.path}`, I {gap.said}. I could not run the tests here."
    if run.failures and (tried := _search(session, gap, view, name, run.failures[0])):
        return _ended(session, view, name, tried)
    _mend(session, gap, gap_reason(run.failures[0], gap) if run.failures else f"{name} is wrong.")
    run, _ = run_tests(session, "The diff is right. Run the tests again.", python=python, stop=True)
    return _told(run.ok, gap, [one.name for one in run.failures], run.summary)


def _told(ok: bool, gap: Gap, failing: list[str], summary: str) -> tuple[str, str]:
    """The report after the last run."""
    place = f"`{gap.name}` in `{gap.path}` (line {gap.line}): {gap.said}."
    if ok:
        return "All pass.", f"Fixed {place} The tests pass now: {summary}."
    return "Some fail; say so.", f"Changed {place} Still failing: {several(failing)}."


@goal("fix_gap", "fix", 4.0)
def fix_gap(ctx: Setting) -> Plan | None:
    """A line is missing in natural code, or a default is shared; the tests or a name say where."""
    gap = draw_gap(ctx)
    if gap is None:
        return None
    wanted = ctx.rng.choice(("fix_tests", "fix_tests", "fix_func", "fix_bug_in"))
    if len(ctx.facts.defined(gap.name)) or gap.bad.count(f"def {gap.name}(") > 1 or gap.name.startswith("__"):
        wanted = "fix_tests"
    slots: dict[str, str] = {}
    task = f"{gap.name} has a bug."
    if wanted != "fix_tests":
        slots = {"name": gap.name}
    if wanted == "fix_func":
        slots["symptom"] = ctx.rng.choice(SYMPTOMS)
        task = f"{gap.name} {slots['symptom']}."

    def play(session: Session) -> tuple[str, str]:
        return play_tests(session, gap) if wanted == "fix_tests" else _play_named(session, gap, task)

    def check(outcome: Outcome) -> str | None:
        if not gap.sample.works(outcome.after.get(gap.path, "")):
            return f"{gap.name} in {gap.path} is still wrong"
        return checks.unchanged(outcome, gap.path)

    return Plan(
        wanted,
        "fix",
        slots,
        play,
        check,
        ("def", gap.name),
        prepare=lambda files: files.update(gap.files),
    )

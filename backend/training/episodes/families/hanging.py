"""Scripts and tests that never end: the tool kills them, and the report says that, not that they failed."""

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.repair import run_tests
from k3agent.backend.training.episodes.families.running import denied
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

LOOPS = (
    "while True:\n{0}pass",
    "while not done:\n{0}time.sleep(1)",
    "while True:\n{0}time.sleep(60)",
    "count = 10\nwhile count > 0:\n{0}count += 1",
)


def _says_killed(outcome: Outcome) -> str | None:
    """Nothing changed, and the answer tells the limit or that nothing may be run."""
    if wrong := checks.unchanged(outcome):
        return wrong
    return (
        None
        if "may not" in outcome.answer or "could not" in outcome.answer
        else checks.says(outcome, "120 s")
    )


CHECK: Check = _says_killed


@goal("run_endless", "run", 0.6, level=1)
def run_endless(ctx: Setting) -> Plan | None:
    """A script that does not end."""
    rng, words = ctx.rng, ctx.words
    path = f"{rng.choice(('', '', 'scripts/', 'tools/'))}{ctx.unused(words.module)}.py"
    if path in ctx.facts.files:
        return None
    first = words.phrase() if rng.random() < 0.6 else ""
    shown = f"print({first!r})\n" if first else ""
    text = f"import time\n\ndone = False\n{shown}{rng.choice(LOOPS).format('    ')}\n"

    def play(session: Session) -> tuple[str, str]:
        session.box.machine.endless, session.box.machine.shown_before = path, first
        try:
            result = session.call("shell", f"Run {path}.", command=f"python {path}")
            if "command not found" in result.text and not result.is_error:
                think = "There is no python. Try python3."
                result = session.call("shell", think, command=f"python3 {path}")
        finally:
            session.box.machine.endless = ""
        if result.is_error:
            raise denied(result.text)
        before = f" It had printed:\n```\n{first}\n```" if first else " It had printed nothing."
        return (
            "It did not end and was killed. Say so.",
            f"`{path}` did not end: it was killed after 120 s.{before}",
        )

    return Plan(
        "run_script",
        "run",
        {"path": path},
        play,
        CHECK,
        ("file", path),
        prepare=lambda files: files.update({path: text}),
    )


@goal("tests_endless", "fix", 0.8, level=1)
def tests_endless(ctx: Setting) -> Plan | None:
    """Tests that do not end."""
    rng, words = ctx.rng, ctx.words
    path = f"test_{ctx.unused(words.noun)}.py"
    if path in ctx.facts.files:
        return None
    body = rng.choice(LOOPS).replace("\n", "\n    ").format("    ")
    text = f"import time\n\n\ndef test_{words.noun()}():\n    done = False\n    {body}\n"
    wanted = rng.choice(("run_tests", "fix_tests", "check_then_report"))

    def play(session: Session) -> tuple[str, str]:
        machine = session.box.machine
        machine.endless, machine.shown_before = "-m ", rng.choice(("", "", "....", "..F"))
        try:
            run, _ = run_tests(session, "Run the tests.")
        finally:
            machine.endless = ""
        raise Report("They ended.", f"The tests ended: {run.summary}.")

    return Plan(wanted, "fix", {}, play, CHECK, prepare=lambda files: files.update({path: text}))

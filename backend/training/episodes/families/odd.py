"""Real code is said to be wrong, no test says how: what is evident is mended, else the user is asked."""

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import around
from k3agent.backend.training.episodes.evident import ALONE
from k3agent.backend.training.episodes.families.repair import (
    VAGUE,
    change_and_run,
    nothing_evident,
    run_tests,
)
from k3agent.backend.training.episodes.nearby import near_hint
from k3agent.backend.training.episodes.oddlines import Odd, draw_odd
from k3agent.backend.training.episodes.policy import View, one_definition
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session


def _why(view: View, odd: Odd) -> str:
    """What is odd in the function: of a name that is written wrongly, which other one it is like."""
    broken = odd.broken
    if odd.said.endswith(f"{ALONE}."):
        near = near_hint(view, broken.line, broken.wrong.strip(), broken.right.strip())
        return near.strip() or f"Line {broken.line}: {odd.said}"
    return f"Line {broken.line}: {odd.said}"


@goal("fix_odd", "fix", 3.0)
def fix_odd(ctx: Setting) -> Plan | None:
    """Real code: whether its text says what is wrong decides between a repair and a question."""
    odd = draw_odd(ctx)
    if odd is None:
        return None
    broken = odd.broken
    name, path, size = broken.func.name, broken.path, len(broken.func.body)
    symptom = ctx.rng.choice(VAGUE)
    wanted = "fix_bug_in" if ctx.rng.random() < 0.3 else "fix_func"
    task = f"{name} has a bug." if wanted == "fix_bug_in" else f"{name} {symptom}."

    def play(session: Session) -> tuple[str, str]:
        found, hit = one_definition(session, name, f"{task} Find its definition.")
        view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.", least=size + 1)
        last = hit.line + size - 1
        if odd.said:
            return change_and_run(session, view, broken, found, f"{found} is wrong. {_why(view, odd)}")
        think = f"Nothing in {found} is evidently odd. See what the tests say."
        try:
            run, _ = run_tests(session, think, stop=True)
        except Report:
            return nothing_evident(found, hit.path, hit.line, last, "I could not run the tests here.")
        said = f"The tests pass: {run.summary}." if run.ok else f"Other tests fail: {run.summary}."
        said = "There are no tests that run." if "no tests ran" in run.summary else said
        return nothing_evident(found, hit.path, hit.line, last, said)

    def check(outcome: Outcome) -> str | None:
        if not odd.said:
            wrong = checks.unchanged(outcome) or checks.says(outcome, name)
            return wrong or (None if "?" in outcome.answer else "it does not ask")
        if not broken.works(outcome.after.get(path, "")):
            return f"{path} is not as it was before the slip"
        return checks.unchanged(outcome, path)

    return Plan(
        wanted,
        "fix",
        {"name": name} if wanted == "fix_bug_in" else {"name": name, "symptom": symptom},
        play,
        check,
        ("def", name),
        prepare=lambda files: files.update({path: broken.bad}),
    )

"""Repairs that the user's words decide: "it adds the discount instead of subtracting it"."""

import re

from k3agent.backend.training.episodes.bugs import Broken, draw_broken
from k3agent.backend.training.episodes.editing import around
from k3agent.backend.training.episodes.families.repair import fixed, repair_and_run
from k3agent.backend.training.episodes.policy import one_definition
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.saying import Told, tell, tellable
from k3agent.backend.training.episodes.session import Plan, Session
from k3agent.backend.training.episodes.unitbugs import draw_unit_bug, functions_of

UNTESTED = 0.5
"""Of the repairs in projects without tests, those that come without tests too."""
NATURAL = 0.8
"""Of the functions, those of natural code."""
TRIES = 3


def draw_told(ctx: Setting) -> tuple[Broken, Told] | None:
    """A slip that words tell of, and the words."""
    for _ in range(TRIES):
        broken = draw_unit_bug(ctx, tellable) if ctx.rng.random() < NATURAL else draw_broken(ctx)
        if broken is None or broken.bug.is_syntax:
            continue
        name = broken.func.name
        texts = (broken.bad, *ctx.facts.files.values())
        if name.startswith("__") or sum(len(re.findall(rf"\bdef {name}\(", text)) for text in texts) != 1:
            continue
        lines = broken.bad.splitlines()
        place = next((item for item in functions_of(broken.bad) if item[0] == name), None)
        if place is None or not place[2] <= broken.line <= place[3] or lines[broken.line - 1] != broken.wrong:
            continue
        body = lines[place[2] - 1 : place[3]]
        told = tell(body, broken.line - place[2], broken.right, broken.wrong, ctx.rng)
        if told is not None and len(told.words) < 110:
            return broken, told
    return None


@goal("fix_told", "fix", 3.8)
def fix_told(ctx: Setting) -> Plan | None:
    """What a named function does wrongly, or should do, is told: the words choose the line."""
    drawn = draw_told(ctx)
    if drawn is None:
        return None
    broken, told = drawn
    name = broken.func.name
    untested = not ctx.facts.test_paths() and ctx.rng.random() < UNTESTED
    files = {path: text for path, text in broken.files.items() if not untested or path != broken.test_path}
    task = f"{name} should {told.words}." if told.should else f"{name} {told.words}."

    def play(session: Session) -> tuple[str, str]:
        _, hit = one_definition(session, name, f"{task} Find its definition.")
        size = len(broken.func.body)
        view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.", least=size + 2)
        why = f'"{told.words}": {told.why}.'
        return repair_and_run(session, view, broken, name, why, decided=True)

    wanted = "fix_bug_described" if told.should else "fix_func"
    return Plan(
        wanted,
        "fix",
        {"name": name, "should" if told.should else "symptom": told.words},
        play,
        fixed([broken]),
        ("def", name),
        prepare=lambda current: current.update(files),
    )

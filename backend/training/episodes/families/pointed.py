"""Repairs of what the user points at: a function that misbehaves, what it should do, an error message."""

import random
import re

from k3agent.backend.training.episodes.bugs import Broken, draw_broken
from k3agent.backend.training.episodes.editing import around, changed_part
from k3agent.backend.training.episodes.families.repair import (
    VAGUE,
    change_and_run,
    play_fix,
    play_known,
    repair_and_run,
    repair_plan,
)
from k3agent.backend.training.episodes.nearby import name_slips, raised
from k3agent.backend.training.episodes.policy import one_definition
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Session
from k3agent.backend.training.episodes.unitbugs import draw_unit_bug


@goal("fix_func", "fix", 2.0)
def fix_func(ctx: Setting) -> Plan | None:
    """A named function misbehaves."""
    broken = draw_broken(ctx)
    if broken is None or broken.bug.is_syntax:
        return None
    args, value, got = broken.failing_case()
    name, rng = broken.func.name, ctx.rng
    call = f"{name}({', '.join(map(repr, args))})"
    options = list(VAGUE)
    if re.fullmatch(r"\w+(Error|Exception)", got):
        options = [
            f"raises {got}",
            f"crashes with {got}",
            f"fails with a {got}",
            "crashes",
            f"raises {got} for {call}",
        ]
    elif rng.random() < 0.7:
        options = [
            f"returns {got} instead of {value!r} for {call}",
            f"gives {got} for {call}, it should be {value!r}",
            f"returns {got} for {call}",
        ]
    symptom = rng.choice(options)
    if len(symptom) > 140:
        symptom = "gives wrong results"
    return repair_plan(
        ctx,
        "fix_func",
        {"name": name, "symptom": symptom},
        lambda s: play_known(s, broken, f"{name} {symptom}.", vague=symptom in VAGUE or symptom == "crashes"),
        [broken],
    )


@goal("fix_bug_described", "fix", 2.0)
def fix_bug_described(ctx: Setting) -> Plan | None:
    """What a function should do is said."""
    broken = draw_broken(ctx)
    if broken is None or broken.bug.is_syntax or not broken.func.description:
        return None
    name = broken.func.name
    should = f"return {broken.func.description}"
    if ctx.rng.random() < 0.3:
        args, value, _ = broken.failing_case()
        should = f"return {value!r} for {', '.join(map(repr, args))}"
    if len(should) > 130:
        return None
    return repair_plan(
        ctx,
        "fix_bug_described",
        {"name": name, "should": should},
        lambda s: play_known(s, broken, f"{name} should {should}."),
        [broken],
    )


@goal("fix_error", "fix", 1.5)
def fix_error(ctx: Setting) -> Plan | None:
    """An error message is given."""
    broken = draw_broken(ctx)
    if broken is None or broken.bug.is_syntax:
        return None
    args, _, got = broken.failing_case()
    if not re.fullmatch(r"\w+Error", got) or got == "RecursionError":
        return None
    message = _message(broken, args)
    if message is None:
        return None
    name, rng = broken.func.name, ctx.rng
    last = f"{got}: {message}"
    text = error_text(rng, broken, last, name)
    has_line = "line " in text

    def play(session: Session) -> tuple[str, str]:
        if has_line:
            think = f"{last} in {broken.path}, line {broken.line}. Read around it."
            view = around(session, broken.path, broken.line, think)
            return repair_and_run(session, view, broken, name, f"{last}.")
        return play_known(session, broken, f"{name} raises {last}.")

    return repair_plan(ctx, "fix_error", {"error_text": text}, play, [broken])


def _message(broken: Broken, args: tuple[object, ...]) -> str | None:
    """The text of the error that the broken function raises."""
    scope: dict[str, object] = {}
    source = [*broken.func.source()]
    source[len(source) - len(broken.func.body) + broken.bug.index] = broken.bug.wrong
    exec("\n".join(source), scope)
    try:
        scope[broken.func.name](*args)  # type: ignore[operator]
    except Exception as error:
        text = str(error)
        return text if text and "\n" not in text and len(text) < 100 else None
    return None


@goal("fix_misspelt", "fix", 3.5)
def fix_misspelt(ctx: Setting) -> Plan | None:
    """An error that a name written wrongly raises in natural code; the right one stands near."""
    broken = draw_unit_bug(ctx, name_slips)
    found = raised(broken) if broken is not None else None
    if broken is None or found is None or found[1] != broken.line:
        return None
    last, line, inside = found
    if not re.match(r"(NameError|AttributeError|KeyError|UnboundLocalError|TypeError)\b", last):
        return None
    rng = ctx.rng
    said, right = last, changed_part(broken.wrong.strip(), broken.right.strip())[1]
    if right.isidentifier() and last.startswith(("NameError", "AttributeError")) and rng.random() < 0.2:
        last += f". Did you mean: '{right}'?"
    text = error_text(rng, broken, last, inside)
    wanted = rng.choice(("fix_error", "fix_error", "fix_tests"))
    if wanted == "fix_tests":
        return repair_plan(
            ctx,
            wanted,
            {},
            lambda s: play_fix(s, [broken], "Fix the failing tests. Run them first."),
            [broken],
        )

    def play(session: Session) -> tuple[str, str]:
        think = f"{said} in {broken.path}, line {line}. Read around it."
        if "line " not in text:
            _, hit = one_definition(session, inside, f"{inside} raises {said}. Find its definition.")
            view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.")
        else:
            view = around(session, broken.path, line, think, inside=True)
        return change_and_run(session, view, broken, inside, f"{said}.")

    if "line " not in text and (broken.bad.count(f"def {inside}(") != 1 or inside.startswith("__")):
        return None
    return repair_plan(ctx, wanted, {"error_text": text}, play, [broken])


def error_text(rng: random.Random, broken: Broken, last: str, inside: str) -> str:
    """An error as people paste it: with its place, with a traceback, or by its last line."""
    place = f'File "{broken.path}", line {broken.line}, in {inside}'
    kind = rng.random()
    if kind < 0.35:
        return f"{place}\n    {broken.wrong.strip()}\n{last}"
    if kind < 0.5 and last[-1] != "?":
        return f"{last} ({broken.path}, line {broken.line})"
    if kind < 0.65 and last[-1] != "?":
        return f"{last} in {inside}"
    return f"Traceback (most recent call last):\n  {place}\n    {broken.wrong.strip()}\n{last}"

"""Limits and talk: what is out of scope, unclear or missing; greetings and questions about the
assistant itself.
"""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan

SKILLS = (
    "I can list and find files, show and explain code, change values, rename things, replace "
    "text, add lines and small functions, "
    "create files, and run and repair tests."
)
CANNOT = f"I cannot do that: I am nano, a small model for small tasks. {SKILLS} Nothing was changed."
WHO = f"I am k3agent with nano, a small model of the K3 architecture that runs on this machine. {SKILLS}"
UNCLEAR = "What exactly shall I do? Please name the file or function, and what should change."
GREETING = "Hello! What shall I do in this project?"
WELCOME = "You are welcome. Anything else?"
UNRELATED = f"I do not know that: I only work on the code in this folder. {SKILLS}"


def _spoken(name: str, family: str, think: str, answer: str, check: Check) -> Plan:
    return Plan(name, family, {}, lambda session: (think, answer), check)


def untouched(outcome: Outcome) -> str | None:
    """Nothing changed and something was said."""
    return checks.unchanged(outcome) or (None if outcome.answer.strip() else "no answer")


def asks(outcome: Outcome) -> str | None:
    """Nothing changed and a question back."""
    return checks.unchanged(outcome) or (None if "?" in outcome.answer else "it does not ask")


@goal("refuse_out_of_scope", "refuse", 2.0)
def refuse_out_of_scope(ctx: Setting) -> Plan | None:
    """Too big or elsewhere."""
    return _spoken(
        "refuse_out_of_scope",
        "refuse",
        "That is beyond what I can do. Say so and what I can do.",
        CANNOT,
        checks.declines(),
    )


@goal("vague", "refuse", 1.6)
def vague(ctx: Setting) -> Plan | None:
    """Not enough said."""
    return _spoken("vague", "refuse", "It is not said what to change or where. Ask.", UNCLEAR, asks)


@goal("greet", "chat", 1.0)
def greet(ctx: Setting) -> Plan | None:
    """A greeting."""
    return _spoken("greet", "chat", "A greeting. Greet back.", GREETING, untouched)


@goal("who_are_you", "chat", 1.0)
def who_are_you(ctx: Setting) -> Plan | None:
    """Who are you."""
    return _spoken(
        "who_are_you",
        "chat",
        "They ask who I am.",
        WHO,
        lambda o: checks.unchanged(o) or checks.says(o, "k3agent"),
    )


@goal("what_can_you_do", "chat", 1.0)
def what_can_you_do(ctx: Setting) -> Plan | None:
    """What can you do."""
    return _spoken(
        "what_can_you_do",
        "chat",
        "They ask what I can do.",
        SKILLS,
        lambda o: checks.unchanged(o) or checks.says(o, "files"),
    )


@goal("thanks", "chat", 0.8)
def thanks(ctx: Setting) -> Plan | None:
    """Thanks."""
    return _spoken("thanks", "chat", "They thank me.", WELCOME, untouched)


@goal("unrelated", "chat", 1.2)
def unrelated(ctx: Setting) -> Plan | None:
    """A question that has nothing to do with the project."""
    return _spoken(
        "unrelated", "chat", "That has nothing to do with this project. Say so.", UNRELATED, checks.declines()
    )


GHOSTLY = (
    "where_defined",
    "where_defined_kind",
    "where_used",
    "show_def",
    "show_file",
    "head_file",
    "explain",
    "returns",
    "params",
    "value_of",
    "key_value",
    "count_lines",
    "imports_of",
    "find_file",
    "set_const",
    "set_const_in",
    "set_const_from",
    "set_key",
    "flip_flag",
    "flip_off",
    "rename",
    "rename_kind",
    "rename_in",
    "rename_file",
    "move_file",
    "delete_file",
    "replace_text",
    "replace_text_all",
    "add_line_end",
    "add_line_start",
    "add_after",
    "add_before",
    "add_import",
    "add_comment",
    "add_docstring",
    "add_const",
    "delete_line",
    "delete_def",
    "add_param",
    "add_func",
    "add_method",
    "add_key",
    "add_bullet",
    "tick_checkbox",
    "add_list_item",
    "find_text",
)


@goal("missing", "refuse", 4.0)
def missing(ctx: Setting) -> Plan | None:
    """A task about a name, file, key or text that does not exist here."""
    rng = ctx.rng
    if rng.random() < 0.5:
        ghost = Facts(draw_project(rng, ctx.words, size=1).files)
        must: str | None = None
    else:
        altered = _altered(ctx)
        if altered is None:
            return None
        ghost, must = altered
    entries = [GOALS[name] for name in GHOSTLY if name in GOALS]
    for _ in range(25):
        entry = rng.choices(entries, [item.weight for item in entries])[0]
        plan = entry.make(Setting(ghost, rng, ctx.words))
        if plan is None or plan.goal not in GHOSTLY or plan.prepare or plan.setup:
            continue
        if must is not None and not any(must in value for value in plan.slots.values()):
            continue
        if must is None and _known(ctx, plan):
            continue
        return Plan(plan.goal, "refuse", plan.slots, plan.play, checks.declines())
    return None


def _known(ctx: Setting, plan: Plan) -> bool:
    """Whether the thing asked for happens to exist here."""
    first = (
        plan.slots.get("path")
        or plan.slots.get("old_path")
        or plan.slots.get("name")
        or plan.slots.get("old")
        or plan.slots.get("text")
        or ""
    )
    first = first.removeprefix("./").rsplit("/", 1)[-1]
    return any(first.lower() in text.lower() for text in ctx.facts.files.values()) or any(
        path.rsplit("/", 1)[-1].lower() == first.lower()
        or path.rsplit("/", 1)[-1].rsplit(".", 1)[0].lower() == first.lower()
        for path in ctx.facts.files
    )


def _altered(ctx: Setting) -> tuple[Facts, str] | None:
    """The project with one identifier or file name changed into a similar one, and that new name."""
    rng, words = ctx.rng, ctx.words
    files = ctx.facts.files
    if rng.random() < 0.3:
        path = rng.choice(sorted(files))
        base = path.rsplit("/", 1)[-1]
        stem, dot, ending = base.rpartition(".")
        if not dot or len(stem) < 3 or "__init__" in stem:
            return None
        names = [f"{stem}_{words.noun()}", f"{words.noun()}_{stem}", words.noun()]
        if "_" in stem:
            # The same kind of thing of something else: `test_part.py` is not `data_part.py`.
            names += [f"{words.noun()}_{stem.split('_', 1)[1]}"] * 2
        name = rng.choice(names) + dot + ending
        if any(other.rsplit("/", 1)[-1] == name or name.rsplit(".", 1)[0] in other for other in files):
            return None
        return Facts(
            {(path[: -len(base)] + name if other == path else other): text for other, text in files.items()}
        ), name
    names = [item.name for item in ctx.facts.definitions] + [
        item.name for item in [*ctx.facts.constants, *ctx.facts.keys]
    ]
    names = [name for name in names if len(name) > 4 and not name.startswith("_")]
    if not names:
        return None
    old = rng.choice(names)
    noun = words.noun()
    parts = old.split("_")
    if old.isupper():
        new = "_".join([*parts[:-1], noun.upper()]) if rng.random() < 0.6 else f"{old}_{noun.upper()}"
    elif "_" in old:
        new = "_".join([*parts[:-1], noun]) if rng.random() < 0.6 else "_".join([words.verb(), *parts[1:]])
    else:
        new = old + noun.capitalize()
    if any(new.lower() in text.lower() for text in files.values()) or new == old:
        return None
    pattern = re.compile(rf"\b{re.escape(old)}\b")
    return Facts({path: pattern.sub(new, text) for path, text in files.items()}), new

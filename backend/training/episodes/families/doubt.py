"""Requests that fit two things of the project: name both and ask, change nothing."""

import re
from functools import partial

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.policy import base_name
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan

BY_FILE = (
    "show_file",
    "head_file",
    "tail_file",
    "count_lines",
    "explain_file",
    "imports_of",
    "list_defs",
    "set_const_in",
    "set_key",
    "key_value",
    "add_line_end",
    "add_line_start",
    "add_import",
    "add_heading",
    "add_func",
    "replace_text",
    "delete_file",
    "rename_file",
    "move_file",
)
BY_NAME = (
    "show_def",
    "explain",
    "returns",
    "params",
    "value_of",
    "add_docstring",
    "add_comment",
    "add_param",
    "delete_def",
    "set_const",
    "default_of",
)


def asks_about(*places: str) -> Check:
    """Nothing changed, every place is named, and there is a question."""

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome) or checks.says(outcome, *places):
            return wrong
        return None if "?" in outcome.answer else "it does not ask"

    return check


def _add(fresh: dict[str, str], files: dict[str, str]) -> None:
    files.update(fresh)


@goal("two_files", "refuse", 1.3)
def two_files(ctx: Setting) -> Plan | None:
    """A bare file name that stands in two folders."""
    rng, files = ctx.rng, ctx.facts.files
    pool = [path for path in files if "/" in path and files[path].strip() and "__init__" not in path]
    pool = [path for path in pool if sum(base_name(other) == base_name(path) for other in files) == 1]
    if not pool:
        return None
    path = rng.choice(sorted(pool))
    folder = rng.choice(
        [item for item in ctx.facts.folders if f"{item}/" != path[: -len(base_name(path))]] or ["more"]
    )
    twin = f"{folder}/{base_name(path)}"
    if path.endswith(".py"):
        twin_text = (
            f'"""{ctx.words.phrase().capitalize()}."""\n\n{ctx.words.constant()} = {rng.randint(1, 99)}\n'
        )
    else:
        twin_text = files[path] + f"{ctx.words.phrase()}\n" if path.endswith((".md", ".txt")) else files[path]
    only = Facts({path: files[path]})
    for _ in range(12):
        plan = GOALS[rng.choice(BY_FILE)].make(Setting(only, rng, ctx.words))
        if plan is None or plan.prepare or plan.setup:
            continue
        if base_name(path) not in (plan.slots.get("path"), plan.slots.get("old_path")):
            continue
        return Plan(
            plan.goal,
            "refuse",
            plan.slots,
            plan.play,
            asks_about(path, twin),
            prepare=lambda current: current.update({twin: twin_text}),
        )
    return None


@goal("two_names", "refuse", 1.3)
def two_names(ctx: Setting) -> Plan | None:
    """A function, class or constant that two files define."""
    rng, files = ctx.rng, ctx.facts.files
    for _ in range(12):
        plan = GOALS[rng.choice(BY_NAME)].make(Setting(ctx.facts, rng, ctx.words, ctx.project))
        if plan is None or plan.prepare or plan.setup:
            continue
        name = plan.slots.get("name", "")
        homes = [item.path for item in [*ctx.facts.defined(name), *ctx.facts.constants] if item.name == name]
        others = [
            other for other in ctx.facts.code_paths() if other not in homes and "\r" not in files[other]
        ]
        if len(homes) != 1 or not others or not homes[0].endswith(".py"):
            continue
        other = rng.choice(others)
        text = files[other].rstrip() + "\n"
        if any(item.name == name for item in ctx.facts.constants):
            extra = f"\n{name} = {rng.choice((rng.randint(1, 500), repr(ctx.words.noun())))}\n"
        else:
            body = rng.choice(
                ("return None", f"return {rng.randint(0, 9)}", "raise NotImplementedError", "pass")
            )
            kind = next(item.kind for item in ctx.facts.defined(name))
            if kind == "method":
                continue
            head = (
                f"class {name}"
                if kind == "class"
                else f"def {name}({', '.join(ctx.facts.defined(name)[0].params)})"
            )
            extra = f"\n\n{head}:\n    {body if kind != 'class' else 'pass'}\n"
        if re.search(r"^if __name__", text, re.MULTILINE):
            continue
        fresh = {other: text + extra}
        return Plan(
            plan.goal,
            "refuse",
            plan.slots,
            plan.play,
            asks_about(homes[0], other),
            prepare=partial(_add, fresh),
        )
    return None

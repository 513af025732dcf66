"""Names and files asked for nearly as they are: the only one that fits is taken and said so."""

import re
from collections.abc import Callable

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.policy import (
    base_name,
    fits,
    near_file,
    pieces,
    plain,
    same_file,
    singular,
)
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan
from k3agent.backend.training.episodes.words import plural

CHANGES = (
    "set_const",
    "set_const",
    "set_const_from",
    "set_const_in",
    "set_key",
    "flip_flag",
    "flip_off",
    "rename",
)
QUESTIONS = (
    "value_of",
    "value_of",
    "key_value",
    "where_defined",
    "where_used",
    "show_def",
    "explain",
    "returns",
)
BY_NAME = [*CHANGES, *CHANGES, *QUESTIONS, "params", "default_of", "add_docstring", "add_comment"]
SHOWN = (
    "show_file",
    "show_file",
    "head_file",
    "tail_file",
    "count_lines",
    "explain_file",
    "imports_of",
    "list_defs",
)
CHANGED = (
    "set_const_in",
    "set_key",
    "add_line_end",
    "add_line_end",
    "add_line_start",
    "add_heading",
    "add_bullet",
)
BY_FILE = [*SHOWN, *CHANGED, "replace_text", "replace_text", "add_import", "key_value"]
SWAPS = {"yml": "yaml", "yaml": "yml", "js": "ts", "ts": "js", "md": "txt", "ini": "cfg", "cfg": "ini"}


def other_forms(name: str) -> list[str]:
    """A name as somebody writes it who does not remember it well: cut, in the plural, joined otherwise."""
    words = pieces(name)
    groups = [
        words[1:],
        words[:-1],
        words[1:],
        [*words[:-1], plural(words[-1])],
        [*words[:-1], singular(words[-1])],
    ]
    if len(words) > 2:
        groups += [words[1:-1], [words[0], words[-1]]]
    forms: list[str] = []
    for group in groups:
        if not group or len("".join(group)) < 4:
            continue
        snake = "_".join(group)
        forms.append(snake.upper() if name.isupper() else snake)
        if name.isupper():
            forms.append(snake)
    return [form for form in dict.fromkeys(forms) if form != name and form.isidentifier()]


def _fitting(form: str, known: set[str]) -> list[str]:
    """The names that have all words of one."""
    return sorted(name for name in known if fits(form, name) and not name.lower().startswith("test"))


def _translated(plan: Plan, back: Callable[[Outcome], Outcome]) -> Plan:
    """The plan for the project as it is: outcomes are judged as if the name were as asked."""
    judge = plan.check
    return Plan(plan.goal, "refuse", plan.slots, plan.play, lambda outcome: judge(back(outcome)))


def _make(ctx: Setting, names: list[str], ghost: Facts, must: str) -> Plan | None:
    """A plan of one of the goals in the ghost project that mentions what only stands there."""
    for _ in range(15):
        entry = GOALS.get(ctx.rng.choice(names))
        plan = entry.make(Setting(ghost, ctx.rng, ctx.words)) if entry else None
        if plan is None or plan.prepare or plan.setup or plan.prompt:
            continue
        if any(re.fullmatch(rf"(\w+[/.])*{re.escape(must)}(\(\))?", value) for value in plan.slots.values()):
            return plan
    return None


@goal("near_name", "refuse", 3.0)
def near_name(ctx: Setting) -> Plan | None:
    """A task about a name that only one name here is like."""
    rng, files = ctx.rng, ctx.facts.files
    everything = "\n".join(files.values())
    known = set(re.findall(r"\w+", everything))
    pool = [item.name for item in [*ctx.facts.constants, *ctx.facts.constants, *ctx.facts.keys]]
    pool += [item.name for item in ctx.facts.definitions]
    pool = [name for name in pool if len(name) > 4 and not name.startswith(("_", "test"))]
    for _ in range(8):
        if not pool:
            return None
        old = rng.choice(pool)
        forms = [form for form in other_forms(old) if form.lower() not in everything.lower().split()]
        forms = [form for form in forms if not {form, form.lower()} & {name.lower() for name in known}]
        forms = [form for form in forms if _fitting(form, known) == [old]]
        if not forms:
            continue
        new = rng.choice(forms)
        pattern = re.compile(rf"\b{re.escape(old)}\b")
        ghost = Facts({path: pattern.sub(new, text) for path, text in files.items()})
        plan = _make(ctx, BY_NAME, ghost, new)
        if plan is None:
            continue

        def back(outcome: Outcome, pattern: re.Pattern[str] = pattern, new: str = new) -> Outcome:
            after = {path: pattern.sub(new, text) for path, text in outcome.after.items()}
            before = {path: pattern.sub(new, text) for path, text in outcome.before.items()}
            return Outcome(before, after, pattern.sub(new, outcome.answer))

        return _translated(plan, back)
    return None


@goal("near_names", "refuse", 1.2)
def near_names_asked(ctx: Setting) -> Plan | None:
    """A task about a name that several names here are like: name them and ask."""
    rng, files = ctx.rng, ctx.facts.files
    known = set(re.findall(r"\w+", "\n".join(files.values())))
    consts = [item.name for item in [*ctx.facts.constants, *ctx.facts.definitions]]
    pool = [name for name in consts if len(pieces(name)) > 1 and not name.startswith(("_", "test"))]
    for _ in range(6):
        if not pool:
            return None
        old = rng.choice(pool)
        forms = [form for form in other_forms(old) if form.lower() not in {name.lower() for name in known}]
        if not forms:
            continue
        new = rng.choice(forms)
        near = _fitting(new, known)
        exact = [name for name in near if plain(name) == plain(new)]
        if len(near) < 2 or len(near) > 4 or exact:
            continue
        pattern = re.compile(rf"\b{re.escape(old)}\b")
        plan = _make(ctx, BY_NAME, Facts({path: pattern.sub(new, text) for path, text in files.items()}), new)
        if plan is not None and plan.goal not in ("set_const_in", "set_key", "key_value"):
            return Plan(plan.goal, "refuse", plan.slots, plan.play, checks.declines(*near[:2]))
    return None


@goal("near_file", "refuse", 2.0)
def near_file_taken(ctx: Setting) -> Plan | None:
    """A task about a file whose name is not quite right."""
    rng, files = ctx.rng, ctx.facts.files
    pool = [
        path for path in files if files[path].strip() and "__init__" not in path and "\r" not in files[path]
    ]
    if not pool:
        return None
    real = rng.choice(sorted(pool))
    base = base_name(real)
    stem, dot, ending = base.rpartition(".")
    if not dot or len(stem) < 3:
        return None
    forms = [
        stem,
        stem,
        stem,
        f"{plural(stem)}.{ending}",
        f"{singular(stem)}.{ending}",
        f"{stem.replace('_', '-')}.{ending}",
    ]
    forms.append(f"{stem.replace('_', '')}.{ending}")
    forms += [f"{stem}.{SWAPS[ending]}"] * 2 if ending in SWAPS else []
    forms = [
        form
        for form in forms
        if form != base and not any(same_file(form, path) and path != real for path in files)
    ]
    forms = [form for form in forms if [path for path in files if near_file(form, path)] == [real]]
    if not forms:
        return None
    new = real[: -len(base)] + rng.choice(forms)
    ghost = Facts({new if path == real else path: text for path, text in files.items()})
    plan = _make(ctx, BY_FILE, ghost, base_name(new))
    if plan is None:
        return None
    asked = re.compile(rf"(?<![\w/]){re.escape(real)}(?!\w)|(?<![\w/]){re.escape(base)}(?!\w)")

    def back(outcome: Outcome) -> Outcome:
        before = {new if path == real else path: text for path, text in outcome.before.items()}
        after = {new if path == real else path: text for path, text in outcome.after.items()}
        return Outcome(before, after, asked.sub(lambda match: new, outcome.answer))

    return _translated(plan, back)

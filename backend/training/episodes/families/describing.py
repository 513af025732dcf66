"""Functions described by more than one idea, and such ideas added to a function that is there: a guard with
its error or result, what is done to an argument or to the result.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import replace

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.concepts import Func, concepts, instantiate
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.extras import (
    Extra,
    after,
    before,
    behaves,
    calls_showing,
    guard,
    in_one_line,
    tag_of,
    with_extra,
)
from k3agent.backend.training.episodes.families.adding import open_end
from k3agent.backend.training.episodes.families.creating import new_path, write_new
from k3agent.backend.training.episodes.families.functions import (
    code_of,
    place_function,
    rest_is_kept,
    said_signature,
)
from k3agent.backend.training.episodes.families.read import read_definition
from k3agent.backend.training.episodes.looped import looped_function
from k3agent.backend.training.episodes.policy import View, open_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session
from k3agent.backend.training.episodes.units import natural_function

FILES = ("described.txt", "described.txt", "concepts.txt", "natural.txt", "varied.txt")
_BY_NAME = """
    is_even is_odd is_prime is_palindrome factorial fibonacci square cube double clamp gcd median average mean
    reverse_text reverse_string count_vowels count_words is_leap_year is_positive is_negative is_zero absolute
    celsius_to_fahrenheit fahrenheit_to_celsius digit_sum has_duplicates remove_duplicates is_sorted flatten
    slugify read_lines read_text count_lines transpose divisors title_case word_count is_blank to_upper
    to_lower rectangle_area
"""
BY_NAME = frozenset(_BY_NAME.split())
"""Functions whose name says what they do."""
LONGEST = 9


def _base(ctx: Setting) -> Func | None:
    """A function of one idea with a description."""
    rng, words = ctx.rng, ctx.words
    if rng.random() < 0.4:
        return looped_function(rng, words)
    concept = rng.choice(concepts(rng.choice(FILES)))
    short = tuple(body for body in concept.bodies if len(body) <= 7)
    if not short:
        return None
    only = replace(concept, bodies=(short[0],))
    return instantiate(only, rng, words, rename_locals=False, keep_params=rng.random() < 0.5)


TOPICS = tuple(
    re.compile(rf"\b(?:{words})", re.IGNORECASE)
    for words in (
        "negative|below zero|less than zero|under zero",
        "positive|above zero|greater than zero",
        "even\\b|odd\\b",
        "zeros?\\b",
        "empty|blank",
        "duplicate|distinct|unique|different",
        "None\\b|missing",
        "spaces?\\b|white ?space|strip",
        "upper|lower|capital|small letters",
        "sort|order|ascending|alphabet|revers|backwards",
        "absolute|sign\\b",
    )
)


def _clash(one: str, two: str) -> bool:
    """Whether two ideas are about the same, so that together they may say two things: how many are negative,
    ignoring negative numbers.
    """
    return any(topic.search(one) and topic.search(two) for topic in TOPICS)


def second_idea(ctx: Setting, func: Func, *, of_result: bool = True) -> tuple[Func, Extra, list] | None:
    """The function with one idea more, the idea, and calls that show it."""
    rng = ctx.rng
    at = rng.randrange(len(func.params))
    tag = tag_of([args[at] for args, _ in func.cases])
    if not tag or not func.cases:
        return None
    roll = rng.random()
    if roll < 0.55:
        if re.search(r"\b(if|when|or)\b", func.description) and rng.random() < 0.8:
            return None
        extra: Extra | None = guard(func.params[at], tag, rng, ctx.words)
    elif roll < 0.8 or not of_result:
        extra = before(func.params[at], tag, rng, ctx.words)
    else:
        extra = after(func.cases[0][1], rng)
    if extra and _clash(func.description, extra.said):
        return None
    fresh = extra and with_extra(func, extra)
    if extra is None or fresh is None or "`" in extra.said:
        return None
    if "/" in str(func.cases[0][0][at]) and not re.search("empty|blank|None|string", extra.said):
        return None
    head = f"import {extra.needs}\n" if extra.needs else ""
    calls = calls_showing(func, fresh, at, extra, head)
    return (fresh, extra, calls) if calls else None


def draw_described(ctx: Setting) -> tuple[Func, Extra, list] | None:
    """A function of two ideas that is new in the project."""
    for _ in range(12):
        func = _base(ctx)
        if (
            func is None
            or not func.params
            or not func.cases
            or ("file" in func.description and ctx.rng.random() < 0.5)
        ):
            continue
        if any(func.name in text for text in ctx.facts.files.values()):
            continue
        found = second_idea(ctx, func)
        if found and not found[1].needs and len(found[0].body) <= LONGEST:
            return found
    return None


def thought(func: Func, extra: Extra) -> str:
    """The ideas in turn, each with its code."""
    first = f"{func.name} returns {func.description}."
    if extra.wraps:
        return f"{first} And: {extra.said}: {func.body[-1].strip()}"
    code = in_one_line(extra.lines)
    said = extra.said.removesuffix(" first")
    return f"{first} Before that: {said}: {code} It ends with: {func.body[-1].strip()}"


def wrote(path: str, before_text: str | None, func: Func, calls: list, exact: bool) -> Check:
    """The file has the function, it behaves as asked, and nothing else changed."""

    def check(outcome: Outcome) -> str | None:
        text = outcome.after.get(path, "")
        if not checks.compiles(text) or not behaves(text, func, calls, exact):
            return f"{func.name} in {path} is missing or wrong"
        if before_text is not None and not rest_is_kept(before_text, text, func.name):
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    return check


def _said(ctx: Setting, func: Func, extra: Extra) -> tuple[str, dict[str, str]]:
    """The wording's goal and its slots but for the path: ideas joined in one sentence, or apart."""
    rng = ctx.rng
    what = f"{rng.choice(('returns', 'returns', 'gives back', 'should return'))} {func.description}"
    signature = said_signature(ctx, func)
    if rng.random() < 0.3 and not extra.wraps and not what.startswith("should"):
        link = rng.choice((" and ", "; it ", ", and ", ". It "))
        ideas = [what, extra.third] if rng.random() < 0.7 else [extra.third, what]
        return "add_func", {"signature": signature, "body_words": link.join(ideas)}
    return "func_and_idea", {"signature": signature, "what": what, "idea": extra.said}


@goal("add_func_ideas", "addfunc", 2.8)
def add_func_ideas(ctx: Setting) -> Plan | None:
    """Add a function of two ideas."""
    path = ctx.choose([path for path in ctx.facts.code_paths() if checks.compiles(ctx.facts.files[path])])
    found = draw_described(ctx)
    if not isinstance(path, str) or found is None or ctx.facts.files[path].count("__main__") > 1:
        return None
    func, extra, calls = found
    text, shown = ctx.facts.files[path], ctx.path(path)
    wording, slots = _said(ctx, func, extra)

    def play(session: Session) -> tuple[str, str]:
        task = (
            f"Add the function {func.signature} to {shown}: {func.description}; {extra.said}. Read the file."
        )
        view = open_end(session, shown, task)
        _refuse_twice(view, func.name)
        session.lead = thought(func, extra)
        place_function(session, view, func)
        return "The diff shows it.", _report(func, extra, "Added", view.path)

    check = wrote(path, text, func, calls, extra.exact)
    return Plan(wording, "addfunc", {**slots, "path": shown}, play, check, ("def", func.name))


def _refuse_twice(view: View, name: str) -> None:
    if any(re.match(rf"def {re.escape(name)}\b", row) for _, row in view.lines):
        raise Report(
            "It is there already.", f"`{name}` already exists in `{view.path}`. Nothing was changed."
        )


def _report(func: Func, extra: Extra, verb: str, path: str) -> str:
    place = f"`{func.signature}` to `{path}`" if verb == "Added" else f"`{path}` with `{func.signature}`"
    return f"{verb} {place}: it returns {func.description} and {extra.third}."


@goal("create_func_ideas", "create", 1.4)
def create_func_ideas(ctx: Setting) -> Plan | None:
    """Create a module with a function of two ideas."""
    found = draw_described(ctx)
    if found is None:
        return None
    func, extra, calls = found
    path = new_path(ctx, "py")
    wording, slots = _said(ctx, func, extra)
    wording = {"add_func": "create_func_file", "func_and_idea": "file_and_idea"}[wording]

    def play(session: Session) -> tuple[str, str]:
        session.lead = f"{path} is to be new: create it with {func.signature}."
        write_new(session, path, code_of(func), thought(func, extra))
        return "Created.", _report(func, extra, "Created", path)

    check = wrote(path, None, func, calls, extra.exact)
    return Plan(wording, "create", {**slots, "path": path}, play, check, ("def", func.name))


@goal("add_func_named", "addfunc", 0.6)
def add_func_named(ctx: Setting) -> Plan | None:
    """Add a function of which only the name is said, which says it all."""
    rng = ctx.rng
    path = ctx.choose([path for path in ctx.facts.code_paths() if checks.compiles(ctx.facts.files[path])])
    pool = [
        (item, name)
        for file in ("concepts.txt", "described.txt")
        for item in concepts(file)
        for name in item.names
        if name in BY_NAME
    ]
    concept, name = rng.choice(pool)
    if not isinstance(path, str) or any(name in text for text in ctx.facts.files.values()):
        return None
    body = min(concept.bodies, key=len)
    only = replace(concept, names=(name,), bodies=(body,))
    ctx.words.used.discard(name)
    func = instantiate(only, rng, ctx.words, rename_locals=False, keep_params=rng.random() < 0.6)
    if func is None or func.name != name:
        return None
    text, shown = ctx.facts.files[path], ctx.path(path)
    if text.count("__main__") > 1:
        return None

    def play(session: Session) -> tuple[str, str]:
        task = (
            f"Add the function {func.signature} to {shown}. Its name says: {func.description}. Read the file."
        )
        view = open_end(session, shown, task)
        _refuse_twice(view, name)
        session.lead = f"{name} returns {func.description}: {func.body[-1].strip()}"
        place_function(session, view, func)
        return (
            "The diff shows it.",
            f"Added `{func.signature}` to `{view.path}`; it returns {func.description}.",
        )

    calls = [args for args, _ in func.cases]
    slots = {"signature": func.signature, "path": shown}
    return Plan("func_named", "addfunc", slots, play, wrote(path, text, func, calls, False), ("def", name))


def _home(ctx: Setting, func: Func) -> tuple[str, str]:
    """A file that has the function, alone or among the code that is there, and its text."""
    rng, files = ctx.rng, ctx.facts.files
    pool = [path for path in ctx.facts.code_paths() if checks.compiles(files[path])]
    fits = [
        path
        for path in pool
        if "\r" not in files[path] and "\t" not in files[path] and "__main__" not in files[path]
    ]
    code = "\n".join(func.source()) + "\n"
    if fits and rng.random() < 0.7:
        path = rng.choice(fits)
        return path, f"{files[path].rstrip()}\n\n\n{code}"
    return new_path(ctx, "py"), code


@goal("add_idea", "addfunc", 2.0)
def add_idea(ctx: Setting) -> Plan | None:
    """Let a function that is there do one thing more."""
    return idea_plan(ctx, "addfunc")


@goal("add_guard_lines", "addline", 3.0)
def add_guard_lines(ctx: Setting) -> Plan | None:
    """The same, as a wish for lines."""
    return idea_plan(ctx, "addline")


def idea_plan(ctx: Setting, family: str) -> Plan | None:
    """One idea more in a function of natural code, a well-known one or one put together."""
    for _ in range(8):
        func = natural_function(ctx.rng, ctx.words) if ctx.rng.random() < 0.6 else _base(ctx)
        if func is None or not func.params or not func.cases or len(func.body) > 16:
            continue
        if any(func.name in text for text in ctx.facts.files.values()) or func.name in ("main",):
            continue
        func.hinted = False
        if found := second_idea(ctx, func):
            return _idea_in(ctx, family, func, *found)
    return None


def _idea_in(ctx: Setting, family: str, func: Func, fresh: Func, extra: Extra, calls: list) -> Plan | None:
    rng = ctx.rng
    if rng.random() < 0.3:
        func.doc = ctx.words.phrase().capitalize().replace('"', "") + "."
    path, text = _home(ctx, func)
    if extra.needs and re.search(rf"\b{extra.needs}\b", text):
        return None
    name = func.name

    def play(session: Session) -> tuple[str, str]:
        _, hit, view, lines = read_definition(session, name, f"{name} should {extra.said}.")
        body = _body_start(lines)
        if extra.wraps:
            number, row = lines[-1]
            old = row.strip()
            value = old.removeprefix("return ")
            new = fresh.body[-1].strip()
            change_line(
                session,
                hit.path,
                number,
                old,
                new,
                f"{name} returns {value} in line {number}. {extra.said}: {new}",
            )
        else:
            number, row = lines[body - 1]
            lead = "    "
            added = "\n".join(f"{lead}{line}" for line in extra.lines)
            old = row.strip()
            where = f"It comes first in the body, after line {number}: {old}"
            think = f"{extra.said}: {in_one_line(extra.lines)} {where}"
            change_line(session, hit.path, number, old, f"{old}\n{added}", think)
        if extra.needs:
            _import_too(session, hit.path, extra.needs)
        return "The diff shows it.", f"`{name}` in `{view.path}` now {extra.third}."

    check = _changed(path, text, func, fresh, extra, calls)
    called = name if rng.random() < 0.9 else f"{name}()"
    if extra.cond and rng.random() < 0.7:
        wording, slots = "guard_said", {"name": called, "action": extra.action, "cond": extra.cond}
    else:
        wording, slots = "change_said", {"name": called, "wish": extra.said}
    return Plan(wording, family, slots, play, check, ("def", name), prepare=_with_file(path, text))


def _body_start(lines: list[tuple[int, str]]) -> int:
    """The place of the body's first line, after the head and a docstring of one line."""
    return 2 if lines[1][1].strip().startswith(('"""', "'''")) else 1


def _with_file(path: str, text: str) -> Callable[[dict[str, str]], None]:
    return lambda files: files.update({path: text})


def _import_too(session: Session, path: str, module: str) -> None:
    """The import that new code needs, at the top."""
    view = open_file(session, path, f"It needs import {module}. Read the top.", limit=6)
    quotes = view.lines[0][1].startswith(('"""', "'''"))
    number, row = next(((n, r) for n, r in view.lines[1 if quotes else 0 :] if r.strip()), view.lines[0])
    gap = (
        "\n"
        if row.startswith(("import ", "from "))
        else "\n\n\n"
        if row.startswith(("def ", "class "))
        else "\n\n"
    )
    think = f"Line {number} is {row}. import {module} goes before it."
    change_line(session, path, number, row, f"import {module}{gap}{row}", think)


def _changed(path: str, text: str, func: Func, fresh: Func, extra: Extra, calls: list) -> Check:
    """The function behaves as asked, and all else is as it was."""

    def others(source: str) -> list[str]:
        nodes = ast.parse(source).body
        return [
            ast.dump(node)
            for node in nodes
            if not (isinstance(node, ast.FunctionDef) and node.name == func.name)
            and not (extra.needs and isinstance(node, ast.Import | ast.ImportFrom))
        ]

    def check(outcome: Outcome) -> str | None:
        now = outcome.after.get(path, "")
        if not checks.compiles(now) or not behaves(now, fresh, calls, extra.exact):
            return f"{func.name} does not do as asked: {extra.said}"
        if others(now) != others(text):
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    return check

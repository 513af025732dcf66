"""Adding functions, methods, parameters and docstrings; deleting definitions."""

import ast
import re
from itertools import pairwise

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.composed import composed_function, constants_of
from k3agent.backend.training.episodes.concepts import Func, concepts, instantiate, same_results
from k3agent.backend.training.episodes.editing import change_line, failed
from k3agent.backend.training.episodes.expressions import Grammar, described_function
from k3agent.backend.training.episodes.facts import Definition
from k3agent.backend.training.episodes.families.adding import append, open_end, squeeze
from k3agent.backend.training.episodes.families.read import read_definition, unique_definition
from k3agent.backend.training.episodes.policy import (
    View,
    esc,
    hits,
    one_definition,
    open_file,
    quoted,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

COMPOSED_SHARE = 0.55
"""Of the functions to be written, those whose expression is composed; many more than any list of them has."""
IN_FILE_SHARE = 0.45
"""Of the definitions to delete, those whose file is named too."""


def draw_new(ctx: Setting, text: str = "", share: float = COMPOSED_SHARE) -> tuple[Func, str]:
    """A function to be written in a file of this text and the words for it ("returns ...")."""
    rng, words = ctx.rng, ctx.words
    while True:
        kind = rng.random()
        if kind < share:
            func = composed_function(rng, words, constants_of(text))
        elif kind < share + (1 - share) * 0.7:
            concept = rng.choice(concepts())
            shortest = min(concept.bodies, key=lambda body: (len(body), len("".join(body))))
            if len(shortest) > 7:
                continue
            only = type(concept)(concept.names, concept.params, concept.descriptions, (shortest,))
            func = instantiate(only, rng, words, rename_locals=False)
        else:
            func = described_function(rng, words)
        if func is None or any(func.name in text for text in ctx.facts.files.values()):
            continue
        if rng.random() < 0.15:
            func.hinted = True
        if func.body == ["    pass"]:
            continue
        verb = rng.choice(("returns", "returns", "returns", "returns", "gives back", "should return"))
        return func, f"{verb} {func.description}"


def rest_is_kept(before: str, after: str, name: str, owner: str = "") -> bool:
    """All lines of the old text are there in order when the new definition is taken out."""
    try:
        tree = ast.parse(after)
    except SyntaxError:
        return False
    body = tree.body
    if owner:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner), [])
    node = next(
        (node for node in reversed(body) if isinstance(node, ast.FunctionDef) and node.name == name), None
    )
    if node is None:
        return False
    lines = after.splitlines()
    return squeeze("\n".join(lines[: node.lineno - 1] + lines[node.end_lineno :])) == squeeze(before)


def writes_function(path: str, before: str, func: Func) -> Check:
    """The file got the function, working, and nothing else changed."""

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        if not same_results(after, func):
            return f"{func.name} in {path} is missing or wrong"
        if not rest_is_kept(before, after, func.name):
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    return check


def code_of(func: Func) -> str:
    """The definition as text."""
    return "\n".join(func.source())


def thought_of(func: Func, what: str) -> str:
    """The plan in words: what the body will be."""
    last = func.body[-1].strip()
    return f"{what} It ends with: {last}" if len(func.body) > 1 else f"{what} Its body: {last}"


def said_signature(ctx: Setting, func: Func) -> str:
    """The signature as people write it."""
    return f"def {func.signature}" if ctx.rng.random() < 0.08 else func.signature


def indent_of(view: View) -> str:
    """The indentation that a file uses, four spaces where it does not show."""
    for (_, row), (_, follow) in pairwise(view.lines):
        if row.rstrip().endswith(":") and not row.startswith((" ", "\t")) and follow.startswith((" ", "\t")):
            return follow[: len(follow) - len(follow.lstrip())]
    return "    "


def place_function(session: Session, view: View, func: Func) -> None:
    """A function at the end of a file, but before the part that runs it as a script."""
    indent = indent_of(view)
    rows = [
        indent * ((len(row) - len(row.lstrip())) // 4) + row.lstrip() for row in code_of(func).split("\n")
    ]
    code = "\n".join(rows)
    main = next(((number, row) for number, row in view.lines if row.startswith("if __name__")), None)
    if main is None:
        append(session, view, code, gap=2)
        return
    number, old = main
    think = f"Line {number} is {old}. It must stay last. Add before it."
    change_line(session, view.path, number, old, f"{code}\n\n\n{old}", think)


@goal("add_func", "addfunc", 3.0)
def add_func(ctx: Setting) -> Plan | None:
    """Add a function that does what is described."""
    return func_plan(ctx, "add_func")


@goal("add_func_of", "addfunc", 1.6)
def add_func_of(ctx: Setting) -> Plan | None:
    """Add a function of which is said only what it returns."""
    return func_plan(ctx, "add_func_of")


def func_plan(ctx: Setting, name: str) -> Plan | None:
    """Add a function to a file; `add_func_of` says what it returns without a verb."""
    path = ctx.choose([path for path in ctx.facts.code_paths() if checks.compiles(ctx.facts.files[path])])
    if not isinstance(path, str):
        return None
    text = ctx.facts.files[path]
    if text.count("__main__") > 1:
        return None
    of_result = name == "add_func_of"
    func, words = draw_new(ctx, text, 0.75 if of_result else COMPOSED_SHARE)
    shown = ctx.path(path)
    said = {"what": func.description} if of_result else {"body_words": words}
    if of_result:
        words = f"returns {func.description}"
    slots = {"signature": said_signature(ctx, func), "path": shown, **said}

    def play(session: Session) -> tuple[str, str]:
        view = open_end(
            session, shown, f"Add the function {func.signature} to {shown}. It {words}. Read the file."
        )
        if any(re.match(rf"def {re.escape(func.name)}\b", row) for _, row in view.lines):
            raise Report(
                "It is there already.", f"`{func.name}` already exists in `{view.path}`. Nothing was changed."
            )
        session.lead = thought_of(func, f"{func.name} {words}.")
        place_function(session, view, func)
        return "The diff shows it.", f"Added `{func.signature}` to `{view.path}`; it {words}."

    return Plan(name, "addfunc", slots, play, writes_function(path, text, func), ("def", func.name))


def _classes(ctx: Setting) -> list[Definition]:
    found = []
    for item in ctx.facts.definitions:
        if item.kind != "class" or not item.path.endswith(".py") or len(ctx.facts.defined(item.name)) > 1:
            continue
        text = "\n".join(ctx.facts.files[item.path].splitlines()[item.line - 1 : item.end])
        if (
            "\t" not in text
            and "Enum" not in text
            and "__init__" in text
            and "\r" not in text
            and item.end - item.line < 28
        ):
            found.append(item)
    return found


@goal("add_method", "addfunc", 1.5)
def add_method(ctx: Setting) -> Plan | None:
    """Add a method to a class."""
    classes = _classes(ctx)
    if not classes:
        return None
    item = ctx.rng.choice(classes)
    text = ctx.facts.files[item.path]
    body = "\n".join(text.splitlines()[item.line - 1 : item.end])
    fields = re.findall(r"^\s+self\.(\w+) = \1$", body, re.MULTILINE)
    if not fields or not checks.compiles(text) or not re.search(r"^    def ", body, re.MULTILINE):
        return None
    rng, words = ctx.rng, ctx.words
    scope = {f"self.{name}": rng.choice(("int", "str")) for name in fields}
    params = {words.variable(): rng.choice(("int", "str")) for _ in range(rng.choice((0, 0, 1)))}
    expr = Grammar(rng, words, {**scope, **params}).make(
        rng.choice(("int", "str", "bool")), rng.choice((0, 1, 1, 2))
    )
    if "self." not in expr.code or len(expr.words) > 90:
        return None
    name = ctx.unused(words.function)
    used = [param for param in params if re.search(rf"\b{param}\b", expr.code)]
    has_self = rng.random() < 0.6
    signature = f"{name}({', '.join([*(['self'] if has_self else []), *used])})"
    described = (
        expr.words
        if rng.random() < 0.6
        else expr.words.replace("self.", "the ")
        if len(fields)
        else expr.words
    )
    said = f"returns {described}"
    head = f"def {name}({', '.join(['self', *used])}):"
    wanted = f"return {expr.code}"

    def play(session: Session) -> tuple[str, str]:
        _, hit, view, lines = read_definition(
            session, item.name, f"Add the method {signature} to {item.name}. It {said}.", "class "
        )
        if any(re.match(rf"\s*def {re.escape(name)}\b", row) for _, row in lines):
            raise Report("It is there already.", f"`{item.name}` already has `{name}`. Nothing was changed.")
        number, last = lines[-1]
        first = next(row for _, row in lines if re.match(r"\s+def ", row))
        lead = first[: len(first) - len(first.lstrip())]
        old = last.strip()
        code = f"{lead}{head}\n{lead}{lead}{wanted}"
        think = f"The class ends at line {number}: {old}. Add {name} after it. Its body: {wanted}"
        change_line(session, hit.path, number, old, f"{old}\n\n{code}", think)
        return "The diff shows it.", f"Added `{name}` to `{item.name}` in `{view.path}`; it {said}."

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(item.path, "")
        if not rest_is_kept(text, after, name, item.name):
            return f"{item.path} lacks the method or was changed otherwise"
        if wanted not in after:
            return f"{name} does not return what was asked"
        return checks.unchanged(outcome, item.path)

    slots = {"class_name": item.name, "signature": signature, "body_words": said}
    return Plan("add_method", "addfunc", slots, play, check, ("def", name))


def one_line(ctx: Setting, *kinds: str) -> tuple[Definition, str] | None:
    """A Python function whose whole head is on one line."""
    one = unique_definition(ctx, *kinds, python=True)
    if one is None:
        return None
    head = ctx.facts.files[one.path].splitlines()[one.line - 1]
    if (
        not re.match(r"\s*(async )?def \w+\(.*\).*:$", head)
        or len(head) > 110
        or head.count("(") != head.count(")")
    ):
        return None
    return one, head


@goal("add_param", "addfunc", 1.2)
def add_param(ctx: Setting) -> Plan | None:
    """Add a parameter with a default."""
    rng, noun = ctx.rng, ctx.words.noun
    values = (str(rng.randint(0, 60)), "None", "False", "True", f"'{noun()}'", f'"{noun()}"', "0")
    return param_plan(ctx, rng.choice(values))


@goal("add_param_only", "addfunc", 1.2)
def add_param_only(ctx: Setting) -> Plan | None:
    """Add a parameter; no default is said, and None keeps all calls working."""
    return param_plan(ctx)


def param_plan(ctx: Setting, said: str = "") -> Plan | None:
    """Add a parameter with the default that was said, or None."""
    found = one_line(ctx, "function", "method")
    if found is None:
        return None
    one, head = found
    param, default = ctx.words.variable(), said or "None"
    wish = f"{param}={said}" if said else param
    if param in one.params or "*" in head or re.search(r"\) ->", head) or "/" in head:
        return None

    def grow(line: str) -> str:
        at = line.rindex(")")
        return f"{line[:at]}{'' if line[at - 1] == '(' else ', '}{param}={default}{line[at:]}"

    def play(session: Session) -> tuple[str, str]:
        name, hit = one_definition(
            session, one.name, f"Add the parameter {wish} to {one.name}. Find its definition."
        )
        if re.search(rf"[(,]\s*{re.escape(param)}\b", hit.text):
            raise Report(
                "It has it already.", f"`{name}` already has a parameter `{param}`. Nothing was changed."
            )
        old = hit.text.strip()
        why = "" if said else " The default None keeps all calls working."
        think = f"{hit.at} has {old}. Put {param}={default} last.{why}"
        change_line(session, hit.path, hit.line, old, grow(old), think)
        return (
            "The diff shows it.",
            f"Added `{param}={default}` to `{name}` in `{hit.path}` (line {hit.line}).{why}",
        )

    check = checks.writes({one.path: checks.replace_line(ctx.facts.files[one.path], one.line, grow(head))})
    slots = {"name": ctx.called(one), "param": param} | ({"default": said} if said else {})
    return Plan("add_param" if said else "add_param_only", "addfunc", slots, play, check, ("def", one.name))


@goal("add_docstring", "addfunc", 1.3)
def add_docstring(ctx: Setting) -> Plan | None:
    """Give a function a docstring."""
    found = one_line(ctx)
    if found is None:
        return None
    one, _ = found
    text = ctx.facts.files[one.path]
    lines = text.splitlines()
    if one.end == one.line or "\r" in text:
        return None
    first = lines[one.line]
    has_one = first.strip().startswith(('"""', "'''", '"', "'"))
    if has_one and ctx.rng.random() < 0.8:
        return None
    said = ctx.words.phrase().capitalize() + ctx.rng.choice((".", ".", ""))

    def play(session: Session) -> tuple[str, str]:
        name, hit = one_definition(
            session, one.name, f"Add the docstring {said} to {one.name}. Find its definition."
        )
        view = open_file(
            session, hit.path, f"It is at {hit.at}. Read what follows.", offset=hit.line, limit=4
        )
        follow = view.lines[1][1]
        if follow.strip().startswith(('"""', "'''", '"', "'")):
            raise Report(
                "It has a docstring already.",
                f"`{name}` already has a docstring: `{follow.strip()}`. Nothing was changed.",
            )
        lead = follow[: len(follow) - len(follow.lstrip())]
        old = hit.text.strip()
        change_line(
            session,
            hit.path,
            hit.line,
            old,
            f'{old}\n{lead}"""{said}"""',
            "It has no docstring. Add it below the first line.",
        )
        return "The diff shows it.", f"Added the docstring to `{name}` in `{hit.path}`."

    lead = first[: len(first) - len(first.lstrip())]
    expected = "\n".join([*lines[: one.line], f'{lead}"""{said}"""', *lines[one.line :]])
    check = checks.declines() if has_one else checks.writes({one.path: expected})
    return Plan(
        "add_docstring", "addfunc", {"name": ctx.called(one), "text": said}, play, check, ("def", one.name)
    )


def play_delete_def(session: Session, wanted: str) -> tuple[str, str]:
    """Remove a definition with the blank lines after it."""
    name, hit = one_definition(session, wanted, f"Delete {wanted}. Find its definition.")
    start = max(1, hit.line - 3)
    view = open_file(session, hit.path, f"It is at {hit.at}. Read around it.", offset=start, limit=40)
    index = next(i for i, (number, _) in enumerate(view.lines) if number == hit.line)
    head = view.lines[index][1]
    indent = len(head) - len(head.lstrip())
    end = index + 1
    brace = head.rstrip().endswith("{")
    while end < len(view.lines):
        row = view.lines[end][1]
        if brace and row.strip().startswith("}") and len(row) - len(row.lstrip()) <= indent:
            end += 1
            break
        if not brace and row.strip() and len(row) - len(row.lstrip()) <= indent:
            break
        end += 1
    while index and view.lines[index - 1][1].strip().startswith("@"):
        index -= 1
    while not brace and end > index + 1 and not view.lines[end - 1][1].strip():
        end -= 1
    block = [row for _, row in view.lines[index:end]]
    if len(block) > 24:
        raise Report(
            "It is too long for me.",
            f"`{name}` in `{hit.path}` is longer than I can safely delete. Nothing was changed.",
        )
    first, last = view.lines[index][0], view.lines[end - 1][0]
    result = session.call(
        "edit",
        f"It is lines {first} to {last}. Remove them.",
        path=hit.path,
        old="\n".join(block) + "\n",
        new="",
        line=first,
    )
    if result.is_error and "not found" in result.text:
        result = session.call(
            "edit",
            "The last line has no line end. Leave it out.",
            path=hit.path,
            old="\n".join(block),
            new="",
            line=first,
        )
    if result.is_error:
        raise failed(hit.path, result)
    left = hits(session.call("grep", f"Is {name} still used?", pattern=rf"\b{esc(name)}\b"))
    tail = f" It is still used in {quoted([item.at for item in left])}." if left else ""
    return "Report it.", f"Deleted `{name}` from `{hit.path}` (lines {first} to {last}).{tail}"


@goal("delete_def", "addfunc", 1.8)
def delete_def(ctx: Setting) -> Plan | None:
    """Remove a function or class."""
    one = unique_definition(ctx, "function", "class")
    if one is None or one.end - one.line > 16:
        return None
    text = ctx.facts.files[one.path]
    lines = text.splitlines()
    start = one.line
    while start > 1 and lines[start - 2].strip().startswith("@"):
        start -= 1
    if one.path.endswith(".py") and not checks.compiles(text):
        return None
    if one.line - start > 2:
        return None
    expected = "\n".join(lines[: start - 1] + lines[one.end :])

    def check(outcome: Outcome) -> str | None:
        if squeeze(outcome.after.get(one.path, "")) != squeeze(expected):
            return f"{one.path} is not as asked"
        return checks.unchanged(outcome, one.path)

    name, slots = "delete_def", {"name": ctx.called(one)}
    if ctx.rng.random() < IN_FILE_SHARE:
        name, slots = "delete_def_in", {**slots, "path": ctx.path(one.path), "kind": one.kind}
    return Plan(name, "addfunc", slots, lambda s: play_delete_def(s, one.name), check)

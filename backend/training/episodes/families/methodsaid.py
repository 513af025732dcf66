"""Methods described in words for a class that is there: what they work on is looked up in the class."""

import ast
import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.families.functions import rest_is_kept
from k3agent.backend.training.episodes.families.read import read_definition
from k3agent.backend.training.episodes.methods import (
    KINDS,
    Home,
    Method,
    draw_method,
    drawn_home,
    natural_home,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

NATURAL_SHARE = 0.45


def draw_home(ctx: Setting, named: bool) -> tuple[Home, Method] | None:
    """A class whose name is new in the project, and a method that it lacks."""
    for _ in range(10):
        home = natural_home(ctx.rng, ctx.words) if ctx.rng.random() < NATURAL_SHARE else None
        home = home or drawn_home(ctx.rng, ctx.words)
        if any(re.search(rf"\b{home.name}\b", text) for text in ctx.facts.files.values()):
            continue
        method = draw_method(ctx.rng, ctx.words, home, named=named)
        if method is None or "`" in method.description:
            continue
        wanted = with_method(home, method)
        try:
            found = method.results(wanted, home.name)
        except Exception:
            continue
        fine = sum(not item.startswith("!") for item in found)
        if fine and not any("!TooManySteps" in item or "!TypeError" in item for item in found):
            return home, method
    return None


def with_method(home: Home, method: Method) -> str:
    """The class's file with the method at the end of the class."""
    lines = home.text.rstrip("\n").split("\n")
    node = next(
        node
        for node in ast.parse(home.text).body
        if isinstance(node, ast.ClassDef) and node.name == home.name
    )
    at = node.end_lineno or len(lines)
    return "\n".join(
        [*lines[:at], "", f"    {method.head}", *(f"    {line}" for line in method.body), *lines[at:]]
    )


def _place(ctx: Setting, home: Home) -> tuple[str, str]:
    """The file that gets the class, and its text: a new one, or one that is there."""
    rng, files = ctx.rng, ctx.facts.files
    fits = [
        path
        for path in ctx.facts.code_paths()
        if checks.compiles(files[path])
        and "\r" not in files[path]
        and "__main__" not in files[path]
        and len(files[path]) < 1500
    ]
    if fits and rng.random() < 0.3 and "import" not in home.text:
        path = rng.choice(fits)
        return path, f"{files[path].rstrip()}\n\n\n{home.text}"
    folder = f"{rng.choice(ctx.facts.folders)}/" if ctx.facts.folders and rng.random() < 0.3 else ""
    path = f"{folder}{ctx.words.fresh(ctx.words.module)}.py"
    return (f"{home.name.lower()}_x.py" if path in files else path), home.text


@goal("add_method_ideas", "addfunc", 2.2)
def add_method_ideas(ctx: Setting) -> Plan | None:
    """Add a method, its name said."""
    return method_plan(ctx, named=True)


@goal("add_method_unnamed", "addfunc", 1.0)
def add_method_unnamed(ctx: Setting) -> Plan | None:
    """Add a method of which only is said what it does."""
    return method_plan(ctx, named=False)


def method_plan(ctx: Setting, named: bool) -> Plan | None:
    """Add a method that works on what the class keeps."""
    found = draw_home(ctx, named)
    if found is None:
        return None
    home, method = found
    if not named and method.name.startswith("__"):
        named = True
    path, text = _place(ctx, home)

    def play(session: Session) -> tuple[str, str]:
        what = f"the method {method.name}" if named else "a method"
        task = f"Add {what} to {home.name}. It {method.description}."
        _, hit, view, lines = read_definition(session, home.name, task, "class ")
        if named and any(re.match(rf"\s*def {re.escape(method.name)}\b", row) for _, row in lines):
            raise Report(
                "It is there already.", f"`{home.name}` already has `{method.name}`. Nothing was changed."
            )
        number, last = lines[-1]
        lead = "    "
        old = last.strip()
        code = "\n".join([f"{lead}{method.head}", *(f"{lead}{line}" for line in method.body)])
        call = "" if named else f" Call it {method.name}."
        session.lead = f"{kept_words(home, method, lines)}{call} Its body: {method.said}"
        think = f"The class ends at line {number}: {old}"
        change_line(session, hit.path, number, old, f"{old}\n\n{code}", think)
        return (
            "The diff shows it.",
            f"Added `{method.name}` to `{home.name}` in `{view.path}`; it {method.description}.",
        )

    signature = method.head.removeprefix("def ").rstrip(":")
    if ctx.rng.random() < 0.5:
        signature = re.sub(r"\(self(, )?", "(", signature)
    if ctx.rng.random() < 0.25 and not method.params:
        signature = method.name
    slots = {"class_name": home.name, "body_words": method.description}
    wording = "method_unnamed"
    if named:
        slots["signature"] = signature
        wording = "add_method" if ctx.rng.random() < 0.4 else "method_said"
    check = works_in(path, text, home, method, named)
    return Plan(
        wording,
        "addfunc",
        slots,
        play,
        check,
        ("def", method.name),
        prepare=lambda files: files.update({path: text}),
    )


def kept_words(home: Home, method: Method, lines: list[tuple[int, str]]) -> str:
    """What the class keeps it in, as its text shows."""
    pattern = re.compile(rf"self\.{method.attribute}(: [^=]+)? = ")
    number, row = next((number, row) for number, row in lines if pattern.search(row))
    kind = KINDS[method.kind]
    return f"{home.name} keeps it in self.{method.attribute}, a {kind}: line {number} is {row.strip()}."


def works_in(path: str, text: str, home: Home, method: Method, named: bool) -> Check:
    """The class has the method, it does in all trials what it should, and nothing else changed."""
    wanted = method.results(with_method(home, method), home.name)

    def check(outcome: Outcome) -> str | None:
        now = outcome.after.get(path, "")
        called = method.name if named else new_method(text, now, home.name)
        if not called or not rest_is_kept(text, now, called, home.name):
            return f"{path} lacks the method or was changed otherwise"
        try:
            alone = "\n".join(_nodes(now, home))
            found = method.results(alone, home.name, called)
        except (Exception, SystemExit) as error:
            return f"{called} cannot be run: {error}"
        if not method.is_as_wanted(found, wanted):
            return f"{called} does not do as asked"
        return checks.unchanged(outcome, path)

    return check


def _nodes(text: str, home: Home) -> list[str]:
    """The class, and the names that its own file gives it."""
    body = ast.parse(home.text).body
    own = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    lines = {ast.unparse(node) for node in body}
    found: list[str] = []
    for node in ast.parse(text).body:
        line = ast.unparse(node)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in own:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign) and line not in lines:
            continue
        found.append(line)
    return found


def new_method(before: str, after: str, owner: str) -> str:
    """The one method that a class has now and had not, or an empty string."""

    def names(text: str) -> list[str]:
        try:
            body = ast.parse(text).body
        except SyntaxError:
            return []
        inside = (node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
        return [item.name for item in next(inside, []) if isinstance(item, ast.FunctionDef)]

    had = names(before)
    fresh = [name for name in names(after) if name not in had]
    return fresh[0] if len(fresh) == 1 else ""

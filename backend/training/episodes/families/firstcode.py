"""First wishes about code: errors on bad input, defaults, unused imports, bugs without a symptom."""

import ast
import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.families.adding import by_squeeze
from k3agent.backend.training.episodes.families.functions import one_line
from k3agent.backend.training.episodes.families.repair import draw_broken, play_known, repair_plan
from k3agent.backend.training.episodes.policy import one_definition, open_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

QUOTES = ('"""', "'''", '"', "'")


@goal("fix_bug_in", "fix", 1.4)
def fix_bug_in(ctx: Setting) -> Plan | None:
    """A named function has a bug; what it does wrong is not said."""
    broken = draw_broken(ctx)
    if broken is None or broken.bug.is_syntax:
        return None
    name = broken.func.name
    return repair_plan(
        ctx,
        "fix_bug_in",
        {"name": name},
        lambda s: play_known(s, broken, f"{name} has a bug.", vague=True),
        [broken],
    )


CONDITIONS = (
    ("is zero", "{0} == 0", "not be zero"),
    ("is 0", "{0} == 0", "not be 0"),
    ("== 0", "{0} == 0", "not be 0"),
    ("is negative", "{0} < 0", "not be negative"),
    ("is below zero", "{0} < 0", "not be below zero"),
    ("< 0", "{0} < 0", "not be negative"),
    ("is not positive", "{0} <= 0", "be positive"),
    ("is None", "{0} is None", "not be None"),
    ("is empty", "not {0}", "not be empty"),
    ("is less than {1}", "{0} < {1}", "not be less than {1}"),
    ("is smaller than {1}", "{0} < {1}", "not be smaller than {1}"),
    ("is below {1}", "{0} < {1}", "not be below {1}"),
    ("is greater than {1}", "{0} > {1}", "not be greater than {1}"),
    ("is larger than {1}", "{0} > {1}", "not be larger than {1}"),
    ("is above {1}", "{0} > {1}", "not be above {1}"),
    ("> {1}", "{0} > {1}", "not be greater than {1}"),
)
"""What is said of a parameter, the test, and what its message says that it must."""
ERRORS = ("ValueError", "ValueError", "ValueError", "TypeError", "RuntimeError", "KeyError", "IndexError")


@goal("raise_when", "addfunc", 1.4)
def raise_when(ctx: Setting) -> Plan | None:
    """Let a function raise an error for bad input."""
    found = one_line(ctx, "function", "method")
    if found is None:
        return None
    one, rng = found[0], ctx.rng
    params = [item for item in one.params if item.isidentifier() and item not in ("self", "cls")]
    text = ctx.facts.files[one.path]
    if not params or one.end == one.line or "\r" in text or not checks.compiles(text):
        return None
    follow = text.splitlines()[one.line].strip()
    if follow.startswith(QUOTES) and not (follow.endswith(QUOTES[0]) and len(follow) > 6):
        return None
    param, error, limit = rng.choice(params), rng.choice(ERRORS), rng.randint(1, 100)
    words, test, must = (item.format(param, limit) for item in rng.choice(CONDITIONS))
    message = f'raise {error}("{param} must {must}")'

    def play(session: Session) -> tuple[str, str]:
        task = f"Raise {error} in {one.name} if {param} {words}. Find its definition."
        name, hit = one_definition(session, one.name, task)
        view = open_file(session, hit.path, f"It is at {hit.at}. Read it.", offset=hit.line, limit=8)
        number, row = view.lines[1]
        has_doc = row.strip().startswith(QUOTES)
        lead = row[: len(row) - len(row.lstrip())]
        step = "\t" if "\t" in lead else "    "
        guard = f"{lead}if {test}:\n{lead}{step}{message}"
        place, old = (number, row.strip()) if has_doc else (hit.line, hit.text.strip())
        think = f"The test is {test}. It goes after {'the docstring' if has_doc else 'the first line'}: {old}"
        change_line(session, hit.path, place, old, f"{old}\n{guard}", think)
        return "The diff shows it.", f"`{name}` in `{hit.path}` raises `{error}` now if `{test}`."

    slots = {"name": ctx.called(one), "error": error, "cond": f"{param} {words}"}
    check = _guarded(one.path, one.name, test, error)
    return Plan("raise_when", "addfunc", slots, play, check, ("def", one.name))


def _guarded(path: str, name: str, test: str, error: str) -> Check:
    """The function begins with the test and its error, and nothing else is new."""

    def check(outcome: Outcome) -> str | None:
        try:
            tree = ast.parse(outcome.after.get(path, ""))
        except SyntaxError:
            return f"{path} is no Python any more"
        is_there = False
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != name:
                continue
            for row in node.body[:2]:
                if (
                    isinstance(row, ast.If)
                    and ast.unparse(row.test) == test
                    and isinstance(row.body[0], ast.Raise)
                ):
                    is_there = is_there or f"{error}(" in ast.unparse(row.body[0])
                    node.body.remove(row)
                    break
        if not is_there:
            return f"{name} does not raise {error} if {test}"
        if ast.dump(tree) != ast.dump(ast.parse(outcome.before[path])):
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    return check


def _value(ctx: Setting) -> str:
    rng, noun = ctx.rng, ctx.words.noun()
    return rng.choice(
        (str(rng.randint(0, 9000)), "None", "True", "False", f'"{noun}"', "0.5", str(rng.randint(1, 99)))
    )


@goal("set_default", "setvalue", 1.2)
def set_default(ctx: Setting) -> Plan | None:
    """Another default for a parameter."""
    found = one_line(ctx, "function", "method")
    if found is None or not found[0].params:
        return None
    one, head = found
    if not re.match(r"\s*def \w+\((\w+, )*[a-z]\w*\):$", head):
        return None
    param, old, new = one.params[-1], _value(ctx), _value(ctx)
    if old == new or param in ("self", "cls"):
        return None
    text = checks.replace_line(ctx.facts.files[one.path], one.line, head.replace("):", f"={old}):"))
    done = checks.replace_line(ctx.facts.files[one.path], one.line, head.replace("):", f"={new}):"))

    def play(session: Session) -> tuple[str, str]:
        task = f"Set the default of {param} in {one.name} to {new}. Find its definition."
        name, hit = one_definition(session, one.name, task)
        row = hit.text.strip()
        match = re.search(rf"[(,]\s*{re.escape(param)}(?:: [^=,]+)?\s*=\s*([^,)]+)", row)
        if match is None:
            raise Report("It has no default.", f"`{param}` of `{name}` has no default. Nothing was changed.")
        fresh = row[: match.start(1)] + new + row[match.end(1) :]
        change_line(
            session, hit.path, hit.line, row, fresh, f"{hit.at} has {param}={match[1]}. Make it {new}."
        )
        answer = f"The default of `{param}` in `{name}` is `{new}` now (was {match[1]}), in `{hit.path}`."
        return "The diff shows it.", answer

    slots = {"param": param, "name": ctx.called(one), "value": new}
    return Plan(
        "set_default",
        "setvalue",
        slots,
        play,
        checks.writes({one.path: done}),
        ("def", one.name),
        prepare=lambda files: files.update({one.path: text}),
    )


MODULES = (
    "os",
    "sys",
    "json",
    "re",
    "math",
    "random",
    "time",
    "csv",
    "shutil",
    "logging",
    "itertools",
    "subprocess",
)
IMPORT = re.compile(r"(?:import (\w+)|from [\w.]+ import (\w+))$")


def unused(rows: list[tuple[int, str]]) -> list[tuple[int, str, str]]:
    """(line number, line, name) of imports of one name that no other line uses."""
    found = []
    for number, row in rows:
        match = IMPORT.match(row)
        name = match and (match[1] or match[2])
        if name and not any(re.search(rf"\b{name}\b", other) for at, other in rows if at != number):
            found.append((number, row, name))
    return found


@goal("remove_unused", "addline", 1.2)
def remove_unused(ctx: Setting) -> Plan | None:
    """Remove the import that nothing uses."""
    files, rng = ctx.facts.files, ctx.rng
    pool = [
        path
        for path in ctx.facts.code_paths()
        if 3 < len(files[path].splitlines()) < 75 and "\r" not in files[path] and checks.compiles(files[path])
    ]
    path = ctx.choose([path for path in pool if not path.endswith("__init__.py")])
    if not isinstance(path, str):
        return None
    lines = files[path].splitlines()
    name = rng.choice(MODULES)
    first = next((at for at, row in enumerate(lines) if row.startswith(("import ", "from "))), None)
    if re.search(rf"\b{name}\b", files[path]) or "__future__" in files[path] or lines[0].startswith("#!"):
        return None
    if first is not None:
        at = first + rng.choice((0, 0, 1)) if IMPORT.match(lines[first]) else first
        rows = [*lines[:at], f"import {name}", *lines[at:]]
    elif lines[0].startswith(QUOTES[:2]):
        if len(lines[0]) < 7 or not lines[0].endswith(lines[0][:3]):
            return None
        rows = [lines[0], "", f"import {name}", *lines[1:]]
    else:
        rows = [f"import {name}", "", *lines]
    if len(unused(list(enumerate(rows, 1)))) != 1:
        return None
    text, shown = "\n".join(rows) + "\n", ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, shown, f"Remove the import that {shown} does not use. Read it.")
        found = unused(view.lines)
        if not found:
            raise Report("All are used.", f"All imports of `{view.path}` are used. Nothing was changed.")
        number, row, name = found[0]
        think = f"Line {number} imports {name}, which no other line has. Remove it with its line end."
        change_line(session, view.path, number, row + "\n", "", think)
        return "The diff shows it gone.", f"Removed the unused `{row}` from `{view.path}` (line {number})."

    return Plan(
        "remove_unused",
        "addline",
        {"path": shown},
        play,
        by_squeeze(path, files[path]),
        ("file", path),
        prepare=lambda now: now.update({path: text}),
    )


@goal("about_project", "explain", 1.0)
def about_project(ctx: Setting) -> Plan | None:
    """What the project is: what its README says first."""
    text = ctx.facts.files.get("README.md", "")
    title = next((row.lstrip("# ").strip() for row in text.splitlines() if row.startswith("# ")), "")
    if not title and (text or ctx.rng.random() < 0.6):
        return None

    def play(session: Session) -> tuple[str, str]:
        think = "What is this project? Its README should say it."
        result = session.call("read", think, path="README.md", limit=30)
        if result.is_error:
            raise Report("No README.", "There is no `README.md` that says what this project is.")
        rows = [row.partition("\t")[2].strip() for row in result.lines if "\t" in row]
        head = next((row.lstrip("# ") for row in rows if row.startswith("# ")), "")
        said = next((row for row in rows if row and row[0].isalpha()), "")
        tail = f" It says: {said}" if said else ""
        return "The heading and the first sentence say it.", f"`README.md` calls this project {head}.{tail}"

    return Plan("about_project", "explain", {}, play, checks.answers(title) if title else checks.declines())

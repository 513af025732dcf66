"""Functions of two ideas in JavaScript and Go, written as the file writes its functions: declared, as arrows,
exported at once or in a list at the end. Nothing is run.
"""

import random
import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.extras import in_one_line, third
from k3agent.backend.training.episodes.families.adding import append, open_end
from k3agent.backend.training.episodes.families.creating import new_path, write_new
from k3agent.backend.training.episodes.families.read import read_definition
from k3agent.backend.training.episodes.families.web import _bare, _before_exports, new_project, setting_of
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Session
from k3agent.backend.training.episodes.webcode import WebFunc, draw_func
from k3agent.backend.training.episodes.webproject import draw_web_project
from k3agent.backend.training.episodes.words import Words

ARROWS = 0.35
"""Of JavaScript files, those whose functions are arrows."""


def web_guard(func: WebFunc, rng: random.Random, words: Words) -> tuple[str, str, list[str]]:
    """A case handled first: what to do, when, and the lines, unindented."""
    at = rng.randrange(len(func.params))
    param, kind = func.params[at], func.idea.kinds[at]
    n, many = rng.randint(2, 9), rng.randint(20, 99)
    is_js = func.language == "js"
    size = f"{param}.length" if is_js else f"len({param})"
    same = "===" if is_js else "=="
    if kind == "num":
        conds = [
            (f"if {param} is negative", f"{param} < 0"),
            (f"when {param} is 0", f"{param} {same} 0"),
            (f"if {param} is zero", f"{param} {same} 0"),
            (f"if {param} is below {n}", f"{param} < {n}"),
            (f"when {param} is greater than {many}", f"{param} > {many}"),
        ]
    else:
        conds = [
            (f"if {param} is empty", f"{size} {same} 0"),
            (f"when {param} is empty", f"{size} {same} 0"),
            (f"for empty {param}", f"{size} {same} 0"),
            (f"if {param} is longer than {many}", f"{size} > {many}"),
        ]
    if is_js:
        conds.append((f"if {param} is null", f"{param} === null"))
        conds.append((f"if {param} is undefined", f"{param} === undefined"))
    cond, test = rng.choice(conds)
    text = re.sub(r"['\"\\]", "", rng.choice((words.phrase(), f"no {words.noun()}")))
    if not is_js:
        zero = {"num": "0", "text": '""', "bool": "false"}.get(func.idea.result, "nil")
        action, line = rng.choice(
            ((f"return {zero}", f"return {zero}"), (f'panic with "{text}"', f'panic("{text}")'))
        )
        return action, cond, [f"if {test} {{", f"\t{line}", "}"]
    error = rng.choice(("Error", "Error", "RangeError", "TypeError"))
    value = rng.choice(("null", "null", "0", "''", "[]", "undefined", "false", str(n)))
    action, line = rng.choice(
        (
            (
                f"throw an {error}" if error == "Error" else f"throw a {error}",
                f"throw new {error}('{cond.split(' ', 1)[1]}');",
            ),
            (f'throw new {error}("{text}")', f"throw new {error}('{text}');"),
            (f'throw an error "{text}"', f"throw new Error('{text}');"),
            (f"return {value}", f"return {value};"),
            (f"return {value}", f"return {value};"),
        )
    )
    return action, cond, [f"if ({test}) {{", f"  {line}", "}"]


def arrows(text: str) -> str:
    """JavaScript whose declared functions are arrows."""
    rows = []
    inside = False
    for row in text.split("\n"):
        match = re.match(r"(export )?function (\w+)\((.*)\) \{$", row)
        if match:
            row, inside = f"{match[1] or ''}const {match[2]} = ({match[3]}) => {{", True
        elif row == "}" and inside:
            row, inside = "};", False
        rows.append(row)
    return "\n".join(rows)


def code_with(func: WebFunc, lines: list[str], *, export: bool, arrow: bool) -> list[str]:
    """The function with its guard, as the file writes functions."""
    lead = "  " if func.language == "js" else "\t"
    source = func.source(export=export)
    code = "\n".join([source[0], *(lead + line for line in lines), *source[1:]])
    return (arrows(code) if arrow else code).split("\n")


def _style(text: str) -> str:
    """How the functions of a JavaScript file are written, in words."""
    arrow = re.search(r"^(?:export )?const \w+ = \([^)]*\) =>.*$", text, re.MULTILINE)
    match = arrow or re.search(r"^(?:export )?function .*$", text, re.MULTILINE)
    return f"Functions here look like: {match[0]}" if match else "It is JavaScript."


def compared(code: str, action: str) -> str:
    """Code without what styles differ in, an error's text where `action` says none, and brackets around the
    only statement behind a condition.
    """
    if '"' not in action:
        code = re.sub(r"throw new (\w+)\(.*\)", r"throw new \1", code)
    return _bare(re.sub(r"(\) )\{\s*((?:return|throw)\b[^;{}\n]*;?)\s*\}", r"\1\2", code))


def _has(path: str, before: str, func: WebFunc, code: list[str], action: str) -> Check:
    """The file has the function's lines, and what was there is there."""

    listing = re.compile(r"^module\.exports = .*$", re.MULTILINE)

    def check(outcome: Outcome) -> str | None:
        after, wanted = outcome.after.get(path, ""), compared("\n".join(code), action)
        if wanted not in compared(after, action):
            return f"{func.name} in {path} is missing or wrong"
        rest = compared(listing.sub("", after), action).replace(wanted, "", 1)
        if rest != compared(listing.sub("", before), action):
            return f"{path} was changed otherwise"
        names = [set(re.findall(r"\w+", " ".join(listing.findall(text)))) for text in (before, after)]
        if names[0] and names[1] != {*names[0], func.name}:
            return f"{path} does not export {func.name} and what it did"
        return checks.unchanged(outcome, path)

    return check


@goal("web_func_ideas", "web", 2.6, level=1)
def web_func_ideas(ctx: Setting) -> Plan | None:
    """Add a function with a guard to a file of JavaScript or Go."""
    rng = ctx.rng
    project = draw_web_project(rng, ctx.words, rng.choice(("js", "js", "js", "go")))
    module = rng.choice(project.modules)
    func = draw_func(rng, ctx.words, project.language)
    func.local, func.documented = "", False
    is_js = project.language == "js"
    arrow = is_js and rng.random() < ARROWS
    if arrow:
        project.files[module.path] = arrows(project.files[module.path])
    text = project.files[module.path]
    if (func.needs() and f'"{func.needs()}"' not in text) or any(
        func.name in item for item in project.files.values()
    ):
        return None
    action, cond, lines = web_guard(func, rng, ctx.words)
    code = code_with(func, lines, export=is_js and not project.common, arrow=arrow)
    shown = setting_of(ctx, project).path(module.path)
    idea = f"{action} {cond}"

    def play(session: Session) -> tuple[str, str]:
        task = f"Add the function {func.signature} to {shown}: {func.described}; {idea}. Read the file."
        view = open_end(session, shown, task)
        style = f"{_style(text)} " if is_js else ""
        session.lead = f"{style}First: {idea}: {in_one_line(lines)} Then: {func.line()}"
        final = next((row for _, row in reversed(view.lines) if row.strip()), "")
        if final.startswith("module.exports"):
            _before_exports(session, view, final, "\n".join(code), func.name)
        else:
            append(session, view, "\n".join(code), gap=1)
        return (
            "The diff shows it.",
            f"Added `{func.signature}` to `{view.path}`: it returns {func.described} and {third(idea)}.",
        )

    slots = {"signature": func.signature, "what": f"returns {func.described}", "idea": idea, "path": shown}
    check, prepare = _has(module.path, text, func, code, action), new_project(project.files)
    return Plan("func_and_idea", "web", slots, play, check, prepare=prepare, alone=True)


@goal("web_guard_in", "web", 1.6, level=1)
def web_guard_in(ctx: Setting) -> Plan | None:
    """Let a function of JavaScript or Go handle a case first."""
    rng = ctx.rng
    project = draw_web_project(rng, ctx.words, rng.choice(("js", "js", "js", "go")))
    module = rng.choice(project.modules)
    func = rng.choice(module.functions)
    if project.language == "js" and rng.random() < ARROWS:
        project.files[module.path] = arrows(project.files[module.path])
    text = project.files[module.path]
    action, cond, lines = web_guard(func, rng, ctx.words)
    lead = "  " if project.language == "js" else "\t"
    head = next(
        row for row in text.split("\n") if re.match(rf"(export )?(function|const|func) {func.name}\b", row)
    )
    added = "\n".join(lead + line for line in lines)

    def play(session: Session) -> tuple[str, str]:
        _, hit, view, rows = read_definition(session, func.name, f"{func.name} should {action} {cond}.")
        number, row = rows[0]
        think = (
            f"{action} {cond}: {in_one_line(lines)} It comes first in the body, after line {number}: {row}"
        )
        change_line(session, hit.path, number, row, f"{row}\n{added}", think)
        return "The diff shows it.", f"`{func.name}` in `{view.path}` now {third(action)} {cond}."

    def check(outcome: Outcome) -> str | None:
        wanted = compared(text.replace(head, f"{head}\n{added}", 1), action)
        if compared(outcome.after.get(module.path, ""), action) != wanted:
            return f"{func.name} does not {action} {cond}, or more was changed"
        return checks.unchanged(outcome, module.path)

    slots = {"name": func.name, "action": action, "cond": cond}
    return Plan("guard_said", "web", slots, play, check, prepare=new_project(project.files), alone=True)


@goal("create_js_func", "create", 0.8)
def create_js_func(ctx: Setting) -> Plan | None:
    """Create a JavaScript file with a function of two ideas."""
    rng = ctx.rng
    func = draw_func(rng, ctx.words, "js")
    func.local, func.documented = "", False
    action, cond, lines = web_guard(func, rng, ctx.words)
    path, idea = new_path(ctx, "js"), f"{action} {cond}"
    code = code_with(func, lines, export=True, arrow=False)

    def play(session: Session) -> tuple[str, str]:
        think = f"{path} is JavaScript. First: {idea}: {in_one_line(lines)} Then: {func.line()}"
        done, _ = write_new(session, path, "\n".join(code), think)
        return (
            done,
            f"Created `{path}` with `{func.signature}`: it returns {func.described} and {third(idea)}.",
        )

    def check(outcome: Outcome) -> str | None:
        after = compared(outcome.after.get(path, ""), action).replace("export", "")
        wanted = compared("\n".join(code), action).replace("export", "")
        after = re.sub(r"module\.exports=\{?\w+\}?$", "", after)
        return checks.unchanged(outcome, path) if after == wanted else f"{path} is missing or wrong"

    slots = {"path": path, "signature": func.signature, "what": f"returns {func.described}", "idea": idea}
    return Plan("file_and_idea", "create", slots, play, check, ("file", path))

"""JavaScript and Go: the usual goals in such projects, adding a function, repairs from output that the user
pastes. Nothing is run: neither node nor go need be there.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from k3agent.backend.training.episodes import checks, weboutput
from k3agent.backend.training.episodes.editing import around, changed_part, edit_text
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.adding import append, open_end, squeeze
from k3agent.backend.training.episodes.families.look import names_in
from k3agent.backend.training.episodes.policy import View, base_name, one_definition, open_file, quoted
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session
from k3agent.backend.training.episodes.webcode import WebFunc, draw_func
from k3agent.backend.training.episodes.webproject import WebModule, WebProject, draw_web_project, test_file

USUAL = {
    "where_defined": 2,
    "where_used": 2,
    "show_def": 2,
    "find_file": 1,
    "find_text": 1,
    "list_dir": 1,
    "list_ext": 1,
    "show_file": 1,
    "value_of": 2,
    "set_const": 3,
    "set_const_in": 2,
    "set_const_from": 1,
    "set_spoken": 1,
    "set_key": 1,
    "rename": 4,
    "rename_kind": 1,
    "rename_file": 2,
    "move_file": 1.5,
    "delete_file": 0.5,
    "replace_text": 2,
    "replace_text_all": 1,
    "add_line_end": 1,
    "add_after": 1,
    "delete_line": 1,
    "count_ext": 1,
}
"""Goals of the first edition that ask nothing of Python."""
NOT_RUN = "I have not run the tests."


def new_project(fresh: dict[str, str]) -> Callable[[dict[str, str]], None]:
    """What puts a project in the place of the one that was there."""

    def prepare(files: dict[str, str]) -> None:
        files.clear()
        files.update(fresh)

    return prepare


def setting_of(ctx: Setting, project: WebProject) -> Setting:
    """The same words in another project."""
    return Setting(Facts(dict(project.files)), ctx.rng, ctx.words)


@goal("web_usual", "web", 4.0, level=1)
def web_usual(ctx: Setting) -> Plan | None:
    """A goal of the first edition in a JavaScript or Go project."""
    project = draw_web_project(ctx.rng, ctx.words)
    inside = setting_of(ctx, project)
    for _ in range(8):
        entry = GOALS[ctx.rng.choices(list(USUAL), list(USUAL.values()))[0]]
        plan = entry.make(inside)
        if plan is not None and plan.prepare is None and plan.setup is None:
            return replace(plan, family="web", prepare=new_project(project.files), alone=True)
    return None


def _module_with(project: WebProject, func: WebFunc) -> WebModule:
    return next(module for module in project.modules if func in module.functions)


@goal("web_add_func", "web", 1.8, level=1)
def web_add_func(ctx: Setting) -> Plan | None:
    """Add a function whose result is described."""
    project = draw_web_project(ctx.rng, ctx.words)
    module = ctx.rng.choice(project.modules)
    func = draw_func(ctx.rng, ctx.words, project.language)
    func.local, func.documented = "", False
    text = project.files[module.path]
    if func.needs() and f'"{func.needs()}"' not in text:
        return None
    if any(func.name in other for other in project.files.values()):
        return None
    shown = setting_of(ctx, project).path(module.path)
    export = text.count("export function") > 0
    code = "\n".join(func.source(export=export))
    last = next(row for row in reversed(text.splitlines()) if row.strip())
    words = f"{ctx.rng.choice(('returns', 'returns', 'gives back'))} {func.described}"

    def play(session: Session) -> tuple[str, str]:
        task = f"Add the function {func.signature} to {shown}. It {words}. Read the file."
        view = open_end(session, shown, task)
        session.lead = f"{func.name} {words}: {func.line()}"
        final = next((row for _, row in reversed(view.lines) if row.strip()), "")
        if final.startswith("module.exports"):
            _before_exports(session, view, final, code, func.name)
        else:
            append(session, view, code, gap=1)
        return "The diff shows it.", f"Added `{func.signature}` to `{view.path}`; it {words}."

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(module.path, "")
        body = rf"function {re.escape(func.name)}\(" if project.language == "js" else rf"func {func.name}\("
        if not re.search(body, after) or _bare(func.line()) not in _bare(after):
            return f"{func.name} in {module.path} is missing or wrong"
        kept = [row for row in text.splitlines() if row.strip() and row != last]
        gone = [row for row in kept if row not in after.splitlines()]
        return checks.unchanged(outcome, module.path) or (f"{gone[0]!r} is gone" if gone else None)

    slots = {"signature": func.signature, "path": shown, "body_words": words}
    prepare = new_project(project.files)
    return Plan("add_func", "web", slots, play, check, prepare=prepare, alone=True)


def _bare(code: str) -> str:
    """Code without what styles differ in."""
    return re.sub(r"[\s;()]", "", code).replace("'", '"')


def _before_exports(session: Session, view: View, final: str, code: str, name: str) -> None:
    """Put a function before the line that lists what a module gives, and its name into that line."""
    number = next(n for n, row in reversed(view.lines) if row == final)
    listed = final.replace(" };", f", {name} }};")
    think = (
        f"Line {number} lists what the module gives: {final} The function goes before it, its name into it."
    )
    edit_text(session, view.path, final, f"{code}\n\n{listed}", think, line=number)


def _broken(ctx: Setting) -> tuple[WebProject, WebModule, WebFunc, dict[str, str]] | None:
    """A project with one function gone wrong whose comment says what it should do, and the right files."""
    project = draw_web_project(ctx.rng, ctx.words)
    project.files = {
        path: text for path, text in project.files.items() if not re.search(r"(\.test\.js|_test\.go)$", path)
    }
    module = ctx.rng.choice(project.modules)
    func = ctx.rng.choice(module.functions)
    func.documented = True
    right = dict(project.files)
    right[module.path] = project.text(module)
    project.files[module.path] = project.text(module, func)
    return (project, module, func, right) if project.files != right else None


@goal("web_fix_output", "web", 2.4, level=1)
def web_fix_output(ctx: Setting) -> Plan | None:
    """Repair a line, going by a failed test that the user pastes."""
    drawn = _broken(ctx)
    if drawn is None:
        return None
    project, module, func, right = drawn
    fresh, line, facts = test_file(project, module, ctx.rng, ctx.words, func)
    if not fresh:
        return None
    path = next(iter(fresh))
    project.files |= fresh
    right |= fresh
    root = weboutput.home(ctx.rng, ctx.words, project)
    if project.language == "go":
        output = weboutput.go_failure(func, facts, path, line, project, ctx.rng)
    elif project.runner == "jest":
        output = weboutput.jest_failure(func, facts, path, line, fresh[path], ctx.rng)
    else:
        output = weboutput.node_failure(func, facts, path, line, root, ctx.rng)

    def play(session: Session) -> tuple[str, str]:
        name, have, want = func.name, facts[2], facts[1]
        think = f"The test of {name} fails: it gives {have}, not {want}. Find {name}."
        _, hit = one_definition(session, name, think)
        view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it with its comment.")
        texts = dict(view.lines)
        comment = texts.get(hit.line - 1, "").strip().strip("/* ")
        number, row = next((n, t) for n, t in view.lines if n >= hit.line and func.line(wrong=True) in t)
        before, after = changed_part(row.strip(), func.line())
        why = f"It should do this: {comment} Line {number} has {row.strip()}"
        edit_text(session, hit.path, row.strip(), func.line(), f"{why} It must be {func.line()}", line=number)
        told = f"Fixed: `{row.strip()}` became `{func.line()}` in `{hit.path}` (line {number})."
        return f"{before or 'A part'} became {after or 'nothing'}.", f"{told} {NOT_RUN}"

    return _repair_plan("fix_pasted", {"output": output}, play, project, right)


def _repair_plan(
    name: str,
    slots: dict[str, str],
    play: Callable[[Session], tuple[str, str]],
    project: WebProject,
    right: dict[str, str],
) -> Plan:
    """The files become those of the project without its bug."""
    expected: dict[str, str | None] = {p: t for p, t in right.items() if project.files[p] != t}
    prepare = new_project(dict(project.files))

    def check(outcome: Outcome) -> str | None:
        for path, text in expected.items():
            if squeeze(outcome.after.get(path, "")) != squeeze(text or ""):
                return f"{path} is not repaired"
        return checks.unchanged(outcome, *expected)

    return Plan(name, "web", slots, play, check, prepare=prepare, alone=True)


def _misspelled(ctx: Setting, name: str) -> str:
    """A name with a slip in it."""
    at = ctx.rng.randrange(1, len(name) - 1)
    return ctx.rng.choice((name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:], f"{name}s"))


@goal("web_fix_name", "web", 1.6, level=1)
def web_fix_name(ctx: Setting) -> Plan | None:
    """Repair a misspelled parameter, going by the error that the user gives."""
    project = draw_web_project(ctx.rng, ctx.words)
    module = ctx.rng.choice(project.modules)
    func = ctx.rng.choice(module.functions)
    param = func.params[0]
    wrong = _misspelled(ctx, param) if len(param) > 3 else param
    right = dict(project.files)
    line = func.line()
    row = re.sub(rf"\b{param}\b", wrong, line, count=1)
    text = project.files[module.path]
    if row == line or wrong in text or text.count(line) != 1:
        return None
    project.files[module.path] = text.replace(line, row)
    number, whole = next((n, t) for n, t in enumerate(project.files[module.path].splitlines(), 1) if row in t)
    root = weboutput.home(ctx.rng, ctx.words, project)
    pasted = ctx.rng.random() < 0.5
    if pasted:
        error = weboutput.reference_error(wrong, func, module.path, number, whole, root, ctx.rng)
    else:
        error = weboutput.short_error(wrong, func, module.path, number, whole, ctx.rng)

    def play(session: Session) -> tuple[str, str]:
        said = re.search(r"([\w./-]+\.(?:js|go)):(\d+)", error)
        assert said is not None
        return repair_name(session, said[1].removeprefix("./"), int(said[2]), wrong)

    name, slot = ("fix_pasted", "output") if pasted else ("fix_error", "error_text")
    return _repair_plan(name, {slot: error}, play, project, right)


def repair_name(session: Session, path: str, line: int, wrong: str) -> tuple[str, str]:
    """Read where a name is not known, find the parameter that was meant, put it there."""
    if path.startswith("/"):
        think = f"{wrong} is not known in {base_name(path)}, line {line}. Where is that file here?"
        found = names_in(session.call("glob", think, pattern=f"**/{base_name(path)}").text)
        found = [item for item in found if path.endswith(f"/{item}")] or found
        if len(found) != 1:
            raise Report(
                "Not one file.", f"I find {quoted(found) or 'no file'} for `{path}`. Nothing was changed."
            )
        path = found[0]
        think = f"It is {path}. Read around line {line}."
    else:
        think = f"{wrong} is not known in line {line} of {path}. Read it."
    start = max(1, line - session.rng.randint(4, 12))
    view = open_file(session, path, think, offset=start, limit=line - start + session.rng.randint(4, 16))
    row = dict(view.lines).get(line, "").strip()
    head = next((t for n, t in reversed(view.lines) if n < line and re.search(r"\bfunc(tion)?\b", t)), "")
    names = re.findall(r"\w+", head.partition("(")[2])
    near = max(names, key=lambda name: _alike(name, wrong), default="")
    if not near or wrong not in row:
        raise Report(
            "I do not see it.", f"Line {line} of `{path}` does not have `{wrong}`. Nothing was changed."
        )
    think = f"{wrong} stands in line {line}, but the parameter is {near}."
    edit_text(session, path, row, re.sub(rf"\b{wrong}\b", near, row), think, line=line)
    return (
        "The diff shows it.",
        f"Fixed: `{wrong}` became `{near}` in `{path}` (line {line}). I have not run it.",
    )


def _alike(one: str, two: str) -> float:
    from difflib import SequenceMatcher  # lazy: few episodes need it

    return SequenceMatcher(None, one, two).ratio()

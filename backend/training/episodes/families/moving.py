"""Moving functions, classes and modules to other files: imports of them are adapted, the tests are run."""

import ast
import builtins
import re
import shlex

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line, error_of
from k3agent.backend.training.episodes.facts import Definition
from k3agent.backend.training.episodes.families.adding import append, open_end, squeeze
from k3agent.backend.training.episodes.families.creating import write_new
from k3agent.backend.training.episodes.families.names import find_both, run_shell
from k3agent.backend.training.episodes.families.read import unique_definition
from k3agent.backend.training.episodes.families.repair import run_tests
from k3agent.backend.training.episodes.policy import (
    Hit,
    View,
    base_name,
    block,
    esc,
    hits,
    is_definition,
    near_names,
    open_file,
    quoted,
    read_view,
    same_file,
    several,
    similar_paths,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

IMPORT = re.compile(r"^(?:from [\w.]+ )?import ([\w., ]+)$")
FROM = re.compile(r"^\s*from ([\w.]+) import ([\w, ]+)$")


def dotted(path: str) -> str:
    """The name under which a file is imported."""
    return path.removeprefix("./").removesuffix(".py").replace("/", ".")


def moved_import(line: str, name: str, old: str, new: str) -> str:
    """An import line for a name that went from one module to another; an empty line where it must go."""
    match = FROM.match(line)
    if match is None or match[1] != old:
        return line
    names = [item.strip() for item in match[2].split(",")]
    rest = [item for item in names if item != name]
    kept = [f"from {old} import {', '.join(rest)}"] if rest else []
    return "\n".join([*kept, *([f"from {new} import {name}"] if new else [])])


def tested(session: Session) -> str:
    """Run the tests after a change; a sentence about what they say."""
    try:
        run, _ = run_tests(session, "All imports are adapted. Run the tests.")
    except Report:
        return "I could not run the tests here."
    if run.ok:
        return f"The tests pass: {run.summary}."
    if "no tests ran" in run.summary or "Ran 0 tests" in run.summary:
        return "There are no tests to run."
    names = [failure.name for failure in run.failures]
    return f"The tests fail: {several(names) or run.summary}."


def needed_imports(code: str, lines: list[str]) -> list[str]:
    """The import lines of a file that bring names which the code uses."""
    found = []
    for line in lines:
        match = IMPORT.match(line)
        names = [item.split()[-1] for item in match[1].split(",") if item.strip()] if match else []
        if any(re.search(rf"(?<![\w.]){re.escape(name)}\b", code) for name in names):
            found.append(line)
    return found


def _place(session: Session, shown: str, code: str, name: str, needed: list[str]) -> str:
    """Put the code at the end of the target, which may be new, with the imports that it needs; its path."""
    what = "; ".join(needed) or "no import"
    think = f"It needs {what}. Now {shown}, where it must go. Read it."
    result = session.call("read", think, path=shown, limit=80)
    view = read_view(result, shown)
    if result.is_error:
        same = [item for item in similar_paths(result.text) if same_file(shown, item)]
        if len(same) > 1:
            raise Report(
                f"{len(same)} files fit.",
                f"There are several files of that name: {quoted(same)}. Which one do you mean?",
            )
        if not same:
            whole = "\n".join([*needed, *(["", ""] if needed else []), code])
            write_new(session, shown, whole, f"{shown} does not exist yet. Create it with {name}.")
            return shown
        view = open_end(session, same[0], f"The file is {same[0]}. Read it.")
    top = view
    if view.lines and view.lines[-1][0] < view.total:
        view = open_end(session, shown, f"It has {view.total} lines. Read the end.")
    target = view.path
    main = next(((number, row) for number, row in view.lines if row.startswith("if __name__")), None)
    if main is None:
        append(session, view, code, gap=2)
    else:
        number, row = main
        think = f"Line {number} is {row}. It must stay last. Add before it."
        change_line(session, target, number, row, f"{code}\n\n\n{row}", think)
    _bring(session, top, needed)
    return target


def _bring(session: Session, view: View, needed: list[str]) -> None:
    """The imports that the target lacks, at its top."""
    rows = [row for _, row in view.lines]
    missing = [line for line in needed if line not in rows]
    if not missing or not rows:
        return
    _at_top(session, view, "\n".join(missing), f"{view.path} lacks {'; '.join(missing)}.")


def _at_top(session: Session, view: View, lines: str, think: str) -> None:
    """Import lines beside the first import, else below the docstring or at the very top."""
    number, old = next(
        ((number, row) for number, row in view.lines if row.startswith(("import ", "from "))), view.lines[0]
    )
    fresh = f"{old}\n{lines}" if old.startswith(("import ", "from ")) else f"{lines}\n{old}"
    if old.startswith(('"""', "'''", "#")):
        fresh = f"{old}\n{lines}"
    change_line(session, view.path, number, old, fresh, f"{think} Line {number} is {old}. Import there.")


def _import_here(session: Session, path: str, line: str, name: str) -> None:
    """The file that lost the name still uses it: import it at the top."""
    view = open_file(session, path, f"{path} itself still uses {name}. Read its top.", limit=12)
    _at_top(session, view, line, f"{name} must be imported.")


def play_move(session: Session, name: str, shown: str) -> tuple[str, str]:
    """Move one definition and adapt the imports."""
    task = f"Move {name} to {shown}. Find it and who imports it."
    found = hits(session.call("grep", task, pattern=rf"\b{esc(name)}\b", glob="*.py"))
    if not found:
        name = near_names(session, name)
        found = hits(session.call("grep", f"It is written {name}.", pattern=rf"\b{esc(name)}\b", glob="*.py"))
    homes = [hit for hit in found if is_definition(name, hit.text) and not hit.text.startswith((" ", "\t"))]
    if len(homes) != 1:
        places = quoted([hit.at for hit in homes])
        raise Report(
            f"{len(homes)} definitions.",
            f"`{name}` is defined in several places: {places}. Which one do you mean?"
            if homes
            else f"`{name}` is not defined at the top of a file here. Nothing was changed.",
        )
    home = homes[0]
    users = [hit for hit in found if FROM.match(hit.text) and hit.path != home.path]
    inner = [hit for hit in found if hit.path == home.path and hit is not home]
    think = f"It is at {home.at}; {several([hit.at for hit in users], 6) or 'nobody'} imports it. Read it."
    view = open_file(session, home.path, think)
    top = [row for _, row in view.lines]
    if home.line + 20 > view.lines[-1][0] < view.total:
        think = f"It has {view.total} lines. Read from line {home.line}."
        view = open_file(session, home.path, think, offset=home.line, limit=30)
    rows, _ = block(view.lines, home.line)
    code = "\n".join(row for _, row in rows)
    needed = needed_imports(code, top)
    target = _place(session, shown, code, name, needed)
    old, new = dotted(home.path), dotted(target)
    _adapt(session, users, name, old, new, target)
    old_text = "\n".join([code, *_gap(view, rows)]) + "\n"
    think = f"Remove it from {home.path}, line {home.line}."
    result = session.call("edit", think, path=home.path, old=old_text, new="", line=home.line)
    if result.is_error:
        raise Report(
            "That failed; I stop.",
            f"`{name}` is in `{target}` now, but I could not remove it from `{home.path}`:"
            f" {error_of(result)}",
        )
    last = rows[-1][0]
    if any(not home.line <= hit.line <= last for hit in inner):
        _import_here(session, home.path, f"from {new} import {name}", name)
    files = list(dict.fromkeys(hit.path for hit in users if hit.path != target))
    tail = f" Imports adapted in {quoted(files)}." if files else ""
    brought = f" with {quoted(needed)}" if needed else ""
    return "Report it.", f"Moved `{name}` from `{home.path}` to `{target}`{brought}.{tail} {tested(session)}"


def _adapt(session: Session, users: list[Hit], name: str, old: str, new: str, target: str) -> None:
    """Import lines of a moved name in other files."""
    for hit in users:
        fresh = moved_import(hit.text.strip(), name, old, "" if hit.path == target else new)
        if fresh == hit.text.strip():
            continue
        if not fresh:
            _drop(session, hit, name)
            continue
        change_line(
            session,
            hit.path,
            hit.line,
            hit.text.strip(),
            fresh,
            f"{hit.at} imports it from {old}. Now from {new}.",
        )


def _gap(view: View, rows: list[tuple[int, str]]) -> list[str]:
    """The blank lines after a block, which go with it."""
    after = [row for row in view.lines if row[0] > rows[-1][0]]
    count = next((index for index, (_, text) in enumerate(after) if text.strip()), 0)
    return [text for _, text in after[:count]]


def _drop(session: Session, hit: Hit, name: str) -> None:
    """The target needs no import of what it now holds."""
    session.call(
        "edit",
        f"{hit.path} now has {name} itself. Remove line {hit.line}.",
        path=hit.path,
        old=f"{hit.text}\n",
        new="",
        line=hit.line,
    )


def _is_alone(text: str, one: Definition) -> bool:
    """Whether a definition needs nothing of its module but imports."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    node = next((node for node in tree.body if getattr(node, "name", "") == one.name), None)
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.decorator_list:
        return False
    known = {item.arg for item in ast.walk(node) if isinstance(item, ast.arg)}
    known |= {
        item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }
    used = {
        item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)
    }
    for line in text.splitlines():
        if match := IMPORT.match(line):
            known |= {item.split()[-1] for item in match[1].split(",") if item.strip()}
    return all(item in known or hasattr(builtins, item) or item == one.name for item in used)


def _module(line: str) -> str:
    """The module that an import line names."""
    match = re.match(r"(?:from|import) ([\w.]+)", line)
    return match[1] if match else ""


def _fits(ctx: Setting, one: Definition, target: str) -> bool:
    """Whether the move is a plain one: single-line imports, no cycle."""
    files, old = ctx.facts.files, dotted(one.path)
    text = files[one.path]
    lines = text.splitlines()
    if "\r" in text + files.get(target, "") or not text.endswith("\n") or not _is_alone(text, one):
        return False
    for path, _, line in ctx.facts.word_lines(one.name):
        if re.search(rf"\w\.{re.escape(one.name)}\b", line) and path.endswith(".py"):
            return False
        if re.match(r"\s*(from|import)\b", line):
            match = FROM.match(line)
            if match is None or match[1] != old or line.startswith((" ", "\t")) or "\r" in files[path]:
                return False
    after = [line for number, line in enumerate(lines, 1) if not one.line <= number <= one.end]
    needed = needed_imports("\n".join(lines[one.line - 1 : one.end]), lines[:60])
    own = {dotted(path) for path in files if path.endswith(".py")}
    if not any(line.strip() for line in after) or any(_module(line) in own for line in needed):
        return False
    users = [path for path, _, line in ctx.facts.word_lines(one.name) if FROM.match(line) and path != target]
    if {_module(line) for line in files.get(target, "").splitlines()} & {dotted(path) for path in users}:
        return False
    if not any(re.search(rf"\b{re.escape(one.name)}\b", line) for line in after):
        return True
    cyclic = re.search(rf"^(from|import) {re.escape(old)}\b", files.get(target, ""), re.MULTILINE)
    top = next((line for line in after[:12] if line.startswith(("import ", "from "))), after[0])
    quote = top[:3] if top.startswith(('"""', "'''")) else ""
    plain = top.count(quote) == 2 if quote else re.match(r"import |from |[A-Z_a-z]", top) and "(" not in top
    return not cyclic and bool(plain)


@goal("move_def", "replace", 1.6, level=1)
def move_def(ctx: Setting) -> Plan | None:
    """Move a function or class to another module, or to a new one."""
    rng, files = ctx.rng, ctx.facts.files
    one = unique_definition(ctx, *rng.choice((("function",), ("function",), ("class",))), python=True)
    if one is None or one.end - one.line > 16 or one.path.rsplit("/", 1)[-1].startswith("test_"):
        return None
    others = [path for path in ctx.facts.code_paths() if path != one.path and checks.compiles(files[path])]
    is_new = not others or rng.random() < 0.35
    home = one.path[: -len(base_name(one.path))]
    if is_new:
        folder = home if rng.random() < 0.6 else rng.choice(("", "lib/", f"{ctx.words.noun()}/"))
        target = f"{folder}{ctx.unused(ctx.words.module)}.py"
        if target in files or folder.rstrip("/") in files or (folder == "lib/" and "lib.py" in files):
            return None
    else:
        target = rng.choice(others)
    imported = any(FROM.match(line) for _, _, line in ctx.facts.word_lines(one.name))
    if not _fits(ctx, one, target) or (not imported and rng.random() < 0.75):
        return None
    shown = target if is_new else ctx.path(target)
    return Plan(
        "move_def",
        "replace",
        {"name": one.name, "path": shown, "kind": one.kind},
        lambda session: play_move(session, one.name, shown),
        _def_moved(ctx, one, target),
        ("def", one.name),
    )


def _node(text: str, name: str) -> str:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ""
    return next((ast.unparse(node) for node in tree.body if getattr(node, "name", "") == name), "")


def _body(text: str, name: str) -> list[str]:
    """The lines of a module without imports and without one definition."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return [text]
    gone = {
        number
        for node in tree.body
        if getattr(node, "name", "") == name or isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    kept = [line for number, line in enumerate(text.splitlines(), 1) if number not in gone]
    return squeeze("\n".join(kept)).splitlines()


def _def_moved(ctx: Setting, one: Definition, target: str) -> Check:
    """The definition stands in the target alone, and all who use it import it from there."""
    old, new, name = dotted(one.path), dotted(target), one.name
    rows = ctx.facts.files[one.path].splitlines()
    needed = needed_imports("\n".join(rows[one.line - 1 : one.end]), rows[:60])
    users = {
        path
        for path, _, line in ctx.facts.word_lines(name)
        if (match := FROM.match(line)) and match[1] == old
    }

    def check(outcome: Outcome) -> str | None:
        before, after = outcome.before, outcome.after
        if _node(after.get(target, ""), name) != _node(before[one.path], name):
            return f"{name} is not in {target} as it was"
        if _node(after.get(one.path, ""), name):
            return f"{name} is still in {one.path}"
        if any(line not in after[target] for line in needed):
            return f"{target} lacks an import that {name} needs"
        for path in {one.path, target, *users}:
            if _body(before.get(path, ""), name) != _body(after.get(path, ""), name):
                return f"{path} was changed otherwise"
            uses = path != target and any(
                re.search(rf"\b{re.escape(name)}\b", line) for line in _body(after[path], name)
            )
            imports = rf"^from {re.escape(new)} import .*\b{re.escape(name)}\b"
            if uses and not re.search(imports, after[path], re.MULTILINE):
                return f"{path} uses {name} but does not import it from {new}"
            if re.search(
                rf"^from {re.escape(old)} import .*\b{re.escape(name)}\b", after[path], re.MULTILINE
            ):
                return f"{path} still imports {name} from {old}"
        return checks.unchanged(outcome, one.path, target, *users)

    return check


def module_import(line: str, old: str, new: str) -> str:
    """An import line after a module got another dotted name."""
    parent, _, stem = old.rpartition(".")
    home, _, now = new.rpartition(".")
    if re.match(rf"\s*from {re.escape(old)} import ", line):
        return line.replace(f"from {old} ", f"from {new} ", 1)
    whole = f"from {home} import {now}" if home else f"import {now}"
    plain = f"from {parent} import {stem}" if parent else f"import {stem}"
    return line.replace(plain, whole, 1) if line.strip() == plain else line


def _play_module(session: Session, shown: str, named: str) -> tuple[str, str]:
    """Move the file, adapt who imports it, run the tests."""
    where = named.rstrip("/")
    goal_path = f"{where}/{base_name(shown)}"
    source = find_both(session, shown, goal_path, f"Move {shown} to the folder {where}. Find it.")
    was, now = dotted(source), dotted(f"{where}/{base_name(source)}")
    word = was.rpartition(".")[2]
    users = hits(
        session.call(
            "grep", f"Who imports {word}?", pattern=rf"^\s*(import|from) .*\b{esc(word)}\b", glob="*.py"
        )
    )
    command = f"mkdir -p {shlex.quote(where)} && mv {shlex.quote(source)} {shlex.quote(where)}/"
    think = f"{len(users)} lines import it. Move the file first."
    run_shell(session, think, command, f"move `{source}`")
    for hit in users:
        line = hit.text.strip()
        fresh = module_import(line, was, now)
        if fresh != line:
            change_line(session, hit.path, hit.line, line, fresh, f"{hit.at}: {was} is now {now}.")
    changed = list(dict.fromkeys(hit.path for hit in users))
    tail = f" Imports adapted in {quoted(changed)}." if changed else " Nobody imports it."
    return "Report it.", f"Moved `{source}` to `{where}/{base_name(source)}`.{tail} {tested(session)}"


@goal("move_module", "replace", 1.3, level=1)
def move_module(ctx: Setting) -> Plan | None:
    """Move a Python file to another folder and adapt its importers."""
    rng, files = ctx.rng, ctx.facts.files
    path = ctx.choose([path for path in ctx.facts.code_paths() if "__init__" not in path])
    if not isinstance(path, str) or re.search(r"^\s*from \.", files[path], re.MULTILINE):
        return None
    here, stem = path.rpartition("/")[0], base_name(path).removesuffix(".py")
    folders = [item for item in ctx.facts.folders if item != here and re.fullmatch(r"[\w/]+", item)]
    folders = [item for item in folders if f"{item}/{stem}.py" not in files and "test" not in item]
    folder = rng.choice(folders) if folders and rng.random() < 0.5 else ctx.unused(ctx.words.noun)
    target = f"{folder}/{stem}.py"
    old, new = dotted(path), dotted(target)
    expected: dict[str, str | None] = {path: None, target: files[path]}
    for other, text in files.items():
        lines = text.split("\n")
        if not other.endswith(".py") or not re.search(rf"\b{re.escape(stem)}\b", text) or other == path:
            continue
        fresh = [module_import(line, old, new) for line in lines]
        left = [
            line
            for line, was in zip(fresh, lines, strict=True)
            if line == was and re.match(rf"\s*(import|from) .*\b{re.escape(stem)}\b", line)
        ]
        if left or "\r" in text:
            return None
        if fresh != lines:
            expected[other] = "\n".join(fresh)
    if len(expected) == 2 and rng.random() < 0.7:
        return None
    if len(stem) < 4 or len(expected) > 7 or stem in ("test", "tests") or f"{folder}.py" in files:
        return None
    if any(base_name(item) == f"{stem}.py" and item != path for item in files):
        return None
    shown, named = ctx.path(path), rng.choice((folder, f"{folder}/"))

    def check(outcome: Outcome) -> str | None:
        if re.search(r"(may|could) not", outcome.answer):
            return checks.unchanged(outcome)
        return checks.writes(expected)(outcome)

    name = rng.choice(("move_module", "move_module", "move_file"))
    return Plan(
        name,
        "replace",
        {"path": shown, "dir": named},
        lambda session: _play_module(session, shown, named),
        check,
        ("file", target),
    )

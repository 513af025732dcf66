"""Adding imports, constants, packages, keys and list items where they belong."""

import json
import re
import tomllib

from k3agent.backend.training.episodes import checks, literals
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.adding import append, by_squeeze, open_end, squeeze
from k3agent.backend.training.episodes.families.values import assigned, assignment, fit_value
from k3agent.backend.training.episodes.policy import (
    View,
    hits,
    near_names,
    one_definition,
    open_file,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session


def docstring_end(lines: list[tuple[int, str]], first: int) -> int | None:
    """Index of the line that ends a docstring starting at index `first`."""
    text = lines[first][1].strip()
    for quote in ('"""', "'''"):
        if text.startswith(quote):
            if len(text) >= 6 and text.endswith(quote):
                return first
            return next(
                (i for i in range(first + 1, len(lines)) if lines[i][1].rstrip().endswith(quote)), None
            )
    return None


def insert_import(session: Session, view: View, line: str) -> None:
    """Put an import line where imports belong."""
    imports = [
        (number, text)
        for number, text in view.lines
        if text.startswith(("import ", "from ")) and "__future__" not in text
    ]
    if imports:
        number, old = imports[0]
        change_line(
            session,
            view.path,
            number,
            old,
            f"{line}\n{old}",
            f"The imports begin at line {number}: {old}. Add before it.",
        )
        return
    first = next(
        index for index, (_, text) in enumerate(view.lines) if text.strip() and not text.startswith("#!")
    )
    end = docstring_end(view.lines, first)
    number, text = view.lines[first if end is None else end]
    old = text.strip() if end is None else text.rstrip()
    if end is not None:
        change_line(
            session,
            view.path,
            number,
            old,
            f"{old}\n\n{line}",
            f"No imports; the docstring ends at line {number}. Add after it.",
        )
    else:
        change_line(
            session,
            view.path,
            number,
            old,
            f"{line}\n\n{old}",
            f"No imports. Add before line {number}: {old}",
        )


@goal("add_import", "addline", 1.4)
def add_import(ctx: Setting) -> Plan | None:
    """Import a module in a file."""
    path = ctx.choose(ctx.facts.code_paths())
    if not isinstance(path, str):
        return None
    rng = ctx.rng
    module = rng.choice(
        (
            "os",
            "sys",
            "json",
            "re",
            "math",
            "time",
            "random",
            "csv",
            "logging",
            "itertools",
            "functools",
            "datetime",
            "shutil",
            "subprocess",
            "hashlib",
            "uuid",
            "argparse",
            "collections",
            "typing",
            "string",
            "copy",
            "decimal",
            ctx.words.noun(),
        )
    )
    text = ctx.facts.files[path]
    if checks.compiles(text) is False or re.search(rf"\bimport {module}\b", text):
        return None
    shown, line = ctx.path(path), f"import {module}"

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, shown, f"Add {line} to {shown}. Read its beginning.", limit=30)
        if not view.lines:
            append(session, view, line)
            return "Done.", f"Added `{line}` to `{view.path}`."
        if any(text.strip() == line for _, text in view.lines):
            raise Report("It is imported already.", f"`{view.path}` already has `{line}`; nothing to change.")
        insert_import(session, view, line)
        return "The diff shows it.", f"Added `{line}` to `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        rows = after.splitlines()
        if rows.count(line) != 1:
            return f"{path} lacks {line}"
        rows.remove(line)
        if squeeze("\n".join(rows)) != squeeze(text) or not checks.compiles(after):
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    return Plan("add_import", "addline", {"module": module, "path": shown}, play, check, ("file", path))


@goal("add_comment", "addline", 1.0)
def add_comment(ctx: Setting) -> Plan | None:
    """Put a comment above a definition."""
    pool = [
        (item.name, item.path, item.line)
        for item in ctx.facts.definitions
        if len(ctx.facts.defined(item.name)) == 1 and not item.name.startswith("_")
    ]
    consts = [item.name for item in ctx.facts.constants]
    pool += [
        (item.name, item.path, item.line) for item in ctx.facts.constants if consts.count(item.name) == 1
    ]
    pool = [(n, p, line) for n, p, line in pool if (n in consts) + len(ctx.facts.defined(n)) == 1]
    if not pool:
        return None
    name, path, number = ctx.rng.choice(pool)
    comment = ctx.words.phrase()
    lines = ctx.facts.files[path].splitlines()
    whole = lines[number - 1]
    indent = whole[: len(whole) - len(whole.lstrip())]
    sign = "//" if extension(path) in ("js", "ts", "go") else "#"

    def play(session: Session) -> tuple[str, str]:
        real, hit = one_definition(
            session, name, f"Add the comment {comment} above {name}. Find its definition."
        )
        mark = "//" if hit.path.endswith((".js", ".ts", ".go")) else "#"
        old = hit.text.strip()
        lead = hit.text[: len(hit.text) - len(hit.text.lstrip())]
        change_line(
            session,
            hit.path,
            hit.line,
            old,
            f"{mark} {comment}\n{lead}{old}",
            f"It is at {hit.at}. Add the comment above.",
        )
        return "The diff shows it.", f"Added the comment above `{real}` in `{hit.path}` (line {hit.line})."

    expected = "\n".join([*lines[: number - 1], f"{indent}{sign} {comment}", *lines[number - 1 :]])
    return Plan(
        "add_comment",
        "addline",
        {"comment": comment, "name": name},
        play,
        by_squeeze(path, expected),
        ("def", name),
    )


@goal("add_const", "addline", 1.4)
def add_const(ctx: Setting) -> Plan | None:
    """Define a constant in a file."""
    path = ctx.choose(ctx.facts.code_paths())
    if not isinstance(path, str) or not checks.compiles(ctx.facts.files[path]):
        return None
    rng, words = ctx.rng, ctx.words
    name, odd = ctx.unused(words.constant), literals.odd_text(rng, words)
    value = rng.choice(
        (
            str(rng.randint(1, 999)),
            str(rng.randint(1, 99) / 10),
            f'"{words.text_value()}"',
            "True",
            f"'{words.noun()}'",
            "False",
            f'"{odd}"' if '"' not in odd else "None",
            f'"{odd}"' if '"' not in odd else "None",
            literals.odd_number(rng),
            literals.odd_code(rng, words, "'"),
        )
    )
    shown, line, text = ctx.path(path), f"{name} = {value}", ctx.facts.files[path]

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, shown, f"Add the constant {line} to {shown}. Read it.", limit=40)
        same = next((number for number, row in view.lines if row.startswith(f"{name} =")), None)
        if same is not None:
            raise Report(
                "It is there already.",
                f"`{name}` is already defined in `{view.path}`, line {same}. Nothing was changed.",
            )
        place_const(session, view, line)
        return "The diff shows it.", f"Added `{line}` to `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        rows = after.splitlines()
        if rows.count(line) != 1:
            return f"{path} lacks {line}"
        rows.remove(line)
        if squeeze("\n".join(rows)) != squeeze(text) or not checks.compiles(after):
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    return Plan(
        "add_const", "addline", {"name": name, "value": value, "path": shown}, play, check, ("const", name)
    )


def place_const(session: Session, view: View, line: str) -> None:
    """A constant after the last one at the top, else after the imports, else at the top."""
    lines = view.lines
    if not lines:
        append(session, view, line)
        return
    stop = next(
        (
            index
            for index, (_, text) in enumerate(lines)
            if re.match(r"(def|class|async def|@|if |for )", text)
        ),
        len(lines),
    )
    consts = [
        (n, text) for n, text in lines[:stop] if re.match(r"[A-Za-z_]\w*(: [^=]+)? = .*[^\[({,]$", text)
    ]
    if consts:
        number, old = consts[-1]
        change_line(
            session,
            view.path,
            number,
            old,
            f"{old}\n{line}",
            f"The constants end at line {number}: {old}. Add after it.",
        )
        return
    imports = [(n, text) for n, text in lines[:stop] if text.startswith(("import ", "from "))]
    if imports:
        number, old = imports[-1]
        change_line(
            session,
            view.path,
            number,
            old,
            f"{old}\n\n{line}",
            f"No constants; the imports end at line {number}. Add after them.",
        )
        return
    insert_import(session, view, line)


@goal("add_dep", "addline", 0.8)
def add_dep(ctx: Setting) -> Plan | None:
    """Add a package to requirements.txt."""
    path = ctx.choose([path for path in ctx.facts.files if path.endswith("requirements.txt")])
    if not isinstance(path, str):
        return None
    rng = ctx.rng
    name = rng.choice(
        (
            "requests",
            "flask",
            "numpy",
            "pandas",
            "click",
            "rich",
            "fastapi",
            "sqlalchemy",
            "redis",
            "boto3",
            "scipy",
            ctx.words.noun(),
        )
    )
    if re.search(rf"^{name}\b", ctx.facts.files[path], re.MULTILINE):
        return None
    package = name + rng.choice(
        (
            "",
            "",
            f"=={rng.randint(1, 9)}.{rng.randint(0, 9)}",
            f">={rng.randint(1, 9)}.{rng.randint(0, 9)}.0",
            f"~={rng.randint(1, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}",
            f"=={literals.version(rng, ctx.words).lstrip('v')}",
            f">={rng.randint(1, 5)}.{rng.randint(0, 9)},<{rng.randint(6, 9)}",
        )
    )
    shown = ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        view = open_end(session, shown, f"Add {package} to {shown}. Read it.")
        bare = re.split(r"[=<>~!]", package)[0]
        same = next((text for _, text in view.lines if re.split(r"[=<>~! ]", text.strip())[0] == bare), None)
        if same is not None:
            raise Report(f"It has {same}.", f"`{view.path}` already lists `{same}`; nothing was changed.")
        append(session, view, package)
        return "The diff shows it.", f"Added `{package}` to `{view.path}`."

    check = by_squeeze(path, ctx.facts.files[path].rstrip() + "\n" + package)
    return Plan("add_dep", "addline", {"package": package, "path": shown}, play, check, ("file", path))


@goal("add_key", "addline", 1.4)
def add_key(ctx: Setting) -> Plan | None:
    """Add a key to a settings file."""
    path = ctx.choose(
        [path for path in ctx.facts.files if extension(path) in ("json", "toml", "yaml", "yml", "conf")]
    )
    if not isinstance(path, str):
        return None
    rng, words, kind = ctx.rng, ctx.words, extension(path)
    key = ctx.unused(words.constant if kind == "conf" else words.variable)
    odd = literals.odd_text(rng, words)
    odd = odd if re.fullmatch(r"[a-zA-Z][\w.:/@-]*\w|\d+(\.\d+){2,}", odd) else words.noun()
    plain = (str(rng.randint(0, 999)), rng.choice(("true", "false")), str(rng.randint(1, 99) / 10))
    said = rng.choice((*plain, words.noun(), odd, odd, str(-rng.randint(1, 99))))
    is_text = said == odd or (said.isalpha() and said not in ("true", "false"))
    value = f'"{said}"' if is_text and kind in ("json", "toml") else said
    shown, text = ctx.path(path), ctx.facts.files[path]

    def play(session: Session) -> tuple[str, str]:
        view = (
            open_end(session, shown, f"Add {key} with {said} to {shown}. Read it.")
            if kind in ("yaml", "yml", "conf")
            else open_file(session, shown, f"Add {key} with {said} to {shown}. Read it.", limit=40)
        )
        _put_key(session, view, key, value)
        return "The diff shows it.", f"Added `{key}` with `{value}` to `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        return checks.unchanged(outcome, path) or _key_added(
            kind, text, outcome.after.get(path, ""), key, value
        )

    if kind == "json" and (not text.startswith("{\n") or text.count("\n") < 3):
        return None
    return Plan("add_key", "addline", {"key": key, "value": said, "path": shown}, play, check, ("key", key))


def _put_key(session: Session, view: View, key: str, value: str) -> None:
    """Write the key where its kind of file takes it: JSON and TOML at the top, the others at the end."""
    ending = extension(view.path)
    if ending == "json":
        number, first = view.lines[0]
        if first.strip() != "{" or len(view.lines) < 3:
            raise Report(
                "That JSON is not in lines.",
                f"I cannot safely add a key to `{view.path}`: it is not written in lines.",
            )
        lead = re.match(r"\s*", view.lines[1][1])[0]  # type: ignore[index]
        change_line(
            session,
            view.path,
            number,
            "{",
            f'{{\n{lead}"{key}": {value},',
            f"Line {number} opens it. Add the key first, with a comma.",
        )
    elif ending == "toml":
        number, first = view.lines[0]
        change_line(
            session,
            view.path,
            number,
            first,
            f"{key} = {value}\n{first}",
            "Add it at the top, before any section.",
        )
    else:
        append(session, view, f"{key}={value}" if ending == "conf" else f"{key}: {value}")


def _key_added(kind: str, before: str, after: str, key: str, value: str) -> str | None:
    """Compare parsed settings."""
    try:
        if kind in ("json", "toml"):
            load = json.loads if kind == "json" else tomllib.loads
            wanted = {**load(before), key: json.loads(value)}
            return None if load(after) == wanted else "the settings are not as asked"
    except ValueError:
        return "the file is broken"
    line = f"{key}={value}" if kind == "conf" else f"{key}: {value}"
    rows = after.splitlines()
    if line not in rows:
        return f"the line {line} is missing"
    rows.remove(line)
    return None if squeeze("\n".join(rows)) == squeeze(before) else "other lines changed"


@goal("add_list_item", "addline", 1.0)
def add_list_item(ctx: Setting) -> Plan | None:
    """Append to a list constant."""
    pool = [
        item for item in ctx.facts.constants if re.fullmatch(r"\[.+\]", item.value) and len(item.text) < 90
    ]
    names = [item.name for item in ctx.facts.constants]
    pool = [item for item in pool if names.count(item.name) == 1]
    if not pool:
        return None
    item = ctx.rng.choice(pool)
    has_text = "'" in item.value or '"' in item.value
    said = ctx.words.noun() if has_text else str(ctx.rng.randint(1, 99))
    quote = '"' if '"' in item.value else "'"
    new = f"{quote}{said}{quote}" if has_text else said
    expected = item.text.replace(item.value, f"{item.value[:-1]}, {new}]")

    def play(session: Session) -> tuple[str, str]:
        name = item.name
        think = f"Add {said} to the list {name}. Find where it is assigned."
        found = assigned(name, hits(session.call("grep", think, pattern=assignment(name))))
        if not found:
            raise Report("It is not there.", near_names(session, name))
        hit = found[0]
        last = re.search(r"([\"'])[^\"']*\1\s*\]", hit.text)
        value = fit_value(f"{last[1]}x{last[1]}", said) if last else said
        old = hit.text.strip()
        at = old.rindex("]")
        fresh = f"{old[:at]}, {value}{old[at:]}"
        change_line(
            session, hit.path, hit.line, old, fresh, f"{hit.at} has {old}. Add {value} before the bracket."
        )
        return "The diff shows it.", f"Added `{value}` to `{name}` in `{hit.path}` (line {hit.line})."

    check = checks.writes({item.path: checks.replace_line(ctx.facts.files[item.path], item.line, expected)})
    return Plan(
        "add_list_item", "addline", {"value": said, "name": item.name}, play, check, ("const", item.name)
    )

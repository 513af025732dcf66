"""New files of everyday kinds: a copy, a folder, a file in one, a document with a heading, a class."""

import ast
import re
import shlex
from pathlib import Path

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.adding import append
from k3agent.backend.training.episodes.families.creating import ENDINGS, listing, new_path, write_new
from k3agent.backend.training.episodes.families.look import bare_folder, makes, names_in
from k3agent.backend.training.episodes.families.names import find_both, run_shell
from k3agent.backend.training.episodes.policy import base_name, open_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

THERE_SHARE = 0.12
"""Of the folders that are to be made, those that are there."""
HEADED = ("md", "md", "md", "txt", "rst")


@goal("copy_file", "create", 1.2, level=1)
def copy_file(ctx: Setting) -> Plan | None:
    """Copy a file to a new name."""
    path = ctx.choose(sorted(path for path, text in ctx.facts.files.items() if text.strip()))
    if not isinstance(path, str) or not extension(path):
        return None
    new = new_path(ctx, extension(path), 0.3)
    if ctx.rng.random() < 0.3:
        stem, _, ending = path.rpartition(".")
        new = ctx.rng.choice(
            (f"{stem}_copy.{ending}", f"{stem}_old.{ending}", f"{stem}2.{ending}", f"{path}.bak")
        )
    taken = [base_name(other) for other in ctx.facts.files]
    if base_name(new) in taken or base_name(new) == base_name(path):
        return None
    shown = ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        old = find_both(session, shown, new, f"Copy {shown} to {new}. Find it, and see that {new} is free.")
        folder = new.rpartition("/")[0]
        make = f"mkdir -p {shlex.quote(folder)} && " if folder else ""
        command = f"{make}cp {shlex.quote(old)} {shlex.quote(new)}"
        run_shell(session, f"It is {old}. Copy it.", command, f"copy `{old}`")
        return "Done.", f"Copied `{old}` to `{new}`."

    check = checks.writes({new: ctx.facts.files[path]})
    return Plan("copy_file", "create", {"old_path": shown, "new_path": new}, play, check, ("file", new))


def _fresh_folder(ctx: Setting) -> str:
    """The name of a folder that is not there."""
    name = ctx.unused(ctx.words.noun)
    roll = ctx.rng.random()
    if roll < 0.15:
        return f"{name}/{ctx.words.noun()}"
    return f"{ctx.rng.choice(ctx.facts.folders)}/{name}" if roll < 0.35 and ctx.facts.folders else name


@goal("create_folder", "create", 0.7, level=1)
def create_folder(ctx: Setting) -> Plan | None:
    """Create an empty folder."""
    folder, is_there = _fresh_folder(ctx), ctx.rng.random() < THERE_SHARE
    if is_there:
        folder = bare_folder(ctx) if ctx.rng.random() < 0.5 else ctx.choose(ctx.facts.folders)
        if not isinstance(folder, str) or " " in folder:
            return None
    elif any(path.startswith(f"{folder}/") or path == folder.split("/")[0] for path in ctx.facts.files):
        return None

    def play(session: Session) -> tuple[str, str]:
        think = f"Create the folder {folder}. Is it there already?"
        if f"{folder}/" in names_in(session.call("glob", think, pattern=folder).text):
            raise Report("It is there.", f"There is a folder `{folder}` already. Nothing was changed.")
        run_shell(session, "No. Make it.", f"mkdir -p {shlex.quote(folder)}", f"create the folder `{folder}`")
        return "Done.", f"Created the folder `{folder}`, empty."

    def check(outcome: Outcome) -> str | None:
        if outcome.root and not (Path(outcome.root) / folder).is_dir():
            return f"there is no folder {folder}"
        return checks.unchanged(outcome) or checks.says(outcome, folder)

    if is_there:
        setup, kept = makes(folder), checks.declines(folder)
        return Plan("create_folder", "create", {"dir": folder}, play, kept, setup=setup, alone=True)
    return Plan("create_folder", "create", {"dir": folder}, play, check)


@goal("create_in_folder", "create", 1.1)
def create_in_folder(ctx: Setting) -> Plan | None:
    """Create a folder with an empty file in it."""
    folder = _fresh_folder(ctx)
    ending = ctx.rng.choice(ENDINGS)
    name = ctx.rng.choice((f"{ctx.words.file_stem(ending)}.{ending}", "__init__.py", "README.md", "index.md"))
    path = f"{folder}/{name}"
    if path in ctx.facts.files or folder.split("/")[0] in ctx.facts.files:
        return None

    def play(session: Session) -> tuple[str, str]:
        think = f"Create {path} without content; the folder {folder} comes with it."
        done, _ = write_new(session, path, "", think)
        return done, f"Created `{path}`, empty, in the folder `{folder}`."

    check = checks.writes({path: ""})
    return Plan("create_in_folder", "create", {"dir": folder, "path": name}, play, check, ("file", path))


def heading_line(path: str, title: str) -> str:
    """A title as the first lines of a document."""
    return f"{title}\n{'=' * len(title)}" if path.endswith(".rst") else f"# {title}"


@goal("create_heading", "create", 1.2)
def create_heading(ctx: Setting) -> Plan | None:
    """Create a document that has a heading."""
    return _headed(ctx, "create_heading")


@goal("create_headed", "create", 1.2)
def create_headed(ctx: Setting) -> Plan | None:
    """Create a document with a heading and a text below it."""
    return _headed(ctx, "create_headed")


def _headed(ctx: Setting, name: str) -> Plan | None:
    path, title = new_path(ctx, ctx.rng.choice(HEADED)), ctx.words.title()
    text = ctx.words.phrase().capitalize() + ctx.rng.choice((".", ".", ""))
    if any(sign in title + text for sign in "\n`"):
        return None
    head = heading_line(path, title)
    content = f"{head}\n\n{text}" if name == "create_headed" else head

    def play(session: Session) -> tuple[str, str]:
        below = f" and below it: {text}" if name == "create_headed" else "."
        done, answer = write_new(session, path, content, f"Create {path} with the heading {title}{below}")
        tail = " and the text below it." if name == "create_headed" else "."
        return done, f"{answer.removesuffix('.')} with the heading `{title}`{tail}"

    def check(outcome: Outcome) -> str | None:
        rows = [row for row in outcome.after.get(path, "").splitlines() if row.strip()]
        wanted = [*head.split("\n"), *([text] if name == "create_headed" else [])]
        found = [row.strip() for row in rows]
        if len(found) != len(wanted) or not all(map(_is_row, found, wanted)):
            return f"{path} is not as asked"
        return checks.unchanged(outcome, path)

    slots = {"path": path, "title": title} | ({"text": text} if name == "create_headed" else {})
    return Plan(name, "create", slots, play, check, ("file", path))


def _is_row(row: str, wanted: str) -> bool:
    """Whether a row is as wanted; the line below a title of reStructuredText may be longer than the title."""
    return row == wanted or (set(row) == set(wanted) == {"="} and len(row) > len(wanted))


def class_text(name: str, attributes: list[str]) -> str:
    """A class whose objects are made with these attributes."""
    rows = "\n".join(f"        self.{item} = {item}" for item in attributes)
    return f"class {name}:\n    def __init__(self, {', '.join(attributes)}):\n{rows}"


def has_class(text: str, name: str, attributes: list[str]) -> bool:
    """Whether a text has the class, with these arguments, each kept under its name."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                given = [arg.arg for arg in item.args.args][1:]
                kept = {f"self.{one} = {one}" for one in attributes}
                return given == attributes and kept <= {ast.unparse(row) for row in item.body}
    return False


def _class_of(ctx: Setting) -> tuple[str, list[str], str]:
    """A new class: its name, its attributes, and these as people say them."""
    words = ctx.words
    name = ctx.unused(lambda: words.class_name())
    names = list(dict.fromkeys(words.variable() for _ in range(ctx.rng.randint(1, 4))))
    names = [item for item in names if item.isidentifier() and item != "self"] or ["name"]
    return name, names, listing(ctx, names)


@goal("create_class", "create", 1.3)
def create_class(ctx: Setting) -> Plan | None:
    """Create a file with a class."""
    name, attributes, said = _class_of(ctx)
    path, text = new_path(ctx, "py"), class_text(name, attributes)

    def play(session: Session) -> tuple[str, str]:
        think = f"Create {path} with the class {name}. Its attributes: {said}."
        done, answer = write_new(session, path, text, think)
        return done, f"{answer.removesuffix('.')} with the class `{name}` ({', '.join(attributes)})."

    def check(outcome: Outcome) -> str | None:
        if not has_class(outcome.after.get(path, ""), name, attributes):
            return f"{path} lacks the class {name} as asked"
        return checks.unchanged(outcome, path)

    slots = {"path": path, "name": name, "attributes": said}
    return Plan("create_class", "create", slots, play, check, ("def", name))


@goal("add_class", "addfunc", 1.2)
def add_class(ctx: Setting) -> Plan | None:
    """Add a class to a file."""
    pool = [
        path
        for path in ctx.facts.code_paths()
        if "if __name__" not in (text := ctx.facts.files[path])
        and len(text.splitlines()) <= 70
        and "\r" not in text
        and "\t" not in text
    ]
    path = ctx.choose(pool)
    if not isinstance(path, str):
        return None
    name, attributes, said = _class_of(ctx)
    shown, before = ctx.path(path), ctx.facts.files[path]

    def play(session: Session) -> tuple[str, str]:
        think = f"Add the class {name} to {shown}. Its attributes: {said}. Read the file."
        view = open_file(session, shown, think)
        append(session, view, class_text(name, attributes), gap=2)
        return "The diff shows it.", f"Added the class `{name}` ({', '.join(attributes)}) to `{view.path}`."

    slots = {"path": shown, "name": name, "attributes": said}
    return Plan("add_class", "addfunc", slots, play, _added(path, before, name, attributes), ("def", name))


def _added(path: str, before: str, name: str, attributes: list[str]) -> Check:
    """The file got the class at its end, and all else is as it was."""

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        if not has_class(after, name, attributes):
            return f"{path} lacks the class {name} as asked"
        rest = re.sub(rf"class {name}\b.*?(?=\n\S|\Z)", "", after, count=1, flags=re.DOTALL)
        if re.sub(r"\s+", " ", rest).strip() != re.sub(r"\s+", " ", before).strip():
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    return check

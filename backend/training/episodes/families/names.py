"""Renaming identifiers and files, moving and deleting files."""

import re
import shlex
from collections.abc import Callable
from typing import Any

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line, edit_text
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.look import names_in
from k3agent.backend.training.episodes.families.repair import not_run
from k3agent.backend.training.episodes.families.requiring import (
    SCRIPTS,
    importers,
    moved_files,
    update_requires,
)
from k3agent.backend.training.episodes.policy import (
    Hit,
    base_name,
    esc,
    hits,
    is_definition,
    near_names,
    quoted,
    same_file,
    search_file,
    several,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.renaming import MOST_TOLD, definition_first, renames, where_found
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session
from k3agent.backend.training.episodes.words import RESERVED, camel, pascal

UNLINKED_SHARE = 0.4
"""Of the documents that get another name or place, those that no other one names."""


def swap_word(text: str, old: str, new: str) -> str:
    """Every whole word replaced."""
    return re.sub(rf"\b{re.escape(old)}\b", lambda match: new, text)


def play_rename(session: Session, old: str, new: str, kind: str = "") -> tuple[str, str]:
    """Rename in all files, keeping longer names that contain the old one."""
    what = f"{kind} " if kind else ""
    found = hits(
        session.call(
            "grep", f"Rename {what}{old} to {new}. Find {old} as a whole word.", pattern=rf"\b{esc(old)}\b"
        )
    )
    if not found:
        old = near_names(session, old, what=what)
        found = hits(session.call("grep", f"It is written {old}.", pattern=rf"\b{esc(old)}\b"))
    return rename_hits(session, old, new, found, None)


def rename_hits(session: Session, old: str, new: str, found: list[Hit], only: str | None) -> tuple[str, str]:
    """Replace in the files of the hits, check, report."""
    table = definition_first(old, found)
    pattern = rf"\w{esc(old)}|{esc(old)}\w|\b{esc(new)}\b"
    think = f"{where_found(old, table)} Are there longer names with {old}, or {new} already?"
    scope: dict[str, Any] = {"path": only} if only else {}
    others = hits(session.call("grep", think, pattern=pattern, **scope))
    taken = [
        hit
        for hit in others
        if re.search(rf"\b{re.escape(new)}\b", hit.text) and is_definition(new, hit.text)
    ]
    if taken:
        raise Report(
            f"{new} is already defined at {taken[0].at}. I must ask.",
            f"`{new}` already exists: `{taken[0].path}`, line {taken[0].line}. Nothing was "
            f"renamed. Which other name shall I use?",
        )
    longer = {hit.path for hit in others if re.search(rf"\w{re.escape(old)}|{re.escape(old)}\w", hit.text)}
    for path, rows in table.items():
        if path not in longer:
            think = f"{path}: only {old} itself. Replace all. {old} -> {new}"
            edit_text(session, path, old, new, think, everywhere=True)
            continue
        for row in rows:
            line, fresh = row.text.strip(), swap_word(row.text.strip(), old, new)
            change_line(
                session,
                path,
                row.line,
                line,
                fresh,
                f"{path} has longer names too. Change line {row.line} alone. {old} -> {new}",
            )
    left = hits(session.call("grep", f"All edited. Is any {old} left?", pattern=rf"\b{esc(old)}\b", **scope))
    if left:
        raise Report(
            f"Some are left: {left[0].at}.", f"`{old}` still occurs in {quoted([hit.at for hit in left])}."
        )
    return (
        f"None is left. Edited: {several(list(table), MOST_TOLD)}.",
        f"Renamed `{old}` to `{new}` in {quoted(list(table), MOST_TOLD)}.",
    )


def new_name(ctx: Setting, old: str) -> str:
    """Another name in the style of the old one."""
    rng, words = ctx.rng, ctx.words

    def make() -> str:
        if old.isupper():
            return words.constant()
        if old[:1].isupper():
            return words.class_name()
        parts = words.function_words() if rng.random() < 0.7 else [words.adjective(), words.noun()]
        if rng.random() < 0.2 and "_" in old:
            kept = old.split("_")
            return (
                "_".join([*kept[:-1], words.noun()])
                if rng.random() < 0.5
                else "_".join([words.verb(), *kept[1:]])
            )
        is_camel = re.search(r"[a-z][A-Z]", old)
        return camel(parts) if is_camel else "_".join(parts)

    while True:
        name = ctx.unused(make)
        if name not in RESERVED and name != old:
            return name


def renamable(ctx: Setting) -> tuple[str, str] | None:
    """A (name, kind) worth renaming."""
    pool = [
        (item.name, item.kind) for item in ctx.facts.definitions if not item.name.startswith(("_", "test"))
    ]
    pool += [(item.name, ctx.rng.choice(("constant", "variable"))) for item in ctx.facts.constants]
    if ctx.rng.random() < 0.1:
        pool += [
            (name, "parameter") for item in ctx.facts.definitions for name in item.params if len(name) > 3
        ] * 2
    if not pool:
        return None
    for _ in range(4):
        name, kind = ctx.rng.choice(pool)
        lines = ctx.facts.word_lines(name)
        if (
            len(name) > 2
            and 1 <= len(lines) <= 12
            and len({path for path, _, _ in lines}) <= 5
            and all(len(line) < 200 for _, _, line in lines)
        ):
            if len(lines) == 1 and ctx.rng.random() < 0.6:
                continue
            return name, kind
    return None


def expected_rename(ctx: Setting, old: str, new: str, only: str | None = None) -> dict[str, str | None]:
    return {
        path: swap_word(text, old, new)
        for path, text in ctx.facts.files.items()
        if (only is None or path == only) and re.search(rf"\b{re.escape(old)}\b", text)
    }


@goal("rename", "rename", 3.0)
def rename(ctx: Setting) -> Plan | None:
    """Rename X to Y everywhere."""
    found = renamable(ctx)
    if found is None:
        return None
    old, kind = found
    new = new_name(ctx, old)
    if kind == "parameter" and ctx.rng.random() < 0.5:
        return None
    taken = ctx.rng.random() < 0.03
    others = [
        item.name for item in ctx.facts.definitions if item.name != old and not item.name.startswith("_")
    ]
    if taken and others:
        new = ctx.rng.choice(others)
        return Plan(
            "rename",
            "rename",
            {"old": old, "new": new},
            lambda s: play_rename(s, old, new),
            checks.declines(),
        )
    check = renames(expected_rename(ctx, old, new))
    return Plan(
        "rename", "rename", {"old": old, "new": new}, lambda s: play_rename(s, old, new), check, ("def", new)
    )


@goal("rename_kind", "rename", 2.0)
def rename_kind(ctx: Setting) -> Plan | None:
    """Rename the function X to Y."""
    found = renamable(ctx)
    if found is None:
        return None
    old, kind = found
    new = new_name(ctx, old)
    check = renames(expected_rename(ctx, old, new))
    return Plan(
        "rename_kind",
        "rename",
        {"kind": kind, "old": old, "new": new},
        lambda s: play_rename(s, old, new, kind),
        check,
        ("def", new),
    )


@goal("rename_in", "rename", 1.2)
def rename_in(ctx: Setting) -> Plan | None:
    """Rename X to Y in one file."""
    found = renamable(ctx)
    if found is None:
        return None
    old = found[0]
    path = ctx.rng.choice(ctx.facts.word_lines(old))[0]
    new, shown = new_name(ctx, old), ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        real, rows = search_file(
            session, shown, rf"\b{esc(old)}\b", f"Rename {old} to {new} in {shown} only. Find {old} there."
        )
        if not rows:
            raise Report(f"{real} has no {old}.", f"There is no `{old}` in `{real}`. Nothing was changed.")
        return rename_hits(session, old, new, rows, real)

    check = renames(expected_rename(ctx, old, new, path))
    return Plan("rename_in", "rename", {"old": old, "new": new, "path": shown}, play, check)


def run_shell(session: Session, think: str, command: str, what: str) -> str:
    """A command that must work; a report where it does not."""
    result = session.call("shell", think, command=command)
    if result.is_error:
        raise not_run(result, what)
    if not result.text.endswith("[exit code 0]"):
        raise Report("The command failed.", f"I could not {what}: {result.lines[0]}")
    return result.text


def find_both(session: Session, old: str, new: str, think: str) -> str:
    """The real path of a file that is to be moved, when the new name is free."""
    bases = sorted({base_name(old), base_name(new)})
    pattern = f"**/{bases[0]}" if len(bases) == 1 else f"**/{{{','.join(bases)}}}"
    rows = names_in(session.call("glob", think, pattern=pattern).text)
    fitting = [row for row in rows if same_file(old, row) and not row.endswith("/")]
    exact = [row for row in fitting if row == old.removeprefix("./")]
    if new in rows:
        raise Report(
            f"{new} exists already.",
            f"`{new}` already exists. Nothing was changed. Which other name shall I use?",
        )
    if exact or len(fitting) == 1:
        return (exact or fitting)[0]
    if fitting:
        raise Report(
            f"{len(fitting)} files fit.",
            f"There are several files of that name: {quoted(fitting)}. Which one do you mean?",
        )
    raise Report(f"There is no {old}.", f"There is no `{old}` in this project. Nothing was changed.")


def update_imports(session: Session, old: str, new: str) -> list[str]:
    """After a Python file got a new name, adapt the lines that import it; the files changed."""
    was, now = base_name(old).removesuffix(".py"), base_name(new).removesuffix(".py")
    found = hits(
        session.call(
            "grep", f"Who imports {was}?", pattern=rf"^\s*(import|from) .*\b{esc(was)}\b", glob="*.py"
        )
    )
    changed: list[str] = []
    for hit in found:
        line = hit.text.strip()
        module, _, names = line.removeprefix("from ").partition(" import ")
        if line.startswith("from ") and not re.search(rf"\b{re.escape(was)}\b", module):
            fresh = f"from {module} import {swap_word(names, was, now)}"
        elif line.startswith("from "):
            fresh = f"from {swap_word(module, was, now)} import {names}"
        else:
            fresh = swap_word(line, was, now)
        change_line(session, hit.path, hit.line, line, fresh, f"{hit.at} imports it. {was} -> {now}")
        changed.append(hit.path)
        if line.startswith("import ") or fresh.endswith(f" import {now}"):
            uses = hits(
                session.call(
                    "grep",
                    f"{hit.path} uses it as {was}. Find those places.",
                    pattern=rf"\b{esc(was)}\.",
                    path=hit.path,
                )
            )
            for use in uses:
                text = use.text.strip()
                if re.match(r"(import|from) ", text):
                    continue
                change_line(
                    session,
                    use.path,
                    use.line,
                    text,
                    swap_word(text, was, now),
                    f"Line {use.line}: {was} -> {now}",
                )
    return list(dict.fromkeys(changed))


def still_named(session: Session, old: str) -> str:
    """After a document got a new name or place: a sentence about the lines that name it as before."""
    if not old.endswith(".md"):
        return ""
    base = base_name(old)
    think = f"Who names {base}? A link to it would lead nowhere now."
    found = hits(session.call("grep", think, pattern=rf"\b{esc(base)}", limit=10))
    places = quoted([hit.at for hit in found], 6)
    return f" It is still named as before in {places}; I left that as it is." if found else ""


def link_to(ctx: Setting, path: str) -> Callable[[dict[str, str]], None] | None:
    """What lets another document name this one, now and then."""
    others = [
        p for p in ctx.facts.files if p.endswith(".md") and p != path and "\r" not in ctx.facts.files[p]
    ]
    if not path.endswith(".md") or not others or ctx.rng.random() < UNLINKED_SHARE:
        return None
    other = ctx.rng.choice(sorted(others))
    shown = path.removeprefix(other.rpartition("/")[0] + "/") if "/" in other else path
    line = ctx.rng.choice(("See [{w}]({p}).", "- [{w}]({p})", "More in `{p}`.", "Read {p} first."))
    text = ctx.facts.files[other].rstrip("\n") + "\n\n" + line.format(w=ctx.words.noun(), p=shown) + "\n"
    return lambda files: files.update({other: text})


@goal("rename_file", "rename", 1.5, level=1)
def rename_file(ctx: Setting) -> Plan | None:
    """Give a file another name."""
    pool = [
        path
        for path in ctx.facts.files
        if "__init__" not in path and path != "Makefile" and not base_name(path).startswith("test_")
    ]
    known = [path for path in pool if path.endswith(SCRIPTS) and importers(ctx.facts.files, path)]
    path = ctx.choose(sorted(known if ctx.rng.random() < 0.6 and known else pool))
    if not isinstance(path, str) or (path.endswith(SCRIPTS) and "\r" in ctx.facts.files[path]):
        return None
    folder = path[: -len(base_name(path))]
    stem, ending = base_name(path).removesuffix("." + extension(path)), extension(path)
    fresh = ctx.unused(ctx.words.module)
    target = f"{folder}{fresh}.{ending}"
    is_python = ending == "py"
    lines = ctx.facts.word_lines(stem) if is_python else []
    if is_python and (len(stem) < 4 or len(lines) > 6):
        return None
    shown, named = ctx.path(path), target if ctx.rng.random() < 0.5 else base_name(target)
    if shown.count("/") and base_name(shown) == shown.rsplit("/", 1)[-1] and shown != path:
        named = base_name(target)

    def play(session: Session) -> tuple[str, str]:
        old = find_both(
            session,
            shown,
            named,
            f"Rename the file {shown} to {named}. Find it, and see that {base_name(named)} is free.",
        )
        home = old[: -len(base_name(old))]
        new = named if "/" in named else home + named
        run_shell(
            session,
            f"It is {old}. Move it to {new}.",
            f"mv {shlex.quote(old)} {shlex.quote(new)}",
            f"rename `{old}`",
        )
        changed = update_imports(session, old, new) if old.endswith(".py") else []
        changed = update_requires(session, old, new) if old.endswith(SCRIPTS) else changed
        tail = f" Imports adapted in {quoted(changed)}." if changed else ""
        tail += still_named(session, old)
        return "Done.", f"Renamed `{old}` to `{new}`.{tail}"

    users = {p for p, _, line in lines if re.match(r"\s*(import|from) ", line)}
    if path in users:
        return None
    check = _file_renamed(stem, users, {path: None, target: ctx.facts.files[path]})
    if path.endswith(SCRIPTS):
        check = checks.writes(moved_files(ctx.facts.files, path, target))
    slots, link = {"old_path": shown, "new_path": named}, link_to(ctx, path)
    return Plan("rename_file", "rename", slots, play, check, ("file", target), prepare=link)


def _file_renamed(
    stem: str, importers: set[str], expected: dict[str, str | None]
) -> Callable[[Outcome], str | None]:
    """The check that the file has its new name and that no importer knows the old one."""

    def check(outcome: Outcome) -> str | None:
        for other in importers:
            if re.search(
                rf"^\s*(import|from) [\w.]*\b{re.escape(stem)}\b", outcome.after.get(other, ""), re.MULTILINE
            ):
                return f"{other} still imports the old name"
        return checks.writes(expected)(
            Outcome(
                {k: v for k, v in outcome.before.items() if k not in importers},
                {k: v for k, v in outcome.after.items() if k not in importers},
                outcome.answer,
            )
        )

    return check


@goal("move_file", "replace", 0.9, level=1)
def move_file(ctx: Setting) -> Plan | None:
    """Move a file to a folder."""
    pool = sorted(
        path for path in ctx.facts.files if not path.endswith((".py", ".go")) and path != "Makefile"
    )
    known = [path for path in pool if path.endswith(SCRIPTS) and importers(ctx.facts.files, path)]
    path = ctx.choose(known if ctx.rng.random() < 0.6 and known else pool)
    if not isinstance(path, str) or (path.endswith(SCRIPTS) and "\r" in ctx.facts.files[path]):
        return None
    here = path.rpartition("/")[0]
    folders = [
        folder
        for folder in ctx.facts.folders
        if folder != here and f"{folder}/{base_name(path)}" not in ctx.facts.files
    ]
    folder = ctx.rng.choice(folders) if folders and ctx.rng.random() < 0.6 else ctx.unused(ctx.words.noun)
    shown, named = ctx.path(path), ctx.rng.choice((folder, f"{folder}/"))

    def play(session: Session) -> tuple[str, str]:
        where = named.rstrip("/")
        target = f"{where}/{base_name(shown)}"
        old = find_both(session, shown, target, f"Move {shown} to the folder {where}. Find it.")
        command = f"mkdir -p {shlex.quote(where)} && mv {shlex.quote(old)} {shlex.quote(where)}/"
        run_shell(session, f"It is {old}. Move it.", command, f"move `{old}`")
        new = f"{where}/{base_name(old)}"
        changed = update_requires(session, old, new) if old.endswith(SCRIPTS) else []
        tail = f" Imports adapted in {quoted(changed)}." if changed else ""
        tail += still_named(session, old)
        return "Done.", f"Moved `{old}` to `{new}`.{tail}"

    target = f"{folder}/{base_name(path)}"
    check = checks.writes({path: None, target: ctx.facts.files[path]})
    if path.endswith(SCRIPTS):
        check = checks.writes(moved_files(ctx.facts.files, path, target))
    return Plan(
        "move_file",
        "replace",
        {"path": shown, "dir": named},
        play,
        check,
        ("file", f"{folder}/{base_name(path)}"),
        prepare=link_to(ctx, path),
    )


def play_delete(session: Session, path: str) -> tuple[str, str]:
    """Delete one file."""
    old = find_both(session, path, path + "/", f"Delete the file {path}. Find it.")
    run_shell(session, f"It is {old}. Remove it.", f"rm {shlex.quote(old)}", f"delete `{old}`")
    return "Done.", f"Deleted `{old}`."


@goal("delete_file", "replace", 0.9, level=1)
def delete_file(ctx: Setting) -> Plan | None:
    """Delete a file."""
    path = ctx.choose(sorted(path for path in ctx.facts.files if path != "Makefile"))
    if not isinstance(path, str):
        return None
    shown = ctx.path(path)
    if sum(1 for other in ctx.facts.files if base_name(other) == base_name(path)) > 1:
        shown = path
    return Plan(
        "delete_file",
        "replace",
        {"path": shown},
        lambda s: play_delete(s, shown),
        checks.writes({path: None}),
    )


_ = pascal

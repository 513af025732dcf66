"""Errors of tools and the way on: a folder for a file, a text that is not unique, a file that changed
meanwhile, line numbers in the old text, a search that is no pattern. What went wrong is not learned, the way
on is.
"""

import re
from pathlib import Path

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import draw_value, fit_value, split_value
from k3agent.backend.training.episodes.datafiles import draw_document, parse, said_value
from k3agent.backend.training.episodes.editing import around, failed
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.look import bullet_list, names_in
from k3agent.backend.training.episodes.families.settingsfiles import find_section, says_table, value_like
from k3agent.backend.training.episodes.families.values import changed_text
from k3agent.backend.training.episodes.policy import esc, hits, open_file, read_view, show
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session


@goal("recover_folder", "recover", 2.4, level=1)
def recover_folder(ctx: Setting) -> Plan | None:
    """A folder is named where a file is meant: the only file in it, or a question."""
    files = ctx.facts.files
    folder = ctx.choose(ctx.facts.folders)
    if not isinstance(folder, str):
        return None
    inside = sorted(path for path in files if path.startswith(f"{folder}/"))
    direct = sorted({path[len(folder) + 1 :].split("/")[0] for path in inside})
    if not inside or len(direct) > 12 or (len(inside) == 1 and len(files[inside[0]].splitlines()) > 40):
        return None
    only = inside[0] if len(direct) == 1 and inside[0] == f"{folder}/{direct[0]}" else ""
    if only and not files[only].strip():
        return None

    def play(session: Session) -> tuple[str, str]:
        result = session.call("read", f"Read {folder} to show it.", path=folder, limit=80)
        if not result.is_error:
            raise Report("It is a file.", show(read_view(result, folder).lines))
        think = f"{folder} is a folder. What is in it?"
        rows = names_in(session.call("glob", think, pattern=f"{folder}/*").text)
        if len(rows) == 1 and not rows[0].endswith("/"):
            view = open_file(session, rows[0], f"Only {rows[0]}. It must be meant. Read it.", nothing="")
            told = f"`{folder}` is a folder; I took `{view.path}`, the only file in it:"
            return "Copy it.", f"{told}\n{show(view.lines)}"
        return (
            "Several things. I must ask.",
            f"`{folder}` is a folder. It holds:\n{bullet_list(rows)}\nWhich file shall I show?",
        )

    if only:
        lines = [line.strip() for line in files[only].splitlines() if line.strip()]
        check = checks.answers(folder, *lines)
    else:
        # what it holds is an answer too; which of the files was meant need not be asked
        check = checks.answers(folder, *direct)
    return Plan("show_file", "recover", {"path": folder}, play, check)


@goal("recover_unique", "recover", 2.0, level=1)
def recover_unique(ctx: Setting) -> Plan | None:
    """The same line stands in two sections: the line's number or more context says which."""
    rng = ctx.rng
    document = draw_document(rng, ctx.words, rng.choice(("yaml", "toml", "json", "yml")))
    names = sorted(document.sections)
    if len(names) < 2 or document.path in ctx.facts.files:
        return None
    first, second = rng.sample(names, 2)
    key = next((k for k, v in document.sections[first].items() if not isinstance(v, list)), "")
    value = document.sections[first].get(key)
    if not key or isinstance(value, list) or value is None or document.sections[second].get(key) is None:
        return None
    pattern = re.compile(rf'^(\s*"?{re.escape(key)}"?(?: =|:) )([^,\n]+)', re.MULTILINE)
    written = next(match[2] for match in pattern.finditer(document.text))
    text = pattern.sub(lambda match: match[1] + written, document.text)
    table = parse(document.kind, text)
    assert isinstance(table, dict)
    old_value = table[first][key]
    new = ctx.words.noun() if isinstance(old_value, str) else rng.randint(2, 9999)
    said = said_value(new)
    if old_value == new:
        return None
    table[first][key] = new

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, document.path, f"Set {key} of {first} to {said}. Read {document.path}.")
        section = find_section(view, first)
        place = section.find(key) if section else None
        if section is None or place is None:
            raise Report(
                "Not there.", f"There is no `{key}` in `{first}` of `{view.path}`. Nothing was changed."
            )
        number, row = place
        old = row.strip().rstrip(",")
        fresh = old.replace(written, value_like(view.path, written, said))
        _twice(session, view.path, dict(view.lines), number, old, fresh, first)
        return "The diff shows it.", f"`{first}.{key}` in `{view.path}` is now `{said}` (line {number})."

    slots = {"key": key, "section": first, "value": said, "path": document.path}
    files = {document.path: text}
    check = says_table(document.path, table)
    return Plan("set_nested", "recover", slots, play, check, prepare=lambda current: current.update(files))


def _twice(
    session: Session, path: str, rows: dict[int, str], number: int, old: str, new: str, section: str
) -> None:
    """Edit without saying which line, and after the error say it."""
    think = f"{section} has {old} in line {number}."
    result = session.call("edit", think, learn=False, path=path, old=old, new=new)
    if not result.is_error:
        return
    above = rows.get(number - 1, "").strip()
    if above and session.rng.random() < 0.4:
        lead = rows[number][: len(rows[number]) - len(rows[number].lstrip())]
        think = f"{old} is not unique. With the line above it, {above}, it is."
        longer = f"{above}\n{lead}"
        result = session.call("edit", think, path=path, old=f"{longer}{old}", new=f"{longer}{new}")
        if not result.is_error:
            return
    think = f"{old} stands there several times. The one in {section} is line {number}."
    result = session.call("edit", think, path=path, old=old, new=new, line=number)
    if result.is_error:
        raise failed(path, result)


@goal("recover_stale", "recover", 1.6, level=1)
def recover_stale(ctx: Setting) -> Plan | None:
    """Somebody changes the file after it was read: read it again, then edit."""
    rng = ctx.rng
    pool = [
        item for item in ctx.facts.constants if len(item.text) < 100 and item.path.endswith((".py", ".js"))
    ]
    item = rng.choice(pool) if pool else None
    if item is None or sum(1 for other in pool if (other.name, other.path) == (item.name, item.path)) > 1:
        return None
    text = ctx.facts.files[item.path]
    said, new = draw_value(ctx, item.value, extension(item.path))
    wanted = changed_text(ctx, item, new)
    if wanted is None or "\r" in text:
        return None
    mark = "#" if item.path.endswith(".py") else "//"
    note = f"{mark} {ctx.words.phrase()}\n"
    # The line moves: the same call again would be refused as a repetition.
    if text.startswith(("#!", '"""', "'''")):
        return None

    def meanwhile(before: str) -> str:
        return note + before

    def play(session: Session) -> tuple[str, str]:
        task = f"Set {item.name} to {said} in {item.path}. Read it."
        view = open_file(session, item.path, task, offset=max(1, item.line - 5), limit=20)
        row = next((row for _, row in view.lines if row == item.text), "")
        full = Path(session.box.workspace.root, item.path)
        full.write_text(meanwhile(full.read_text(encoding="utf-8")), encoding="utf-8")
        parts = split_value(item.name, row)
        if parts is None:
            raise Report("Not there.", f"I find no `{item.name}` in `{item.path}`. Nothing was changed.")
        fresh_value = fit_value(parts[1], said, extension(item.path))
        fresh = f"{parts[0]}{fresh_value}{parts[2]}"
        old = row.strip()
        think = f"{item.name} is in line {item.line}: {old}, wanted is {said}. {parts[1]} -> {fresh_value}"
        result = session.call("edit", think, path=item.path, old=old, new=fresh.strip(), line=item.line)
        if result.is_error:
            think = f"{item.path} changed since I read it. Read it again."
            view = around(session, item.path, item.line, think, least=4)
            number = next((n for n, text in view.lines if text == row), 0)
            if not number:
                raise Report(
                    "It is gone.", f"`{item.name}` is no longer in `{item.path}`. Nothing was changed."
                )
            think = f"{old} is in line {number} now."
            result = session.call("edit", think, path=item.path, old=old, new=fresh.strip(), line=number)
        if result.is_error:
            raise failed(item.path, result)
        return "The diff shows it.", f"Set `{item.name}` to `{said}` in `{item.path}`; it was `{parts[1]}`."

    expected: tuple[dict[str, str | None], ...] = ({item.path: wanted}, {item.path: meanwhile(wanted)})
    check = checks.any_of(*(checks.writes(table) for table in expected))
    slots = {"name": item.name, "value": said, "path": item.path}
    return Plan("set_const_in", "recover", slots, play, check, ("const", item.name))


@goal("recover_numbers", "recover", 1.2, level=1)
def recover_numbers(ctx: Setting) -> Plan | None:
    """The old text was quoted with the line's number: leave it out."""
    pool = [item for item in ctx.facts.constants if len(item.text) < 100 and "\r" not in item.text]
    item = ctx.rng.choice(pool) if pool else None
    if item is None or sum(1 for other in pool if (other.name, other.path) == (item.name, item.path)) > 1:
        return None
    said, new = draw_value(ctx, item.value, extension(item.path))
    wanted = changed_text(ctx, item, new)
    if wanted is None:
        return None

    def play(session: Session) -> tuple[str, str]:
        think = f"Set {item.name} to {said} in {item.path}. Read it."
        view = around(session, item.path, item.line, think, least=2)
        number, row = next((n, t) for n, t in view.lines if t == item.text)
        parts = split_value(item.name, row)
        assert parts is not None
        old = row.strip()
        fresh_value = fit_value(parts[1], said, extension(item.path))
        fresh = f"{parts[0]}{fresh_value}{parts[2]}".strip()
        think = f"{item.name} is in line {number}: {old}, wanted is {said}. {parts[1]} -> {fresh_value}"
        args = {"old": f"{number}\t{row}", "new": f"{number}\t{fresh}"}
        result = session.call("edit", think, learn=False, path=item.path, **args)
        if not result.is_error:
            raise Report("It went through.", f"Changed `{item.path}`.")
        think = f"The number does not stand in the file, only before the line as read. The line is: {old}"
        result = session.call("edit", think, path=item.path, old=old, new=fresh, line=number)
        if result.is_error:
            raise failed(item.path, result)
        return "The diff shows it.", f"Set `{item.name}` to `{said}` in `{item.path}`; it was `{parts[1]}`."

    slots = {"name": item.name, "value": said, "path": item.path}
    check = checks.writes({item.path: wanted})
    return Plan("set_const_in", "recover", slots, play, check, ("const", item.name))


@goal("recover_pattern", "recover", 1.2, level=1)
def recover_pattern(ctx: Setting) -> Plan | None:
    """A text with brackets was searched for as it is: escape what patterns read otherwise."""
    rows = [
        line.strip()
        for path in ctx.facts.code_paths()
        for line in ctx.facts.files[path].splitlines()
        if re.search(r"\w\(\w", line) and not {'"', "'", "`", "\\"} & set(line)
    ]
    if not rows:
        return None
    row = ctx.rng.choice(rows)
    at = row.index("(")
    text = row[max(0, at - ctx.rng.randint(4, 12)) : at + ctx.rng.randint(2, 6)].strip()
    text = text if text.count("(") != text.count(")") else text.replace(")", "")
    places = ctx.facts.with_text(text)
    if len(text) < 5 or not 1 <= len(places) <= 12:
        return None

    def play(session: Session) -> tuple[str, str]:
        result = session.call("grep", f'Search for "{text}".', learn=False, pattern=text)
        if not result.is_error and hits(result):
            raise Report("It worked.", "It is there.")
        think = "The bracket is read as part of a pattern. Escape it."
        found = hits(session.call("grep", think, pattern=esc(text)))
        if not found:
            raise Report("Nowhere.", f'"{text}" occurs nowhere in this project.')
        if len(found) == 1:
            hit = found[0]
            return f"One place: {hit.at}.", f"It is in `{hit.path}`, line {hit.line}: `{hit.text.strip()}`"
        shown = bullet_list([f"`{hit.at}`" for hit in found], 12)
        return f"{len(found)} places.", f"It occurs in {len(found)} places:\n{shown}"

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        said = (checks.says_place(outcome, path, number) for path, number, _ in places[:10])
        return next((wrong for wrong in said if wrong), None)

    return Plan("find_text", "recover", {"text": text}, play, check)

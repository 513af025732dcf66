"""Settings files: keys in sections and entries of lists; the checker reads the file."""

import copy
import re
from dataclasses import dataclass

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.datafiles import (
    Document,
    ParseError,
    Scalar,
    Table,
    draw_document,
    parse,
    plain_text,
    read_back,
    said_value,
    scalar,
    written,
)
from k3agent.backend.training.episodes.editing import change_line, edit_text
from k3agent.backend.training.episodes.facts import Facts, extension
from k3agent.backend.training.episodes.policy import View, open_file, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Play, Report, Session

Lines = list[tuple[int, str]]
KEY = re.compile(r"^(\s*)[\"']?([\w.-]+)[\"']?\s*[:=]\s*(.*?),?$")


@dataclass(slots=True)
class Section:
    """A section in a file as read: its head, the lines in it, and the indentation of its keys."""

    head: tuple[int, str]
    body: Lines

    @property
    def lead(self) -> str:
        """What stands before its keys."""
        row = self.body[0][1] if self.body else ""
        return row[: len(row) - len(row.lstrip())]

    def find(self, key: str) -> tuple[int, str] | None:
        """The line of a key."""
        for number, row in self.body:
            match = KEY.match(row)
            if match and match[2] == key and match[1] == self.lead:
                return number, row
        return None

    def keys(self) -> list[str]:
        """Its keys."""
        found = [match for _, row in self.body if (match := KEY.match(row))]
        return [match[2] for match in found if match[1] == self.lead]


def find_section(view: View, name: str) -> Section | None:
    """The section of a file that has this name."""
    kind = extension(view.path)
    heads = {"toml": rf"^\[{re.escape(name)}\]", "json": rf'^\s*"{re.escape(name)}": \{{$'}
    pattern = heads.get(kind, rf"^{re.escape(name)}:\s*$")
    at = next((index for index, (_, row) in enumerate(view.lines) if re.match(pattern, row)), None)
    if at is None:
        return None
    head, body = view.lines[at], []
    depth = len(head[1]) - len(head[1].lstrip())
    for number, row in view.lines[at + 1 :]:
        if kind == "toml" and row.startswith("["):
            break
        if kind != "toml" and row.strip() and len(row) - len(row.lstrip()) <= depth:
            break
        body.append((number, row))
    while body and (not body[-1][1].strip() or body[-1][1].startswith("#")):
        body.pop()
    return Section(head, body)


def _section(session: Session, shown: str, name: str, task: str) -> tuple[View, Section]:
    """Read a settings file and find a section; a report where there is none."""
    view = open_file(session, shown, task)
    found = find_section(view, name)
    if found is None:
        raise Report(
            f"{view.path} has no section {name}.",
            f"There is no section `{name}` in `{view.path}`. Nothing was changed.",
        )
    return view, found


def says_table(path: str, wanted: Table) -> Check:
    """The file says what it should, and no other file changed."""

    def check(outcome: Outcome) -> str | None:
        try:
            have = parse(extension(path), outcome.after.get(path, ""))
        except ParseError as error:
            return f"{path} cannot be read: {error}"
        return checks.unchanged(outcome, path) or (
            None if have == wanted else f"{path} does not say what was asked"
        )

    return check


def _plan(name: str, slots: dict[str, str], play: Play, check: Check, document: Document) -> Plan:
    fresh, subject = {document.path: document.text}, ("file", document.path)
    return Plan(name, "data", slots, play, check, subject, prepare=lambda files: files.update(fresh))


def _draw(ctx: Setting) -> tuple[Document, str] | None:
    """A settings file and how the user calls it."""
    document = draw_document(ctx.rng, ctx.words)
    if document.path in ctx.facts.files or not document.sections:
        return None
    files = {**ctx.facts.files, document.path: document.text}
    return document, Setting(Facts(files), ctx.rng, ctx.words).path(document.path)


def _other(ctx: Setting, old: object) -> Scalar:
    """A value of the same kind, but another."""
    for _ in range(30):
        new = (not old) if isinstance(old, bool) else scalar(ctx.rng, ctx.words)
        if type(new) is type(old) and new != old:
            return new
    return plain_text(ctx.rng, ctx.words)


@goal("set_nested", "data", 2.2, level=1)
def set_nested(ctx: Setting) -> Plan | None:
    """Set a key of a section."""
    drawn = _draw(ctx)
    if drawn is None:
        return None
    document, shown = drawn
    section = ctx.rng.choice(sorted(document.sections))
    keys = [key for key, value in document.sections[section].items() if not isinstance(value, list)]
    key = ctx.rng.choice(keys)
    new = _other(ctx, document.sections[section][key])
    said = said_value(new)
    missing = ctx.rng.random() < 0.06
    if missing:
        key = ctx.unused(ctx.words.key)
    wanted = copy.deepcopy(document.table)
    wanted[section][key] = new  # type: ignore[index]

    def play(session: Session) -> tuple[str, str]:
        view, found = _section(
            session, shown, section, f"Set {key} of {section} in {shown} to {said}. Read it."
        )
        place = found.find(key)
        if place is None:
            raise Report(
                f"{section} has no {key}.",
                f"`{section}` in `{view.path}` has no `{key}`; it has {quoted(found.keys(), 8)}."
                " Nothing was changed. Shall I add it?",
            )
        number, row = place
        old, value = row.strip(), KEY.match(row)
        assert value is not None
        fresh = old.replace(value[3], value_like(view.path, value[3], said), 1)
        if fresh == old:
            raise Report(
                "It is so already.", f"`{key}` of `{section}` is already `{said}`; nothing to change."
            )
        think = f"{section} begins at line {found.head[0]}; its {key} is line {number}: {old}"
        change_line(session, view.path, number, old, fresh, think)
        return "The diff shows it.", f"`{section}.{key}` in `{view.path}` is now `{said}` (line {number})."

    check = checks.declines(key) if missing else says_table(document.path, wanted)
    slots = {"key": key, "section": section, "value": said, "path": shown}
    return _plan("set_nested", slots, play, check, document)


def value_like(path: str, old: str, said: str) -> str:
    """A value as a file of this kind has it; texts in quotation marks where the old one stood in some."""
    if old[:1] in "\"'" and old[:1]:
        return f"{old[0]}{said}{old[0]}"
    return written(extension(path), read_back(said))


@goal("add_nested", "data", 1.8, level=1)
def add_nested(ctx: Setting) -> Plan | None:
    """Add a key to a section."""
    drawn = _draw(ctx)
    if drawn is None:
        return None
    document, shown = drawn
    section = ctx.rng.choice(sorted(document.sections))
    key, value = ctx.words.key(), scalar(ctx.rng, ctx.words)
    if key in document.sections[section]:
        return None
    said = said_value(value)
    wanted = copy.deepcopy(document.table)
    wanted[section][key] = value  # type: ignore[index]

    def play(session: Session) -> tuple[str, str]:
        view, found = _section(
            session, shown, section, f"Add {key} with {said} to {section} in {shown}. Read it."
        )
        if found.find(key) is not None:
            raise Report(
                "It is there.", f"`{section}` in `{view.path}` already has `{key}`. Nothing was changed."
            )
        number, row = found.body[-1]
        kind, old = extension(view.path), row.strip()
        entry = {"toml": f"{key} = ", "json": f'"{key}": '}.get(kind, f"{key}: ")
        fresh = entry + written(kind, read_back(said))
        comma = "," if kind == "json" else ""
        think = f"{section} ends with line {number}: {old} Add {fresh} after it."
        change_line(session, view.path, number, old, f"{old}{comma}\n{found.lead}{fresh}", think)
        return "The diff shows it.", f"Added `{fresh}` to `{section}` in `{view.path}`."

    slots = {"key": key, "section": section, "value": said, "path": shown}
    return _plan("add_nested", slots, play, says_table(document.path, wanted), document)


def _stands_once(document: Document, key: str) -> bool:
    return len(re.findall(rf"\b{re.escape(key)}\b", document.text)) == 1


def take_out(session: Session, view: View, number: int, what: str) -> None:
    """Edit a whole line away, and the comma that JSON then has too many."""
    rows = dict(view.lines)
    row, before, after = rows[number], rows.get(number - 1), rows.get(number + 1, "")
    think = f"{what} is line {number}: {row.strip()}"
    if before is None:
        edit_text(session, view.path, f"{row}\n{after}", after, think)
        return
    kept = before
    if extension(view.path) == "json" and not row.rstrip().endswith(",") and before.rstrip().endswith(","):
        kept = before.rstrip()[:-1]
        think += " It is the last one, so the comma before it goes too."
    old = f"{before.lstrip()}\n{row}"
    edit_text(session, view.path, old, kept.lstrip(), think, line=number - 1)


@goal("remove_key", "data", 1.5, level=1)
def remove_key(ctx: Setting) -> Plan | None:
    """Take a key out."""
    drawn = _draw(ctx)
    if drawn is None:
        return None
    document, shown = drawn
    pool = [
        (section, key)
        for section, table in document.sections.items()
        for key, value in table.items()
        if not isinstance(value, list)
        and len(table) > 1
        and len(re.findall(rf"\b{key}\b", document.text)) == 1
    ]
    if not pool:
        return None
    section, key = ctx.rng.choice(pool)
    wanted = copy.deepcopy(document.table)
    del wanted[section][key]  # type: ignore[union-attr]

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, shown, f"Remove {key} from {shown}. Read it.")
        found = [number for number, row in view.lines if (match := KEY.match(row)) and match[2] == key]
        if len(found) != 1:
            text = (
                f"`{key}` stands {len(found)} times in `{view.path}`"
                if found
                else f"`{view.path}` has no `{key}`"
            )
            raise Report("I must say so.", f"{text}. Nothing was changed.")
        take_out(session, view, found[0], key)
        return "The diff shows it.", f"Removed `{key}` from `{view.path}`."

    slots = {"key": key, "path": shown}
    return _plan("remove_key", slots, play, says_table(document.path, wanted), document)


@goal("remove_entry", "data", 1.5, level=1)
def remove_entry(ctx: Setting) -> Plan | None:
    """Take an entry out of a list."""
    drawn = _draw(ctx)
    if drawn is None:
        return None
    document, shown = drawn
    pool = [
        (section, key, list(value))
        for section, table in document.sections.items()
        for key, value in table.items()
        if isinstance(value, list) and _stands_once(document, key)
    ]
    if not pool:
        return None
    section, key, entries = ctx.rng.choice(pool)
    said = ctx.rng.choice(entries)
    if entries.count(said) > 1:
        return None
    wanted = copy.deepcopy(document.table)
    wanted[section][key].remove(said)  # type: ignore[index, union-attr]

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, shown, f"Remove {said} from {key} in {shown}. Read it.")
        start = next((n for n, row in view.lines if (match := KEY.match(row)) and match[2] == key), None)
        if start is None:
            raise Report(f"There is no {key}.", f"`{view.path}` has no `{key}`. Nothing was changed.")
        _remove_from(session, view, start, said, key)
        return "The diff shows it.", f"Removed `{said}` from `{key}` in `{view.path}`."

    slots = {"value": said, "key": key, "path": shown}
    return _plan("remove_entry", slots, play, says_table(document.path, wanted), document)


def _remove_from(session: Session, view: View, start: int, said: str, key: str) -> None:
    """Take an entry out of the list that begins in a line."""
    row = dict(view.lines)[start]
    if re.search(r"\[.+\]", row):
        head, _, rest = row.strip().partition("[")
        entries = [item.strip() for item in rest.rstrip(",").rstrip("]").split(",")]
        kept = [item for item in entries if item.strip("\"'") != said]
        if kept != entries:
            fresh = f"{head}[{', '.join(kept)}]{',' if row.rstrip().endswith(',') else ''}"
            change_line(session, view.path, start, row.strip(), fresh, f"Line {start} is {row.strip()}")
            return
    for number, text in view.lines:
        if number > start and text.strip().lstrip("- ").strip("\"',") == said:
            take_out(session, view, number, said)
            return
        if number > start and KEY.match(text) and not text.strip().startswith("-"):
            break
    raise Report(
        f"{said} is not in it.", f"`{key}` in `{view.path}` has no entry `{said}`. Nothing was changed."
    )

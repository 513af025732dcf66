"""Settings that stand in several places: the same key in sections, the same constant in two files."""

import random
import re
from dataclasses import dataclass

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import assignment, draw_value
from k3agent.backend.training.episodes.datafiles import SHARED, scalar, written
from k3agent.backend.training.episodes.editing import edit_text
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.roles import said_of_part
from k3agent.backend.training.episodes.families.settingsfiles import KEY, value_like
from k3agent.backend.training.episodes.families.values import play_set, play_set_in
from k3agent.backend.training.episodes.policy import View, open_file, search_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.wordings.noise import dress

NO_SECTION = 0.12
"""Of the wishes, those that do not say which section is meant."""
FARTHEST = 4
"""Lines from a section's head to a key that are quoted together in an edit."""
IN_SECTION = (
    "set {k} of {s} in {p} to {v}",
    "set {k} in the section {s} of {p} to {v}",
    "in {p}, set {k} under {s} to {v}",
    "in {p} change {k} in {s} to {v}",
    "change {s}.{k} in {p} to {v}",
    "{p}: {s}.{k} = {v}",
    "{p}: set {k} in [{s}] to {v}",
    "{p}, section {s}: {k} should be {v}",
    "the {k} of {s} in {p} should be {v}",
    "the {s} {k} in {p} must be {v}",
    "the {k} in the {s} section of {p} should be {v}",
    "{p} has the wrong {k} in {s}, it should be {v}",
    "{p} has the wrong {k} for {s}; make it {v}",
    "make {k} of {s} {v} in {p}",
    "in the {s} part of {p} put {k} to {v}",
    "use {v} as {k} for {s} in {p}",
    "let {s} in {p} have {k} {v}",
    "give {s} in {p} the {k} {v}",
    "can you set the {k} of {s} to {v} in {p}?",
    "could the {k} for {s} be {v}? It's in {p}",
    "only for {s}: set {k} to {v} in {p}",
    "{s} needs {k} {v} in {p}, leave the others alone",
    "for {s}, {k} must become {v} (see {p})",
    "update {p}: under {s} the {k} is {v} now",
    "{k} is {v} for {s} from now on, edit {p}",
    "edit {p}, section {s}, key {k}: {v}",
    "in section {s} of {p} the key {k} becomes {v}",
    "[{s}] {k} -> {v} in {p}",
    "please change only the {s} {k} in {p}, to {v}",
    "I need {k} {v} under {s} in {p}",
    "put {v} for {k} below {s} in {p}",
)
ANYWHERE = (
    "set {k} in {p} to {v}",
    "change {k} to {v} in {p}",
    "in {p}, {k} should be {v}",
    "{p}: {k} = {v}",
    "make {k} {v} in {p}",
    "{k} in {p} must be {v}",
    "use {v} as {k} in {p}",
    "update {k} in {p} to {v}",
    "can you set {k} to {v} in {p}?",
    "the {k} in {p} should be {v}",
)


@dataclass(frozen=True, slots=True)
class Place:
    """A key's line, and the line of its section."""

    section: str
    head: int
    line: int


@dataclass(frozen=True, slots=True)
class Sections:
    """A settings file whose sections have a key in common."""

    path: str
    text: str
    key: str
    sections: tuple[str, ...]


def draw_sections(rng: random.Random, words: Words) -> Sections | None:
    """Two to four sections, each with the key, often with the same value."""
    kind = rng.choice(("ini", "ini", "cfg", "toml", "yaml", "yml", "json"))
    names = [words.fresh(words.noun) for _ in range(rng.choice((2, 2, 3, 3, 4)))]
    if rng.random() < 0.35:
        pool = (
            "dev",
            "prod",
            "test",
            "staging",
            "server",
            "client",
            "database",
            "cache",
            "api",
            "mail",
            "web",
        )
        names = rng.sample(pool, len(names))
    key = rng.choice(SHARED) if rng.random() < 0.7 else words.key()
    same = scalar(rng, words) if rng.random() < 0.4 else None
    if len({*names, key}) <= len(names):
        return None
    rows: list[str] = []
    lead = {"json": "    ", "yaml": "  ", "yml": "  "}.get(kind, "")
    plain = "yaml" if kind in ("ini", "cfg") else kind
    for number, name in enumerate(names):
        fresh = [words.key() for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        keys = list(dict.fromkeys([*fresh, *(item for item in rng.sample(SHARED, 2) if rng.random() < 0.5)]))
        keys = [item for item in keys if item != key]
        keys.insert(rng.randint(0, len(keys)), key)
        rows += [""] if rows and not lead else []
        rows.append({"json": f'  "{name}": {{', "yaml": f"{name}:", "yml": f"{name}:"}.get(kind, f"[{name}]"))
        for place, item in enumerate(keys):
            value = written(plain, same if item == key and same is not None else scalar(rng, words))
            comma = "," if place < len(keys) - 1 else ""
            line = {
                "json": f'"{item}": {value}{comma}',
                "yaml": f"{item}: {value}",
                "yml": f"{item}: {value}",
            }
            rows.append(lead + line.get(kind, f"{item} = {value}"))
        rows += [f"  }}{',' if number < len(names) - 1 else ''}"] if kind == "json" else []
    rows = ["{", *rows, "}"] if kind == "json" else rows
    stem = rng.choice(("config", "settings", "app", "service", words.noun()))
    folder = rng.choice(("", "", "config/", "deploy/"))
    return Sections(f"{folder}{stem}.{kind}", "\n".join(rows) + "\n", key, tuple(names))


def places(lines: list[tuple[int, str]], key: str) -> list[Place]:
    """Where a key stands in the sections of a settings file."""
    found: list[Place] = []
    section, head = "", 0
    for number, row in lines:
        if match := re.match(r"^\s*\[([\w.-]+)\]|^\s*\"?([\w-]+)\"?:\s*\{?$", row):
            section, head = match[1] or match[2], number
        elif (match := KEY.match(row)) and match[2] == key and head:
            found.append(Place(section, head, number))
    return found


def _with_value(path: str, row: str, said: str) -> str:
    """A key's line with another value, written as this kind of file has it."""
    match = KEY.match(row)
    assert match is not None
    like = "yaml" if extension(path) in ("ini", "cfg") else extension(path)
    return row[: match.start(3)] + value_like(f"x.{like}", match[3], said) + row[match.end(3) :]


def _change(session: Session, view: View, place: Place, key: str, said: str) -> tuple[str, str]:
    """Change the key of a section; the edit quotes the section's head where it is near."""
    rows = dict(view.lines)
    row = rows[place.line]
    match = KEY.match(row)
    assert match is not None
    old, new = row.strip(), _with_value(view.path, row, said).strip()
    if new == old:
        raise Report(
            f"{place.section} has {old} in line {place.line}, wanted is {said}."
            " That is the same: it is so already.",
            f"`{key}` of `{place.section}` in `{view.path}` (line {place.line}) is already `{said}`;"
            " nothing to change.",
        )
    think = (
        f"{rows[place.head].strip()} is line {place.head}; below it, line {place.line}: {old}."
        f" Wanted is {said}. {old} -> {new}"
    )
    if place.line - place.head <= FARTHEST:
        between = [rows[number] for number in range(place.head, place.line)]
        lead = row[: len(row) - len(row.lstrip())]
        before = "\n".join([between[0].lstrip(), *between[1:], ""])
        edit_text(session, view.path, f"{before}{row}", f"{before}{lead}{new}", think)
    else:
        edit_text(session, view.path, old, new, think, line=place.line)
    return (
        f"The diff shows it below {rows[place.head].strip()}.",
        f"Set `{key}` of `{place.section}` in `{view.path}` to `{said}` (line {place.line}); it was"
        f" `{match[3]}`.",
    )


def play_section(session: Session, shown: str, section: str, key: str, said: str) -> tuple[str, str]:
    """Read the file, find the key below the section's head, change it; without a section, ask."""
    if section:
        task = f"Set {key} of {section} in {shown} to {said}. Which sections have {key}? Read it."
        view = open_file(session, shown, task)
    else:
        task = f"Set {key} to {said} in {shown}. Find {key} there."
        path, rows = search_file(session, shown, assignment(key), task)
        view = open_file(
            session, path, f"{key} is there {len(rows)} times. Which sections are these? Read it."
        )
    found = places(view.lines, key)
    told = ", ".join(f"`{item.section}` (line {item.line})" for item in found)
    if not section and len(found) > 1:
        rows = dict(view.lines)
        if all(_with_value(view.path, rows[item.line], said) == rows[item.line] for item in found):
            raise Report(
                f"{key} is {said} in all {len(found)} sections, wanted is {said}: it is so already.",
                f"`{key}` is already `{said}` in all {len(found)} sections of `{view.path}`: {told};"
                " nothing to change.",
            )
        raise Report(
            f"{len(found)} sections have {key}, and none was named. I must ask.",
            f"`{key}` stands in {len(found)} sections of `{view.path}`: {told}. Which one shall I change?",
        )
    fitting = [item for item in found if item.section == section or not section]
    if not fitting:
        raise Report(
            f"There is no {key} in {section}.",
            f"`{view.path}` has no `{key}` in `{section}`. It stands in: {told}. Nothing was changed.",
        )
    return _change(session, view, fitting[0], key, said)


@goal("set_equal", "setvalue", 2.6)
def set_equal(ctx: Setting) -> Plan | None:
    """Set a key that several sections have: in the one that is named, or ask which."""
    rng = ctx.rng
    drawn = draw_sections(rng, ctx.words)
    if drawn is None or drawn.path in ctx.facts.files:
        return None
    lines = list(enumerate(drawn.text.splitlines(), 1))
    found = places(lines, drawn.key)
    place = rng.choice(found)
    new = scalar(rng, ctx.words)
    said = str(new).lower() if isinstance(new, bool) else str(new)
    row = lines[place.line - 1][1]
    match = KEY.match(row)
    if match is None or len(found) != len(drawn.sections):
        return None
    if rng.random() < 0.12:
        said = match[3].strip('"')
    fresh = _with_value(drawn.path, row, said)
    section = "" if rng.random() < NO_SECTION else place.section
    later = Setting(type(ctx.facts)({**ctx.facts.files, drawn.path: drawn.text}), rng, ctx.words)
    shown = later.path(drawn.path)
    text = said_of_part(IN_SECTION if section else ANYWHERE, ctx.words, rng)
    slots = {"k": drawn.key, "s": section, "p": shown, "v": said}
    parts = re.split(r"(\{[kspv]\})", text)
    pieces = [slots[part[1]] if part[:1] == "{" else part for part in parts]
    prompt = dress(pieces, [part[:1] == "{" or not part for part in parts], False, False, rng)
    check = checks.writes({drawn.path: checks.replace_line(drawn.text, place.line, fresh)})
    rows = [lines[item.line - 1][1] for item in found]
    is_so = all(_with_value(drawn.path, item, said) == item for item in rows)
    if not section:
        check = checks.answers("already", *drawn.sections) if is_so else checks.declines(*drawn.sections)
    elif fresh == row:
        check = checks.answers("already", section)
    return Plan(
        "set_equal",
        "setvalue",
        {"value": said},
        lambda session: play_section(session, shown, section, drawn.key, said),
        check,
        ("file", drawn.path),
        prompt=prompt,
        prepare=lambda files: files.update({drawn.path: drawn.text}),
    )


@goal("set_doubled", "setvalue", 1.2)
def set_doubled(ctx: Setting) -> Plan | None:
    """A constant that two files set: the named file's is changed; without a file the user is asked."""
    rng = ctx.rng
    pool = [item for item in ctx.facts.constants if item.path.endswith(".py") and len(item.text) < 100]
    pool = [item for item in pool if sum(other.name == item.name for other in pool) == 1]
    pool = [item for item in pool if item.name.isupper()]
    if not pool:
        return None
    item = rng.choice(pool)
    other = f"{rng.choice(('', 'app/', 'scripts/'))}{ctx.unused(ctx.words.module)}.py"
    value = item.value if rng.random() < 0.4 else draw_value(ctx, item.value, "py")[1]
    more = f"{ctx.words.constant()} = {rng.randint(1, 99)}\n"
    text = rng.choice((f"{item.name} = {value}\n{more}", f"{more}{item.name} = {value}\n"))
    if other in ctx.facts.files or not checks.compiles(text):
        return None
    said, new = draw_value(ctx, item.value, extension(item.path))
    later = Setting(type(ctx.facts)({**ctx.facts.files, other: text}), rng, ctx.words)
    named = rng.random() < 0.6
    shown = later.path(item.path)
    lines = ctx.facts.files[item.path].splitlines()
    line = lines[item.line - 1]
    if item.value not in line:
        return None
    head, _, tail = line.rpartition(item.value)
    done = checks.replace_line(ctx.facts.files[item.path], item.line, f"{head}{new}{tail}")

    def play(session: Session) -> tuple[str, str]:
        return play_set_in(session, item.name, said, shown) if named else play_set(session, item.name, said)

    return Plan(
        "set_const_in" if named else "set_const",
        "setvalue",
        {"name": item.name, "value": said} | ({"path": shown} if named else {}),
        play,
        checks.writes({item.path: done}) if named else checks.declines(item.path, other),
        ("const", item.name) if named else None,
        prepare=lambda files: files.update({other: text}),
    )

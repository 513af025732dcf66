"""Facts that changed, said without a path ("the setup docs say A, it is B"), and several rows for a file."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.adding import append, by_squeeze, open_end
from k3agent.backend.training.episodes.families.replacing import (
    DOCUMENTS,
    breaks,
    inside_word,
    new_text,
    part_of,
    replace_in,
)
from k3agent.backend.training.episodes.policy import base_name, counted, esc, hits, pieces, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session

KINDS = {
    "md": ("docs", "page", "guide", "document", "text"),
    "txt": ("text", "notes", "file", "list"),
    "css": ("styles", "stylesheet", "css"),
    "csv": ("csv", "table", "data"),
    "html": ("page", "html"),
    "ini": ("settings", "config"),
    "rst": ("docs", "page"),
}


def place_word(ctx: Setting, path: str) -> str:
    """A document as people speak of it: "the readme", "the setup docs", "the field guide"."""
    words = " ".join(pieces(base_name(path).rsplit(".", 1)[0]))
    kinds = KINDS.get(extension(path), ("file",))
    form = ctx.rng.choice(("the {}", "the {}", "the {} {}", "the {} file", "our {}"))
    return form.format(words, ctx.rng.choice(kinds))


def named_in(place: str, path: str) -> bool:
    """Whether a path's name occurs in the words for a place."""
    return set(pieces(base_name(path).rsplit(".", 1)[0])) <= set(pieces(place))


def play_place(session: Session, place: str, old: str, new: str) -> tuple[str, str]:
    """Find the text; of several files take the one that the words name."""
    task = f'In {place}, "{old}" becomes "{new}". No path is given: find the text.'
    found = hits(session.call("grep", task, pattern=esc(old)))
    if not found:
        raise Report(f'There is no "{old}".', f'"{old}" occurs nowhere in this project. Nothing was changed.')
    paths = list(dict.fromkeys(hit.path for hit in found))
    named = [path for path in paths if named_in(place, path)]
    if len(named) != 1:
        raise Report(
            "I must ask which file.",
            f'"{old}" stands in {quoted(paths)}. Which file do you mean? Nothing was changed.',
        )
    rows = [hit for hit in found if hit.path == named[0]]
    if len(paths) > 1:
        session.lead = f"Of {len(paths)} files, {place} is {named[0]}."
    replace_in(session, named[0], rows, old, new)
    number = counted(len(rows), "line")
    return "The diff is right.", f'Replaced "{old}" with "{new}" in `{named[0]}` ({number}).'


@goal("replace_place", "replace", 1.6)
def replace_place(ctx: Setting) -> Plan | None:
    """The setup docs say OLD, it should be NEW."""
    pool = [path for path, text in ctx.facts.files.items() if text.strip() and extension(path) in DOCUMENTS]
    path = ctx.choose(pool)
    if not isinstance(path, str) or not pieces(base_name(path).rsplit(".", 1)[0]):
        return None
    text, place = ctx.facts.files[path], place_word(ctx, path)
    old = part_of(ctx, path)
    if old is None or inside_word(ctx, path, old) or text.count(old) > 6:
        return None
    places = [item for item, body in ctx.facts.files.items() if old in body]
    if sum(named_in(place, other) for other in places) != 1 or len(places) > 6:
        return None
    new = new_text(ctx, old)
    after = text.replace(old, new)
    if breaks(path, text, after):
        return None
    slots = {"place": place, "old": old, "new": new}
    check = checks.writes({path: after})
    return Plan(
        "replace_place", "replace", slots, lambda s: play_place(s, place, old, new), check, ("file", path)
    )


def row_like(ctx: Setting, row: str) -> str:
    """A row with cells of the same kinds as those of another."""
    rng, words = ctx.rng, ctx.words

    def cell(text: str) -> str:
        text = text.strip()
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return f"{text[:4]}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        if re.fullmatch(r"-?\d+", text):
            return str(rng.randint(-20, 500))
        if re.fullmatch(r"-?\d+\.\d+", text):
            return str(round(rng.uniform(-20, 90), len(text.split(".")[1])))
        return rng.choice((words.noun(), words.noun(), f"{words.adjective()} {words.noun()}"))

    return ",".join(cell(text) for text in row.split(","))


def _table(ctx: Setting) -> tuple[str, str]:
    """(path, text) of a new table with a head and some rows."""
    rng, words = ctx.rng, ctx.words
    draws = {
        "date": lambda: f"20{rng.randint(10, 29)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}",
        "word": words.noun,
        "whole": lambda: str(rng.randint(0, 500)),
        "broken": lambda: str(round(rng.uniform(-20, 90), rng.choice((1, 1, 2)))),
    }
    kinds = [rng.choice(("date", "word", "word")), *rng.choices(list(draws), k=rng.randint(1, 3))]
    head = ",".join("date" if kind == "date" else words.noun() for kind in kinds)
    rows = [",".join(draws[kind]() for kind in kinds) for _ in range(rng.randint(1, 8))]
    folder = rng.choice(("", "data/", "data/", f"{words.noun()}/"))
    name = rng.choice((f"{words.noun()}.csv", f"20{rng.randint(10, 29)}-{words.noun()}.csv"))
    return folder + name, "\n".join([head, *rows]) + "\n"


def add_rows(ctx: Setting, name: str) -> Plan | None:
    """Put one or more rows at the end of a table or a list."""
    rng = ctx.rng
    path, text = _table(ctx)
    have = [item for item in ctx.facts.files if item.endswith((".csv", ".txt"))]
    if have and rng.random() < 0.3:
        path = rng.choice(have)
        text = ctx.facts.files[path]
    if path in ctx.facts.files and text != ctx.facts.files[path]:
        return None
    last = next((row for row in reversed(text.splitlines()) if row.strip()), "")
    if not last or len(last) > 70 or "`" in last or "\r" in text:
        return None
    rows = list(dict.fromkeys(row_like(ctx, last) for _ in range(rng.choice((2, 2, 2, 3, 4)))))
    if len(rows) < 2 or any(row in text for row in rows):
        return None
    form = rng.choice(("{}", "{}", "`{}`", '"{}"'))
    said = [form.format(row) for row in rows]
    comma = "; " if form == "{}" else ", "
    lines = rng.choice((f"{comma.join(said[:-1])} and {said[-1]}", " and ".join(said), comma.join(said)))
    if rng.random() < 0.35:
        lines = "\n" + "\n".join(rows) + "\n"
    counted = ("", "", "two", "three", "four")[len(rows)]
    shown = base_name(path) if rng.random() < 0.3 and path not in ctx.facts.files else path

    def play(session: Session) -> tuple[str, str]:
        task = f"Add {len(rows)} lines at the end of {shown}, each on a line of its own. Read it."
        view = open_end(session, shown, task)
        append(session, view, "\n".join(rows))
        return "The diff shows them.", f"Added {quoted(rows)} at the end of `{view.path}`."

    check = by_squeeze(path, text.rstrip() + "\n" + "\n".join(rows))
    return Plan(
        name,
        "addline",
        {"lines": lines, "path": shown, "count": rng.choice((counted, str(len(rows))))},
        play,
        check,
        ("file", path),
        prepare=lambda files: files.update({path: text}),
    )


@goal("add_lines_end", "addline", 1.5)
def add_lines_end(ctx: Setting) -> Plan | None:
    """Add several rows to a file."""
    return add_rows(ctx, "add_lines_end")

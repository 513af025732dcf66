"""Keys deep in a settings file: sections in sections, named with dots or one after the other."""

import re
from dataclasses import dataclass

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.datafiles import said_value, scalar, written
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.settingsfiles import KEY, value_like
from k3agent.backend.training.episodes.policy import View, open_file, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session


@dataclass(slots=True)
class Deep:
    """A settings file whose sections have sections, and the lines of its keys by their whole names."""

    path: str
    text: str
    places: dict[tuple[str, ...], int]


def draw_deep(ctx: Setting) -> Deep | None:
    """Two outer sections with two inner ones each; names repeat, so that only a whole name is one key."""
    rng, words = ctx.rng, ctx.words
    kind = rng.choice(("yaml", "yaml", "yml", "toml", "json"))
    outer, inner = ([words.fresh(words.noun) for _ in range(2)] for _ in range(2))
    keys = rng.sample(("host", "port", "enabled", "timeout", "level", "size", "retries", "mode"), 2)
    keys += [words.key()]
    if len({*outer, *inner, *keys}) < 7:
        return None
    rows: list[str] = ["{"] if kind == "json" else []
    places: dict[tuple[str, ...], int] = {}
    step = " " * (2 if kind != "json" or rng.random() < 0.7 else 4)
    for a, first in enumerate(outer):
        rows += {"toml": [], "json": [f'{step}"{first}": {{']}.get(kind, [f"{first}:"])
        for b, second in enumerate(inner):
            head = {"toml": f"[{first}.{second}]", "json": f'{step * 2}"{second}": {{'}
            rows += [""] if kind == "toml" and rows else []
            rows.append(head.get(kind, f"{step}{second}:"))
            chosen = keys if rng.random() < 0.6 else keys[:2]
            for c, key in enumerate(chosen):
                value = written(kind, scalar(rng, words))
                comma = "," if c < len(chosen) - 1 else ""
                line = {"toml": f"{key} = {value}", "json": f'{step * 3}"{key}": {value}{comma}'}
                rows.append(line.get(kind, f"{step * 2}{key}: {value}"))
                places[first, second, key] = len(rows)
            rows += [f"{step * 2}}}{',' if not b else ''}"] if kind == "json" else []
        rows += [f"{step}}}{',' if not a else ''}"] if kind == "json" else []
    rows += ["}"] if kind == "json" else []
    stem = rng.choice(("config", "settings", "values", "deploy", words.noun()))
    path = f"{rng.choice(('', '', 'config/', 'deploy/'))}{stem}.{kind}"
    return None if path in ctx.facts.files else Deep(path, "\n".join(rows) + "\n", places)


def places_of(view: View) -> dict[tuple[str, ...], tuple[int, str]]:
    """The lines of a settings file's keys by the names of their sections and their own."""
    found: dict[tuple[str, ...], tuple[int, str]] = {}
    heads: list[tuple[int, str]] = []
    for number, row in view.lines:
        if match := re.match(r"^\[([\w.-]+)\]", row):
            heads = [(0, part) for part in match[1].split(".")]
            continue
        match = KEY.match(row)
        if match is None:
            continue
        depth = len(match[1])
        if extension(view.path) != "toml":
            heads = [item for item in heads if item[0] < depth]
        if match[3] in ("", "{"):
            heads.append((depth, match[2]))
        else:
            found[(*(name for _, name in heads), match[2])] = (number, row)
    return found


@goal("set_deep", "data", 2.0, level=1)
def set_deep(ctx: Setting) -> Plan | None:
    """Set a key that has the same name in several sections."""
    drawn = draw_deep(ctx)
    if drawn is None:
        return None
    names = ctx.rng.choice(sorted(drawn.places))
    number = drawn.places[names]
    row = drawn.text.splitlines()[number - 1]
    have = KEY.match(row)
    new = scalar(ctx.rng, ctx.words)
    said = said_value(new)
    assert have is not None
    fresh_row = row.strip().replace(have[3], value_like(drawn.path, have[3], said), 1)
    if fresh_row == row.strip() or row.count(have[3]) != 1:
        return None
    whole = ".".join(names)

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, drawn.path, f"Set {whole} in {drawn.path} to {said}. Read it.")
        places = places_of(view)
        if names not in places:
            near = [".".join(item) for item in places if item[-1] == names[-1]]
            raise Report(
                f"There is no {whole}.",
                f"There is no `{whole}` in `{view.path}`. There is: {quoted(near, 6)}. Nothing was changed.",
            )
        line, text = places[names]
        match = KEY.match(text)
        assert match is not None
        fresh = text.strip().replace(match[3], value_like(view.path, match[3], said), 1)
        think = f"{whole} is line {line}: {text.strip()} -> {fresh}"
        change_line(session, view.path, line, text.strip(), fresh, think)
        return "The diff shows it.", f"`{whole}` in `{view.path}` is now `{said}` (line {line})."

    lead = row[: len(row) - len(row.lstrip())]
    check = checks.writes({drawn.path: checks.replace_line(drawn.text, number, lead + fresh_row)})
    fresh = {drawn.path: drawn.text}
    slots = {"key": whole, "value": said, "path": drawn.path}
    name = "set_key"
    if ctx.rng.random() < 0.5:
        name = "set_nested"
        slots = {"key": names[-1], "section": ".".join(names[:-1]), "value": said, "path": drawn.path}
    return Plan(
        name,
        "data",
        slots,
        play,
        check,
        ("file", drawn.path),
        prepare=lambda files: files.update(fresh),
    )

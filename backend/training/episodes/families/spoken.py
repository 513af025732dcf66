"""Changing values whose names the user writes as words, in another case or in part: "the max retries"."""

import re
from typing import Any

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import LEAD, QUOTES, draw_value, fit_value, split_value
from k3agent.backend.training.episodes.facts import Setting as Fact
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.values import changed_text, play_set_in, set_line
from k3agent.backend.training.episodes.policy import (
    Hit,
    base_name,
    canonical,
    esc,
    fits,
    hits,
    other_path,
    pieces,
    quoted,
    root,
    same_file,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session

NAME = re.compile(rf"{LEAD}[\"']?([\w-]+)")
FILLERS = {"max", "min", "default", "base", "global", "main", "local", "initial", "final", "extra", "total"}
UNITS = {"seconds", "count", "ms", "size", "text", "mb", "old", "v2", "value", "days", "hours"}


def spoken_pattern(thing: str) -> str:
    """The pattern for a name whose words are known but not how they are joined."""
    return "[_-]?".join(pieces(thing))


def assigning(thing: str, found: list[Hit]) -> list[tuple[str, Hit]]:
    """(name, hit) of the lines that assign a name with these words; whole names and outer lines first."""
    wanted = canonical(thing)
    table = [
        (match[1], hit)
        for hit in found
        if (match := NAME.match(hit.text))
        and wanted in canonical(match[1])
        and split_value(match[1], hit.text) is not None
    ]
    table = [item for item in table if canonical(item[0]) == wanted] or table
    return [item for item in table if not item[1].text.startswith((" ", "\t"))] or table


def find_spoken(session: Session, thing: str, task: str, path: str = "") -> list[tuple[str, Hit]]:
    """The names that have these words and are set."""
    pattern, where = spoken_pattern(thing), f" in {path}" if path else ""
    args: dict[str, Any] = {"pattern": pattern, "ignore_case": True}
    if path:
        args["path"] = path
    think = f"{task} The name may be written otherwise: look for {pattern} in any case."
    result = session.call("grep", think, **args)
    if path and result.is_error:
        path = args["path"] = other_path(session, path, result.text)
        result = session.call("grep", f"The file is {path}. Search there.", **args)
    found = assigning(thing, hits(result))
    return found or _by_words(session, thing, args, where)


def play_spoken(
    session: Session, thing: str, wanted: str, path: str = "", old: str | None = None
) -> tuple[str, str]:
    """Find the name that has these words and change its value; one that is not `old` is asked about."""
    where = f" in {path}" if path else ""
    origin = f" from {old}" if old is not None else ""
    found = find_spoken(session, thing, f"Set {thing}{origin} to {wanted}{where}.", path)
    if old is not None:
        fitting = [item for item in found if _has_value(*item, old)]
        if not fitting:
            name, hit = found[0]
            raise Report(
                f"No {thing} is {old}. I must ask.",
                f"`{name}` does not have the value `{old}`: `{hit.text.strip()}`"
                f" (`{hit.path}`, line {hit.line}). Nothing was changed."
                f" Shall I set it to `{wanted}` anyway?",
            )
        found = fitting
    if len(found) > 1:
        shown = quoted([f"{name} ({hit.at})" for name, hit in found])
        raise Report(
            f"{len(found)} names fit. I must ask which.",
            f"Several values fit `{thing}`: {shown}. Which one shall I change?",
        )
    name, hit = found[0]
    return set_line(session, name, hit, wanted)


def _has_value(name: str, hit: Hit, old: str) -> bool:
    """Whether a line sets a name to a value, however it is written."""
    parts = split_value(name, hit.text)
    return parts is not None and fit_value(parts[1], old, extension(hit.path)) == parts[1]


def play_value(session: Session, thing: str) -> tuple[str, str]:
    """Find the name that has these words and tell its value."""
    found = find_spoken(session, thing, f"What is the {thing}?")
    rows = [
        f"`{name}` is `{parts[1]}` (`{hit.path}`, line {hit.line})"
        for name, hit in found
        if (parts := split_value(name, hit.text))
    ]
    if len(rows) == 1:
        return f"{found[0][0]} is meant.", f"{rows[0]}."
    return f"{len(rows)} names fit. Tell all.", "\n".join(
        ["Several values fit:", *(f"- {row}" for row in rows)]
    )


def _by_words(session: Session, thing: str, args: dict[str, Any], where: str) -> list[tuple[str, Hit]]:
    """The names that have all words of a thing, in any order; a report where there is none."""
    piece = root(pieces(thing) or [thing])
    think = f"Not in that order. Look for {piece} in any case."
    found = hits(session.call("grep", think, **{**args, "pattern": esc(piece), "limit": 20}))
    table = [(match[1], hit) for hit in found if (match := NAME.match(hit.text)) and fits(thing, match[1])]
    table = [item for item in table if split_value(item[0], item[1].text) is not None]
    if not table:
        raise Report(
            f"Nothing of that name is assigned{where}.",
            f"I found no constant or key for `{thing}`{where}. Nothing was changed.",
        )
    return table


def in_words(ctx: Setting, name: str) -> str:
    """A name as people say it."""
    rng, words = ctx.rng, pieces(name)
    if len(words) > 1 and rng.random() < 0.33:
        words = words[1:] if words[0] in FILLERS else words[:-1] if words[-1] in UNITS else words
    if len(words) == 2 and rng.random() < 0.08:
        return f"{words[1]} {rng.choice(('of the', 'for the', 'for'))} {words[0]}"
    joined = " ".join(words)
    if len(words) == 1:
        return rng.choice((joined, joined, joined, joined.capitalize()))
    forms = (
        joined,
        joined,
        joined,
        joined,
        "_".join(words),
        "_".join(words),
        "-".join(words),
        joined.title(),
    )
    camel = words[0] + "".join(word.capitalize() for word in words[1:])
    return rng.choice((*forms, camel))


def file_word(ctx: Setting, path: str) -> str:
    """A path, or only the file's name without extension where that is clear."""
    stem = base_name(path).rsplit(".", 1)[0]
    fitting = [other for other in ctx.facts.files if same_file(stem, other)]
    near = 2 * len(stem) > 1.3 * len(base_name(path))
    return stem if near and fitting == [path] and ctx.rng.random() < 0.3 else ctx.path(path)


def _candidates(ctx: Setting, thing: str, path: str) -> list[tuple[str, Hit]]:
    pattern = re.compile(spoken_pattern(thing), re.IGNORECASE)
    found = [
        Hit(other, number, line)
        for other, text in ctx.facts.files.items()
        if not path or other == path
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    return assigning(thing, found)


def _draw(ctx: Setting, inside: bool) -> tuple[str, Fact] | None:
    """(words, the constant or key that they mean); one file only when `inside`."""
    pool = ctx.facts.keys if ctx.rng.random() < 0.3 else ctx.facts.constants
    pool = [item for item in pool if len(item.text) < 110 and len(item.name) > 3]
    for _ in range(4):
        if not pool:
            return None
        item = ctx.rng.choice(pool)
        thing = in_words(ctx, item.name)
        found = _candidates(ctx, thing, item.path if inside else "")
        if [(hit.path, hit.line) for _, hit in found] == [(item.path, item.line)]:
            return thing, item
    return None


def _plan(ctx: Setting, name: str, inside: bool) -> Plan | None:
    found = _draw(ctx, inside)
    if found is None:
        return None
    thing, item = found
    said, new = draw_value(ctx, item.value, extension(item.path))
    text = changed_text(ctx, item, new)
    if text is None:
        return None
    shown = file_word(ctx, item.path) if inside else ""
    slots = {"thing": thing, "value": said} | ({"path": shown} if inside else {})
    check = checks.writes({item.path: text})
    return Plan(
        name, "setvalue", slots, lambda s: play_spoken(s, thing, said, shown), check, ("const", item.name)
    )


@goal("set_spoken", "setvalue", 1.8)
def set_spoken(ctx: Setting) -> Plan | None:
    """Set the max retries to VALUE."""
    if ctx.rng.random() < 0.04:
        return _which(ctx)
    return _plan(ctx, "set_spoken", False)


@goal("set_spoken_in", "setvalue", 1.4)
def set_spoken_in(ctx: Setting) -> Plan | None:
    """Set the timeout in config to VALUE."""
    return _plan(ctx, "set_spoken_in", True)


def _which(ctx: Setting) -> Plan | None:
    """A word that several names have: asked back."""
    pool = [item for item in ctx.facts.constants if len(pieces(item.name)) > 1]
    if not pool:
        return None
    thing = ctx.rng.choice(pieces(ctx.rng.choice(pool).name))
    found = _candidates(ctx, thing, "")
    if len(thing) < 4 or len(found) < 2:
        return None
    slots = {"thing": thing, "value": str(ctx.rng.randint(1, 99))}
    check = checks.declines(*(name for name, _ in found[:6]))
    return Plan("set_spoken", "setvalue", slots, lambda s: play_spoken(s, thing, slots["value"]), check)


@goal("set_spoken_from", "setvalue", 1.4)
def set_spoken_from(ctx: Setting) -> Plan | None:
    """Change the overdraft limit from OLD to VALUE."""
    found = _draw(ctx, False)
    if found is None:
        return None
    thing, item = found
    said, new = draw_value(ctx, item.value, extension(item.path))
    text, old = changed_text(ctx, item, new), item.value.strip(QUOTES)
    wrong = ctx.rng.random() < 0.1
    if wrong:
        old = draw_value(ctx, item.value, extension(item.path))[0]
        if fit_value(item.value, old, extension(item.path)) == item.value:
            return None
    if text is None or not old:
        return None
    slots = {"thing": thing, "old": old, "value": said}
    check = checks.declines() if wrong else checks.writes({item.path: text})
    return Plan(
        "set_spoken_from",
        "setvalue",
        slots,
        lambda s: play_spoken(s, thing, said, old=old),
        check,
        ("const", item.name),
    )


@goal("value_spoken", "explain", 1.2)
def value_spoken(ctx: Setting) -> Plan | None:
    """What is the overdraft limit?"""
    found = _draw(ctx, False)
    if found is None:
        return None
    thing, item = found
    check = checks.answers(item.name, item.value, item.path)
    return Plan(
        "value_spoken",
        "explain",
        {"thing": thing},
        lambda s: play_value(s, thing),
        check,
        ("const", item.name),
    )


@goal("value_of_key", "explain", 1.0)
def value_of_key(ctx: Setting) -> Plan | None:
    """What is NAME, asked of a key of a settings file, whose name is written as it is."""
    pool = [item for item in ctx.facts.keys if len(item.text) < 110 and len(item.name) > 3]
    item = ctx.rng.choice(pool) if pool else None
    if item is None:
        return None
    found = _candidates(ctx, item.name, "")
    if [(hit.path, hit.line) for _, hit in found] != [(item.path, item.line)]:
        return None
    return Plan(
        "value_of",
        "explain",
        {"name": item.name},
        lambda s: play_value(s, item.name),
        checks.answers(item.name, item.value, item.path),
        ("const", item.name),
    )


def _of_place(place: str, found: list[tuple[str, Hit]]) -> list[tuple[str, Hit]]:
    """Those in the files that a word for a place names."""
    return [item for item in found if set(pieces(place)) <= set(pieces(item[1].path))]


@goal("set_placed", "setvalue", 1.6)
def set_placed(ctx: Setting) -> Plan | None:
    """Let the server use port VALUE: the place's word is in the path of the file that is meant."""
    rng = ctx.rng
    pool = [item for item in [*ctx.facts.constants, *ctx.facts.keys] if len(item.text) < 110]
    pool = [item for item in pool if len(item.name) > 3 and pieces(base_name(item.path).rsplit(".", 1)[0])]
    if not pool:
        return None
    item = rng.choice(pool)
    thing = in_words(ctx, item.name)
    place = " ".join(pieces(base_name(item.path).rsplit(".", 1)[0]))
    other, line = f"{ctx.unused(ctx.words.noun)}.py", f"{item.name.upper()} = {rng.randint(1, 99)}\n"
    fresh = {other: line} if rng.random() < 0.6 and item.name.isidentifier() and item.text[:1].strip() else {}
    here = _candidates(ctx, thing, "")
    added = [(item.name.upper(), Hit(other, 1, line.strip()))] if fresh else []
    fitting = [(hit.path, hit.line) for _, hit in _of_place(place, [*here, *added])]
    said, new = draw_value(ctx, item.value, extension(item.path))
    text = changed_text(ctx, item, new)
    if text is None or fitting != [(item.path, item.line)] or len(here) > 4:
        return None

    def play(session: Session) -> tuple[str, str]:
        found = find_spoken(session, thing, f"Set {thing} to {said}, for {place}.")
        if len(found) > 1:
            mine = _of_place(place, found)
            if len(mine) != 1:
                shown = quoted([f"{name} ({hit.at})" for name, hit in found])
                raise Report(
                    f"{len(found)} names fit. I must ask which.",
                    f"Several values fit `{thing}`: {shown}. Which one shall I change?",
                )
            session.lead = f"{len(found)} fit; {place} is {mine[0][1].path}."
            found = mine
        name, hit = found[0]
        return set_line(session, name, hit, said)

    return Plan(
        "set_placed",
        "setvalue",
        {"thing": thing, "place": place, "value": said},
        play,
        checks.writes({item.path: text}),
        ("const", item.name),
        prepare=lambda files: files.update(fresh),
    )


@goal("set_hint", "setvalue", 1.0)
def set_hint(ctx: Setting) -> Plan | None:
    """The shipping should be VALUE (SHIPPING in PATH)."""
    pool = [item for item in [*ctx.facts.constants, *ctx.facts.keys] if len(item.text) < 110]
    item = ctx.rng.choice(pool) if pool else None
    if item is None or sum(1 for other in pool if (other.name, other.path) == (item.name, item.path)) > 1:
        return None
    said, new = draw_value(ctx, item.value, extension(item.path))
    text = changed_text(ctx, item, new)
    if text is None:
        return None
    shown = file_word(ctx, item.path)
    slots = {"thing": in_words(ctx, item.name), "name": item.name, "value": said, "path": shown}
    return Plan(
        "set_hint",
        "setvalue",
        slots,
        lambda s: play_set_in(s, item.name, said, shown),
        checks.writes({item.path: text}),
        ("const", item.name),
    )

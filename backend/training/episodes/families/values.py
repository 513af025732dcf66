"""Changing values: constants, keys of settings files, flags."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import (
    QUOTES,
    assignment,
    draw_value,
    fit_value,
    split_value,
)
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.facts import Setting as Fact
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.policy import (
    Hit,
    esc,
    fits,
    hits,
    near_names,
    open_file,
    pieces,
    quoted,
    root,
    search_file,
    several,
    took,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session

SAME_SHARE = 0.13
"""Of the wishes for a value, those for the one that is there already."""


def _value_for(ctx: Setting, item: Fact) -> tuple[str, str, bool]:
    """(a new value as said, as written, whether it is the old one)."""
    if ctx.rng.random() < SAME_SHARE:
        return item.value, item.value, True
    return *draw_value(ctx, item.value, extension(item.path)), False


def set_line(session: Session, name: str, hit: Hit, wanted: str) -> tuple[str, str]:
    """Change the value in one line and report."""
    parts = split_value(name, hit.text)
    assert parts is not None
    head, old, tail = parts
    new = fit_value(old, wanted, extension(hit.path))
    if new == old:
        raise Report(
            f"{hit.at} has {hit.text.strip()}, wanted is {new}. That is the same: it is so already.",
            f"`{name}` is already `{old}` in `{hit.path}` (line {hit.line}); nothing to change.",
        )
    old_line, new_line = hit.text.strip(), f"{head}{new}{tail}".strip()
    think = f"{hit.at} has {old_line}, wanted is {new}. {old} -> {new}"
    change_line(session, hit.path, hit.line, old_line, new_line, think)
    return (
        f"The diff shows {new_line}. Done.",
        f"Set `{name}` to `{new}` in `{hit.path}` (line {hit.line}); it was `{old}`.",
    )


def assigned(name: str, found: list[Hit]) -> list[Hit]:
    """The hits that assign the name, outer ones first."""
    good = [hit for hit in found if split_value(name, hit.text) is not None]
    outer = [hit for hit in good if not hit.text.startswith((" ", "\t"))]
    return outer or good


def play_set(
    session: Session, name: str, wanted: str, *, task: str = "", old: str | None = None
) -> tuple[str, str]:
    """Find the assignment of a name anywhere and change it."""
    found = assigned(
        name,
        hits(
            session.call(
                "grep",
                task or f"Set {name} to {wanted}. Find where {name} is assigned.",
                pattern=assignment(name),
            )
        ),
    )
    if not found:
        name = near_names(session, name)
        found = assigned(
            name,
            hits(
                session.call(
                    "grep", f"It is written {name}. Find where it is assigned.", pattern=assignment(name)
                )
            ),
        )
        if not found:
            raise Report(
                f"{name} is never assigned a value.",
                f"`{name}` is not set anywhere in this project. Nothing was changed.",
            )
    if old is not None:
        fitting = [
            hit
            for hit in found
            if (parts := split_value(name, hit.text))
            and fit_value(parts[1], old, extension(hit.path)) == parts[1]
        ]
        if not fitting:
            parts = split_value(name, found[0].text)
            value = parts[1] if parts else found[0].text
            if parts and len(found) == 1 and fit_value(value, wanted, extension(found[0].path)) == value:
                return set_line(session, name, found[0], wanted)
            raise Report(
                f"{name} is {value}, not {old}. I must ask.",
                f"`{name}` is `{value}` in `{found[0].path}` (line {found[0].line}), not "
                f"`{old}`. Nothing was changed. "
                f"Shall I set it to `{wanted}` anyway?",
            )
        found = fitting
    if len(found) > 1:
        raise Report(
            f"{name} is set in {len(found)} places. I must ask which.",
            f"`{name}` is set in {len(found)} places: {quoted([hit.at for hit in found])}. Which "
            f"one shall I change?",
        )
    return set_line(session, name, found[0], wanted)


def play_set_in(session: Session, name: str, wanted: str, path: str) -> tuple[str, str]:
    """Find the assignment in one file and change it."""
    section, _, last = name.rpartition(".")
    path, found = search_file(
        session, path, assignment(last), f"Set {name} to {wanted} in {path}. Find {last} there."
    )
    good = assigned(last, found) if not section else [hit for hit in found if split_value(last, hit.text)]
    if not good:
        everything = hits(
            session.call(
                "grep",
                f"No {last} there. Look in any case.",
                pattern=esc(root(pieces(last) or [last])),
                path=path,
                ignore_case=True,
            )
        )
        same = [
            hit
            for hit in everything
            for item in re.findall(r"[\w-]+", hit.text)
            if item.lower() == last.lower() and split_value(item, hit.text)
        ]
        if len(same) == 1:
            real = next(item for item in re.findall(r"[\w-]+", same[0].text) if item.lower() == last.lower())
            if split_value(real, same[0].text):
                return set_line(session, real, same[0], wanted)
        good = _near_in(session, name, last, path, everything)
        last = next(item for item in re.findall(r"[\w-]+", good[0].text) if fits(last, item))
    if len(good) > 1 and section:
        view = open_file(
            session, path, f"{last} occurs {len(good)} times. Read the file to find the one in {section}."
        )
        group = section.rsplit(".", 1)[-1]
        heads = [
            number
            for number, text in view.lines
            if re.match(rf"^\s*[\"'\[]*{re.escape(group)}[\"'\]]*\s*[:={{]*\s*\{{?$", text)
        ]
        good = [hit for hit in good if heads and hit.line > heads[0]][:1] or good
    if len(good) > 1:
        raise Report(
            f"{last} is there {len(good)} times. I must ask which.",
            f"`{last}` occurs {len(good)} times in `{path}`: lines "
            f"{', '.join(str(hit.line) for hit in good)}. Which one shall I change?",
        )
    return set_line(session, last, good[0], wanted)


def _near_in(session: Session, name: str, last: str, path: str, found: list[Hit]) -> list[Hit]:
    """The lines of a file that set the only name like the one asked for; a report where none or more fit."""
    set_names = [
        (item, hit)
        for hit in found
        for item in re.findall(r"[\w-]+", hit.text)[:3]
        if fits(last, item) and split_value(item, hit.text)
    ]
    names = list(dict.fromkeys(item for item, _ in set_names))
    if len(names) > 1:
        raise Report(
            f"{path} has no {name}, but {several(names, 4)} fit. I must ask.",
            f"There is no `{name}` in `{path}`, but several names fit: {quoted(names, 4)}."
            " Which one do you mean?",
        )
    if not names:
        pattern = re.compile(rf"[\w-]*{re.escape(last)}[\w-]*", re.IGNORECASE)
        words = [match[0] for hit in found if (match := pattern.search(hit.text))]
        near = f" Similar: {quoted(list(dict.fromkeys(words))[:3])}." if words else ""
        raise Report(
            f"{path} has no {name}.", f"There is no `{name}` in `{path}`.{near} Nothing was changed."
        )
    took(session, name, names[0])
    return [hit for item, hit in set_names if item == names[0]]


def changed_text(ctx: Setting, item: Fact, new: str) -> str | None:
    """The file's text after the change, or None when the line is not understood."""
    text = ctx.facts.files[item.path]
    parts = split_value(item.name, item.text)
    if parts is None or parts[1] != item.value:
        return None
    return checks.replace_line(text, item.line, f"{parts[0]}{new}{parts[2]}")


def single(items: list[Fact], name: str) -> bool:
    """Whether a name is set once."""
    return sum(1 for other in items if other.name == name) == 1


def _all_assigned(ctx: Setting, name: str) -> int:
    pattern = re.compile(assignment(name))
    lines = [
        (path, line)
        for path, text in ctx.facts.files.items()
        for line in text.splitlines()
        if pattern.search(line)
    ]
    good = [line for _, line in lines if split_value(name, line)]
    outer = [line for line in good if not line.startswith((" ", "\t"))]
    return len(outer or good)


def pick(ctx: Setting, keys: bool = False) -> Fact | None:
    """A constant (or sometimes key) that is set in one place only."""
    pool = ctx.facts.keys if keys else ctx.facts.constants
    pool = [item for item in pool if len(item.text) < 110 and not item.name.startswith("_")]
    for _ in range(4):
        if not pool:
            return None
        item = ctx.rng.choice(pool)
        if _all_assigned(ctx, item.name) == 1:
            return item
    return None


def spoken(ctx: Setting, name: str) -> str:
    """A name as the user writes it: now and then in the wrong case."""
    return name.lower() if ctx.rng.random() < 0.2 and name.isupper() else name


@goal("set_const", "setvalue", 2.5)
def set_const(ctx: Setting) -> Plan | None:
    """Set NAME to VALUE."""
    item = pick(ctx, keys=ctx.rng.random() < 0.2)
    if item is None:
        return None
    said, new, is_same = _value_for(ctx, item)
    text = changed_text(ctx, item, new)
    if text is None:
        return None
    slots = {"name": spoken(ctx, item.name), "value": said}
    return Plan(
        "set_const",
        "setvalue",
        slots,
        lambda s: play_set(s, slots["name"], said),
        checks.answers("already", item.name) if is_same else checks.writes({item.path: text}),
        ("const", item.name),
    )


@goal("set_const_in", "setvalue", 1.6)
def set_const_in(ctx: Setting) -> Plan | None:
    """Set NAME to VALUE in PATH."""
    pool = [item for item in ctx.facts.constants if len(item.text) < 110]
    item = ctx.rng.choice(pool) if pool else None
    if item is None or sum(1 for other in pool if (other.name, other.path) == (item.name, item.path)) > 1:
        return None
    said, new, is_same = _value_for(ctx, item)
    text = changed_text(ctx, item, new)
    if text is None:
        return None
    shown, name = ctx.path(item.path), spoken(ctx, item.name)
    slots = {"name": name, "value": said, "path": shown}
    return Plan(
        "set_const_in",
        "setvalue",
        slots,
        lambda s: play_set_in(s, name, said, shown),
        checks.answers("already", item.name) if is_same else checks.writes({item.path: text}),
        ("const", item.name),
    )


@goal("set_const_from", "setvalue", 1.2)
def set_const_from(ctx: Setting) -> Plan | None:
    """Change NAME from OLD to VALUE."""
    item = pick(ctx)
    if item is None:
        return None
    said, new = draw_value(ctx, item.value, extension(item.path))
    old = item.value.strip(QUOTES) if ctx.rng.random() < 0.8 else item.value
    wrong = ctx.rng.random() < 0.12
    if wrong:
        old = draw_value(ctx, item.value, extension(item.path))[0]
        if fit_value(item.value, old, extension(item.path)) == item.value:
            return None
    is_done = wrong and ctx.rng.random() < 0.4
    if is_done:
        said = new = item.value.strip(QUOTES) if ctx.rng.random() < 0.8 else item.value
    text = changed_text(ctx, item, new)
    if text is None or not old or not said:
        return None
    name = spoken(ctx, item.name)
    slots = {"name": name, "old": old, "value": said}
    task = f"Change {name} from {old} to {said}. Find where {name} is assigned."
    check = checks.declines() if wrong else checks.writes({item.path: text})
    check = checks.answers("already", item.name) if is_done else check
    return Plan(
        "set_const_from",
        "setvalue",
        slots,
        lambda s: play_set(s, name, said, task=task, old=old),
        check,
        ("const", item.name),
    )


@goal("set_key", "setvalue", 2.0)
def set_key(ctx: Setting) -> Plan | None:
    """Set KEY to VALUE in a settings file."""
    pool = [item for item in ctx.facts.keys if len(item.text) < 110]
    if not pool:
        return None
    item = ctx.rng.choice(pool)
    if sum(1 for other in pool if (other.name, other.path) == (item.name, item.path)) > 1:
        return None
    said, new, is_same = _value_for(ctx, item)
    text = changed_text(ctx, item, new)
    if text is None:
        return None
    key = item.name
    shown = ctx.path(item.path)
    if (
        item.text.startswith((" ", "\t"))
        and extension(item.path) in ("json", "yaml", "yml")
        and ctx.rng.random() < 0.25
    ):
        above = ctx.facts.files[item.path].splitlines()[: item.line - 1]
        heads = [m[1] for line in above if (m := re.match(r"^\s*\"?([\w-]+)\"?:\s*\{?$", line))]
        inner = len(item.text) - len(item.text.lstrip()) > (2 if extension(item.path) == "json" else 0)
        if heads and inner and not re.search(r"^\s*\}", "\n".join(above[-1:])):
            key = f"{heads[-1]}.{key}"
    slots = {"key": key, "value": said, "path": shown}
    return Plan(
        "set_key",
        "setvalue",
        slots,
        lambda s: play_set_in(s, key, said, shown),
        checks.answers("already", item.name) if is_same else checks.writes({item.path: text}),
        ("key", item.name),
    )


def _flag(ctx: Setting, on: bool) -> Plan | None:
    pool = [
        item for item in [*ctx.facts.constants, *ctx.facts.keys] if item.value.lower() in ("true", "false")
    ]
    if not pool:
        return None
    item = ctx.rng.choice(pool)
    if _all_assigned(ctx, item.name) != 1:
        return None
    is_on = item.value.lower() == "true"
    if is_on == on and ctx.rng.random() < 0.7:
        return None
    upper = item.value[0].isupper()
    new = ("True" if on else "False") if upper else ("true" if on else "false")
    text = changed_text(ctx, item, new)
    if text is None:
        return None
    word, name = "on" if on else "off", spoken(ctx, item.name)
    task = f"Switch {name} {word}. Find where {name} is assigned."
    return Plan(
        "flip_flag" if on else "flip_off",
        "setvalue",
        {"name": name},
        lambda s: play_set(s, name, "true" if on else "false", task=task),
        checks.writes({item.path: text}),
        ("const", item.name),
    )


@goal("flip_flag", "setvalue", 0.9)
def flip_flag(ctx: Setting) -> Plan | None:
    """Turn a flag on."""
    return _flag(ctx, True)


@goal("flip_off", "setvalue", 0.9)
def flip_off(ctx: Setting) -> Plan | None:
    """Turn a flag off."""
    return _flag(ctx, False)

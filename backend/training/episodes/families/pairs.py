"""Two of a kind in one request: two values, two names, one line for two files."""

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import draw_value
from k3agent.backend.training.episodes.facts import Setting as Fact
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.adding import append, open_end, plain_line
from k3agent.backend.training.episodes.families.names import expected_rename, new_name, play_rename, renamable
from k3agent.backend.training.episodes.families.values import (
    changed_text,
    pick,
    play_set,
    play_set_in,
    spoken,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Play, Session, in_turn

PAIRS = frozenset(("set_two", "set_two_in", "rename_two", "add_line_both"))
"""Goals that count two tasks: no part of a message that counts its own."""
HASHED = ("py", "sh", "toml", "yaml", "yml", "cfg", "conf", "ini", "md", "txt")
"""Files in which a line that begins with # can stand."""


def _two_values(ctx: Setting, items: list[Fact]) -> tuple[dict[str, str], dict[str, str | None]] | None:
    """What the user says of two constants, and the files after both changes."""
    slots: dict[str, str] = {}
    texts: dict[str, str] = {}
    for number, item in zip(("", "2"), items, strict=True):
        said, new = draw_value(ctx, item.value, extension(item.path))
        files = {**ctx.facts.files, **texts}
        text = changed_text(Setting(type(ctx.facts)(files), ctx.rng, ctx.words), item, new)
        if text is None or "\n" in said:
            return None
        texts[item.path] = text
        slots[f"name{number}"], slots[f"value{number}"] = spoken(ctx, item.name), said
    return slots, dict(texts)


@goal("set_two", "setvalue", 1.3)
def set_two(ctx: Setting) -> Plan | None:
    """Set A to X and B to Y."""
    items = [item for item in (pick(ctx), pick(ctx, keys=ctx.rng.random() < 0.3)) if item is not None]
    if len(items) < 2 or items[0].name.lower() == items[1].name.lower():
        return None
    drawn = _two_values(ctx, items)
    if drawn is None:
        return None
    slots, texts = drawn
    play = in_turn(
        [
            lambda session: play_set(session, slots["name"], slots["value"]),
            lambda session: play_set(session, slots["name2"], slots["value2"]),
        ]
    )
    return Plan("set_two", "setvalue", slots, play, checks.writes(texts), ("const", items[1].name))


@goal("set_two_in", "setvalue", 1.1)
def set_two_in(ctx: Setting) -> Plan | None:
    """In PATH set A to X and B to Y."""
    rng = ctx.rng
    pool = [item for item in [*ctx.facts.constants, *ctx.facts.keys] if len(item.text) < 110]
    table: dict[str, list[Fact]] = {}
    for item in pool:
        if sum((other.name, other.path) == (item.name, item.path) for other in pool) == 1:
            table.setdefault(item.path, []).append(item)
    paths = sorted(path for path, items in table.items() if len({item.name.lower() for item in items}) > 1)
    if not paths:
        return None
    path = rng.choice(paths)
    items = rng.sample(table[path], 2)
    if items[0].name.lower() == items[1].name.lower():
        return None
    drawn = _two_values(ctx, items)
    if drawn is None:
        return None
    slots, texts = drawn
    shown = ctx.path(path)
    play = in_turn(
        [
            lambda session: play_set_in(session, slots["name"], slots["value"], shown),
            lambda session: play_set_in(session, slots["name2"], slots["value2"], shown),
        ]
    )
    return Plan(
        "set_two_in", "setvalue", {**slots, "path": shown}, play, checks.writes(texts), ("file", path)
    )


@goal("rename_two", "rename", 0.9)
def rename_two(ctx: Setting) -> Plan | None:
    """Rename A to X and B to Y."""
    found = [renamable(ctx), renamable(ctx)]
    names = [item[0] for item in found if item is not None]
    if len(names) < 2 or names[0] in names[1] or names[1] in names[0]:
        return None
    first, second = names
    one, two = new_name(ctx, first), new_name(ctx, second)
    if one in (two, second) or two in (one, first) or len(ctx.facts.word_lines(first)) > 7:
        return None
    middle = {
        **ctx.facts.files,
        **{k: v for k, v in expected_rename(ctx, first, one).items() if v is not None},
    }
    after = Setting(type(ctx.facts)(middle), ctx.rng, ctx.words)
    texts = {**expected_rename(ctx, first, one), **expected_rename(after, second, two)}
    play = in_turn(
        [lambda session: play_rename(session, first, one), lambda session: play_rename(session, second, two)]
    )
    slots = {"old": first, "new": one, "old2": second, "new2": two}
    return Plan("rename_two", "rename", slots, play, checks.writes(texts), ("def", two))


@goal("add_line_both", "addline", 1.0)
def add_line_both(ctx: Setting) -> Plan | None:
    """Add one line at the end of two files."""
    rng, files = ctx.rng, ctx.facts.files
    pool = [
        path
        for path, text in sorted(files.items())
        if text.strip() and text.endswith("\n") and not text.endswith("\n\n") and "\r" not in text
        if "__main__" not in text and not text.splitlines()[-1].startswith((" ", "\t"))
        if extension(path) not in ("json", "html", "go")
    ]
    kinds = sorted({extension(path) for path in pool})
    kinds = [kind for kind in kinds if sum(extension(path) == kind for path in pool) > 1]
    if kinds and rng.random() < 0.7:
        kind = rng.choice(kinds)
        paths = rng.sample([path for path in pool if extension(path) == kind], 2)
        line = plain_line(ctx, paths[0])
    else:
        pool = [path for path in pool if extension(path) in HASHED]
        if len(pool) < 2:
            return None
        paths, line = rng.sample(pool, 2), f"# {ctx.words.phrase()}"
    if "`" in line or any(line in files[path] for path in paths):
        return None
    shown = [ctx.path(path) for path in paths]

    def add(path: str) -> Play:
        def play(session: Session) -> tuple[str, str]:
            view = open_end(session, path, f"Add the line {line} at the end of {path}. Read it.")
            append(session, view, line)
            return "The diff shows it.", f"Added `{line}` at the end of `{view.path}`."

        return play

    check = checks.writes({path: f"{files[path]}{line}\n" for path in paths})
    slots = {"line": line, "path": shown[0], "path2": shown[1]}
    play = in_turn([add(shown[0]), add(shown[1])])
    return Plan("add_line_both", "addline", slots, play, check, ("file", paths[1]))

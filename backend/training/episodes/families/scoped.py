"""Renaming inside one function, and names whose home the request tells."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.families.names import expected_rename, new_name, play_rename, swap_word
from k3agent.backend.training.episodes.policy import block, one_definition, open_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.renaming import renames
from k3agent.backend.training.episodes.session import Plan, Report, Session
from k3agent.backend.training.episodes.words import RESERVED


def _inside(ctx: Setting) -> tuple[str, str, str, str] | None:
    """(function, parameter or local, its kind, path) that can be renamed in that function alone."""
    pool = [
        item
        for item in ctx.facts.definitions
        if item.kind == "function" and item.path.endswith(".py") and len(ctx.facts.defined(item.name)) == 1
    ]
    for _ in range(4):
        if not pool:
            return None
        item = ctx.rng.choice(pool)
        text = ctx.facts.files[item.path]
        body = text.splitlines()[item.line - 1 : item.end]
        names = {name: "parameter" for name in item.params}
        names |= {
            match[1]: "variable"
            for line in body[1:]
            if (match := re.match(r"^\s+([a-z_]\w*) = ", line)) and match[1] not in names
        }
        names = {name: kind for name, kind in names.items() if name not in RESERVED and len(name) > 1}
        if not names or len(body) > 40 or "\r" in text:
            continue
        name = ctx.rng.choice(sorted(names))
        word = re.compile(rf"\b{re.escape(name)}\b")
        rows = [line for line in body if word.search(line)]
        named = re.compile(rf"[.'\"]{re.escape(name)}\b|\b{re.escape(name)}=|\b{re.escape(name)}['\"]")
        if len(rows) <= 6 and not any(named.search(line) for line in rows):
            return item.name, name, names[name], item.path
    return None


@goal("rename_inside", "rename", 1.2)
def rename_inside(ctx: Setting) -> Plan | None:
    """Rename the parameter OLD of a function to NEW."""
    found = _inside(ctx)
    if found is None:
        return None
    function, old, kind, path = found
    item = ctx.facts.defined(function)[0]
    text = ctx.facts.files[path]
    new = ctx.unused(ctx.words.variable)
    if new in RESERVED or ctx.facts.with_text(f"{function}({old}=") or not checks.compiles(text):
        return None
    said = ctx.rng.choice(("argument", "param", kind)) if kind == "parameter" else kind

    def play(session: Session) -> tuple[str, str]:
        task = f"Rename the {said} {old} of {function} to {new}."
        name, hit = one_definition(session, function, f"{task} Find the function.")
        view = open_file(session, hit.path, f"It is at {hit.at}. Read it.", offset=hit.line, limit=45)
        rows, _ = block(view.lines, hit.line)
        rows = [(number, row) for number, row in rows if re.search(rf"\b{re.escape(old)}\b", row)]
        if not rows:
            raise Report(
                f"{name} has no {old}.", f"`{name}` in `{hit.path}` has no `{old}`. Nothing was changed."
            )
        numbers = ", ".join(str(number) for number, _ in rows)
        think = f"{old} is in lines {numbers}. Only these change."
        for number, row in rows:
            line = row.strip()
            change_line(session, hit.path, number, line, swap_word(line, old, new), think)
            think = "Next line."
        return "All changed.", f"Renamed `{old}` to `{new}` in `{name}` (`{hit.path}`, lines {numbers})."

    lines = text.splitlines(keepends=True)
    body = swap_word("".join(lines[item.line - 1 : item.end]), old, new)
    expected = "".join([*lines[: item.line - 1], body, *lines[item.end :]])
    slots = {"kind": said, "old": old, "name": function, "new": new}
    check = checks.writes({path: expected})
    return Plan("rename_inside", "rename", slots, play, check, ("def", function))


@goal("rename_from", "rename", 1.2)
def rename_from(ctx: Setting) -> Plan | None:
    """Rename OLD, which is in PATH, to NEW in all files."""
    pool = [item for item in ctx.facts.definitions if not item.name.startswith(("_", "test"))]
    pool += [item for item in ctx.facts.constants if len(item.name) > 3]
    for _ in range(4):
        if not pool:
            return None
        item = ctx.rng.choice(pool)
        old = item.name
        lines = ctx.facts.word_lines(old)
        longer = sum(old in text for text in ctx.facts.files.values()) and any(
            re.search(rf"\w{re.escape(old)}|{re.escape(old)}\w", text) for text in ctx.facts.files.values()
        )
        wanted = len({path for path, _, _ in lines}) > 1 or longer
        if 1 < len(lines) <= 12 and len(old) > 2 and (wanted or ctx.rng.random() < 0.3):
            break
    else:
        return None
    new, shown = new_name(ctx, old), ctx.path(item.path)
    check = renames(expected_rename(ctx, old, new))
    slots = {"old": old, "new": new, "path": shown}
    return Plan("rename_from", "rename", slots, lambda s: play_rename(s, old, new), check, ("def", new))

"""Small changes of a line: commented out, brought back, a type said; and undoing when nothing was done."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.functions import one_line
from k3agent.backend.training.episodes.policy import esc, one_definition, search_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session, TooLong

HASHED = ("py", "py", "sh", "toml", "yaml", "yml", "env", "conf")
TYPES = (
    "int",
    "str",
    "float",
    "bool",
    "bytes",
    "list",
    "dict",
    "list[str]",
    "list[int]",
    "dict[str, int]",
    "set[str]",
)
OPTIONAL = ("str | None", "int | None", "tuple[int, int]", "None")
NOTHING_DONE = "I have changed nothing so far, so there is nothing to undo. Which change do you mean?"


def _statement(ctx: Setting) -> tuple[str, int, str] | None:
    """(path, number, text) of a whole statement that the file can do without, found by its text alone."""
    path = ctx.choose([path for path in ctx.facts.files if extension(path) in HASHED])
    if not isinstance(path, str) or "\r" in ctx.facts.files[path]:
        return None
    text = ctx.facts.files[path]
    lines = text.splitlines()
    pool = []
    for number, line in enumerate(lines, 1):
        row = line.strip()
        alone = sum(row in other for other in lines) == 1
        if not 4 <= len(row) <= 60 or not alone or row.startswith("#") or "`" in row or '"""' in row:
            continue
        if row.endswith((":", ",", "(", "[", "{", "\\")) or row[0] in ")]}":
            continue
        after = checks.replace_line(text, number, commented(line))
        if extension(path) != "py" or checks.compiles(after):
            pool.append((number, row))
    return (path, *ctx.rng.choice(pool)) if pool else None


def commented(line: str) -> str:
    """The line as a comment, as far in as it was."""
    row = line.lstrip()
    return f"{line[: len(line) - len(row)]}# {row}"


@goal("comment_out", "addline", 1.2)
def comment_out(ctx: Setting) -> Plan | None:
    """Make a line a comment."""
    return _comment(ctx, "comment_out")


@goal("comment_in", "addline", 0.7)
def comment_in(ctx: Setting) -> Plan | None:
    """Make a comment a line of code again."""
    return _comment(ctx, "comment_in")


def _comment(ctx: Setting, name: str) -> Plan | None:
    found = _statement(ctx)
    if found is None:
        return None
    path, number, row = found
    shown, text = ctx.path(path), ctx.facts.files[path]
    hidden = checks.replace_line(text, number, commented(text.splitlines()[number - 1]))
    out = name == "comment_out"

    def play(session: Session) -> tuple[str, str]:
        what = f"Comment out {row}" if out else f"Bring back the commented line {row}"
        real, rows = search_file(session, shown, esc(row), f"{what} in {shown}. Find it.")
        if not rows:
            raise Report(
                "It is not there.", f"There is no line with `{row}` in `{real}`. Nothing was changed."
            )
        if len(rows) > 1:
            places = ", ".join(str(hit.line) for hit in rows)
            raise Report(f"{len(rows)} lines.", f"`{row}` stands in lines {places} of `{real}`. Which one?")
        hit, have = rows[0], rows[0].text.strip()
        is_comment = have.startswith("#")
        if is_comment == out:
            state = "a comment already" if out else "no comment"
            raise Report("It is so already.", f"Line {hit.line} of `{real}` is {state}. Nothing was changed.")
        new = f"# {have}" if out else re.sub(r"^#+ ?", "", have)
        think = f"It is line {hit.line}. {'Put # before it.' if out else 'Take the # away.'}"
        change_line(session, real, hit.line, have, new, think)
        done = "Commented out" if out else "Brought back"
        return "The diff shows it.", f"{done} line {hit.line} of `{real}`: `{new}`"

    before, after = (text, hidden) if out else (hidden, text)
    return Plan(
        name,
        "addline",
        {"text": row, "path": shown},
        play,
        checks.writes({path: after}),
        ("file", path),
        prepare=None if out else lambda files: files.update({path: before}),
    )


@goal("hint_param", "addfunc", 1.2)
def hint_param(ctx: Setting) -> Plan | None:
    """Give a parameter a type that is said."""
    found = one_line(ctx, "function", "method")
    if found is None:
        return None
    one, head = found
    free = [item for item in one.params if re.search(rf"[(,] ?{re.escape(item)}[,)=]", head)]
    if not free:
        return None
    param, hint = ctx.rng.choice(free), ctx.rng.choice(TYPES + OPTIONAL[:3])

    def typed(line: str) -> str:
        line = re.sub(rf"([(,] ?){re.escape(param)}=", rf"\1{param}: {hint} = ", line)
        return re.sub(rf"([(,] ?){re.escape(param)}(?=[,)])", rf"\1{param}: {hint}", line)

    def play(session: Session) -> tuple[str, str]:
        task = f"The parameter {param} of {one.name} gets the type {hint}. Find the definition."
        name, hit = one_definition(session, one.name, task)
        old = hit.text.strip()
        if typed(old) == old:
            raise Report(
                "No such parameter to change.",
                f"`{old}` has no `{param}` without a type. Nothing was changed.",
            )
        change_line(
            session, hit.path, hit.line, old, typed(old), f"It is at {hit.at}: {old}. Put {param}: {hint}."
        )
        return "The diff shows it.", f"`{param}` of `{name}` is `{hint}` now (`{hit.path}`, line {hit.line})."

    expected = checks.replace_line(ctx.facts.files[one.path], one.line, typed(head))
    slots = {"name": ctx.called(one), "param": param, "hint": hint}
    return Plan("hint_param", "addfunc", slots, play, checks.writes({one.path: expected}), ("def", one.name))


@goal("hint_return", "addfunc", 1.1)
def hint_return(ctx: Setting) -> Plan | None:
    """Give a function a return type that is said."""
    found = one_line(ctx, "function", "method")
    if found is None:
        return None
    one, head = found
    if "->" in head or not head.endswith("):"):
        return None
    hint = ctx.rng.choice(TYPES + OPTIONAL)

    def play(session: Session) -> tuple[str, str]:
        task = f"{one.name} gets the return type {hint}. Find the definition."
        name, hit = one_definition(session, one.name, task)
        old = hit.text.strip()
        if "->" in old or not old.endswith("):"):
            raise Report("It has one.", f"`{old}` has a return type already. Nothing was changed.")
        new = f"{old[:-1]} -> {hint}:"
        change_line(session, hit.path, hit.line, old, new, f"It is at {hit.at}: {old}. Add -> {hint}.")
        return "The diff shows it.", f"`{name}` returns `{hint}` now (`{hit.path}`, line {hit.line})."

    expected = checks.replace_line(ctx.facts.files[one.path], one.line, f"{head[:-1]} -> {hint}:")
    slots = {"name": ctx.called(one), "hint": hint}
    return Plan("hint_return", "addfunc", slots, play, checks.writes({one.path: expected}), ("def", one.name))


@goal("undo_nothing", "refuse", 0.9)
def undo_nothing(ctx: Setting) -> Plan | None:
    """Asked to undo before anything was done."""

    def play(session: Session) -> tuple[str, str]:
        calls = [call for message in session.messages for call in message.get("tool_calls", ())]
        if any(call["function"]["name"] in ("edit", "write", "shell") for call in calls):
            raise TooLong  # something may have been changed: then this wish means that
        return "I have changed nothing in this session. Say so.", NOTHING_DONE

    return Plan("undo_nothing", "refuse", {}, play, checks.declines("nothing"))

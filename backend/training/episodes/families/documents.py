"""Markdown: headings, bullets, checkboxes."""

import re
from collections.abc import Callable

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.families.adding import append, open_end, squeeze
from k3agent.backend.training.episodes.policy import Hit, View, esc, open_file, search_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session

BULLET = re.compile(r"^(\s*)([-*])( \[[ xX]\])? (.*)$")


def _documents(ctx: Setting) -> list[str]:
    return [path for path, text in ctx.facts.files.items() if path.endswith(".md") and text.strip()]


@goal("add_heading", "addline", 0.9)
def add_heading(ctx: Setting) -> Plan | None:
    """Add a section at the end."""
    path = ctx.choose(_documents(ctx))
    if not isinstance(path, str):
        return None
    title, shown, text = ctx.words.title(), ctx.path(path), ctx.facts.files[path]
    if title in text:
        return None

    def play(session: Session) -> tuple[str, str]:
        view = open_end(session, shown, f"Add the heading {title} to {shown}. Read it.")
        append(session, view, f"## {title}", gap=1)
        return "The diff shows it.", f"Added the heading `## {title}` at the end of `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        rows = [row for row in after.splitlines() if re.fullmatch(rf"#{{1,4}} {re.escape(title)}", row)]
        if len(rows) != 1:
            return f"{path} lacks the heading {title}"
        return checks.unchanged(outcome, path) or (
            None if squeeze(after.replace(rows[0], "")) == squeeze(text) else "other lines changed"
        )

    return Plan("add_heading", "addline", {"text": title, "path": shown}, play, check, ("file", path))


@goal("add_bullet", "addline", 1.0)
def add_bullet(ctx: Setting) -> Plan | None:
    """Add an item to the last list."""
    path = ctx.choose(_documents(ctx))
    if not isinstance(path, str):
        return None
    item, shown, text = ctx.words.phrase(), ctx.path(path), ctx.facts.files[path]

    def play(session: Session) -> tuple[str, str]:
        view: View = open_file(session, shown, f"Add the bullet {item} to {shown}. Read it.")
        marks = [(number, row) for number, row in view.lines if BULLET.match(row)]
        if not marks:
            if view.lines and view.lines[-1][0] < view.total:
                view = open_end(session, view.path, "No list so far. Read the end.")
            append(session, view, f"- {item}", gap=1)
            return "The diff shows it.", f"Added `- {item}` at the end of `{view.path}`."
        number, row = marks[-1]
        match = BULLET.match(row)
        assert match is not None
        box = " [ ]" if match[3] else ""
        old = row.strip()
        fresh = f"{match[2]}{box} {item}"
        change_line(
            session,
            view.path,
            number,
            old,
            f"{old}\n{match[1]}{fresh}",
            f"The last item is line {number}: {old}. Add {fresh} after it.",
        )
        return "The diff shows it.", f"Added `{fresh}` to the list in `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        rows = [
            row for row in after.splitlines() if re.fullmatch(rf"\s*[-*+]( \[ \])? {re.escape(item)}", row)
        ]
        if len(rows) != 1:
            return f"{path} lacks the bullet {item}"
        rest = after.splitlines()
        rest.remove(rows[0])
        return checks.unchanged(outcome, path) or (
            None if squeeze("\n".join(rest)) == squeeze(text) else "other lines changed"
        )

    return Plan("add_bullet", "addline", {"text": item, "path": shown}, play, check, ("file", path))


def find_item(session: Session, path: str, said: str, task: str, wanted: str) -> tuple[str, Hit]:
    """The only list item that contains a text; a report where there is none or are several."""
    path, rows = search_file(session, path, esc(said), f"{task} Find it.")
    rows = [row for row in rows if BULLET.match(row.text)]
    if not rows:
        raise Report(
            f"{path} has no such item.", f"There is no {wanted} `{said}` in `{path}`. Nothing was changed."
        )
    if len(rows) > 1:
        numbers = ", ".join(str(row.line) for row in rows)
        raise Report(
            "Several fit.", f"Several items of `{path}` contain `{said}`: lines {numbers}. Which one?"
        )
    return path, rows[0]


def part_of(ctx: Setting, path: str, item: str) -> str:
    """An item as the user names it: whole, or by some of its words in a row."""
    words = item.split()
    if ctx.rng.random() < 0.5 and len(words) > 2:
        count = ctx.rng.randint(1 if len(max(words, key=len)) > 5 else 2, len(words) - 1)
        first = ctx.rng.randrange(len(words) - count + 1)
        part = " ".join(words[first : first + count]).strip(".,")
        lines = [line for line in ctx.facts.files[path].splitlines() if part in line]
        if len(lines) == 1 and len(part) > 4:
            return part
    return item


def _item_goal(
    ctx: Setting, name: str, pattern: str, change: Callable[[str], str], said_as: str
) -> Plan | None:
    """A goal that changes one list item's line."""
    pool = [
        (path, number, match[1], line)
        for path in _documents(ctx)
        for number, line in enumerate(ctx.facts.files[path].splitlines(), 1)
        if (match := re.match(pattern, line)) and ctx.facts.files[path].count(match[1]) == 1
    ]
    if not pool:
        return None
    path, number, item, line = ctx.rng.choice(pool)
    shown, said = ctx.path(path), part_of(ctx, path, item)

    def play(session: Session) -> tuple[str, str]:
        task = f"{said_as} {said} in {shown}."
        real, row = find_item(session, shown, said, task, "item")
        old = row.text.strip()
        fresh = change(old)
        if fresh == old:
            raise Report(
                "It is so already.", f"Line {row.line} of `{real}` is already `{old}`; nothing to change."
            )
        change_line(session, real, row.line, old, fresh, f"Line {row.line} is {old}. It becomes {fresh}.")
        return "The diff shows it.", f"Line {row.line} of `{real}` is now `{fresh}`."

    fresh = line[: len(line) - len(line.lstrip())] + change(line.strip())
    check = checks.writes({path: checks.replace_line(ctx.facts.files[path], number, fresh)})
    return Plan(name, "addline", {"text": said, "path": shown}, play, check, ("file", path))


@goal("untick_checkbox", "addline", 0.7)
def untick_checkbox(ctx: Setting) -> Plan | None:
    """Make a ticked box open again."""
    return _item_goal(
        ctx,
        "untick_checkbox",
        r"^\s*[-*] \[[xX]\] (.*)$",
        lambda line: re.sub(r"\[[xX]\]", "[ ]", line, count=1),
        "Untick",
    )


@goal("strike_item", "addline", 0.5)
def strike_item(ctx: Setting) -> Plan | None:
    """Strike a list item out."""

    def strike(line: str) -> str:
        match = BULLET.match(line)
        assert match is not None
        head = line[: len(line) - len(match[4])]
        return line if match[4].startswith("~~") else f"{head}~~{match[4]}~~"

    return _item_goal(ctx, "strike_item", r"^\s*[-*] (?:\[[ xX]\] )?([^~\s].*)$", strike, "Strike out")


def _line_goal(ctx: Setting, name: str, pattern: str, fresh: Callable[[str], str], words: str) -> Plan | None:
    """A goal that changes the text in group 2 of one line, which group 1 names."""
    pool = [
        (path, number, match)
        for path in _documents(ctx)
        for number, line in enumerate(ctx.facts.files[path].splitlines(), 1)
        if (match := re.search(pattern, line)) and ctx.facts.files[path].count(match[1]) == 1
    ]
    if not pool:
        return None
    path, number, match = ctx.rng.choice(pool)
    said, old, line, shown = match[1], match[2], match.string, ctx.path(path)
    new = fresh(old)
    if new == old or line.count(old) != 1:
        return None

    def play(session: Session) -> tuple[str, str]:
        task = f"{words} {said} in {shown} becomes {new}."
        real, rows = search_file(session, shown, esc(said), f"{task} Find it.")
        rows = [row for row in rows if re.search(pattern, row.text)]
        if not rows:
            raise Report(f"{real} has none.", f"I found no `{said}` in `{real}`. Nothing was changed.")
        row = rows[0].text.strip()
        change_line(session, real, rows[0].line, row, row.replace(old, new), f"Line {rows[0].line} is {row}.")
        return "The diff shows it.", f"Line {rows[0].line} of `{real}` is now `{row.replace(old, new)}`."

    text = checks.replace_line(ctx.facts.files[path], number, line.replace(old, new))
    slots = {"text": said, "new": new, "path": shown}
    return Plan(name, "replace", slots, play, checks.writes({path: text}), ("file", path))


@goal("change_heading", "replace", 0.8)
def change_heading(ctx: Setting) -> Plan | None:
    """Give a heading another text."""
    return _line_goal(ctx, "change_heading", r"^#+ ((.+))$", lambda old: ctx.words.title(), "The heading")


@goal("change_link", "replace", 0.6)
def change_link(ctx: Setting) -> Plan | None:
    """Let a link go to another address."""

    def fresh(old: str) -> str:
        if "://" in old:
            return f"https://{ctx.words.noun()}.org/{ctx.words.noun()}"
        return f"docs/{ctx.words.noun()}.md"

    return _line_goal(ctx, "change_link", r"\[([^\]]+)\]\(([^)]+)\)", fresh, "The link")


@goal("tick_checkbox", "addline", 1.0)
def tick_checkbox(ctx: Setting) -> Plan | None:
    """Tick a checkbox."""
    pool = [
        (path, number, match[1], line)
        for path in _documents(ctx)
        for number, line in enumerate(ctx.facts.files[path].splitlines(), 1)
        if (match := re.match(r"^\s*[-*] \[ \] (.*)$", line)) and ctx.facts.files[path].count(match[1]) == 1
    ]
    if not pool:
        return None
    path, number, item, line = ctx.rng.choice(pool)
    shown = ctx.path(path)
    said = part_of(ctx, path, item)

    def play(session: Session) -> tuple[str, str]:
        real, row = find_item(session, shown, said, f"Tick {said} in {shown}.", "checkbox")
        old = row.text.strip()
        if "[ ]" not in old:
            raise Report(
                "It is ticked already.", f"`{said}` is already ticked in `{real}`; nothing to change."
            )
        fresh = old.replace("[ ]", "[x]", 1)
        change_line(session, real, row.line, old, fresh, f"Line {row.line} is {old}. It becomes {fresh}.")
        return "The diff shows it.", f"Ticked `{said}` in `{real}` (line {row.line})."

    check = checks.writes(
        {path: checks.replace_line(ctx.facts.files[path], number, line.replace("[ ]", "[x]", 1))}
    )
    return Plan("tick_checkbox", "addline", {"text": said, "path": shown}, play, check, ("file", path))

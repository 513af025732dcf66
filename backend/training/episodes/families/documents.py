"""Markdown: headings, bullets, checkboxes."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.adding import append, open_end, squeeze
from k3agent.backend.training.episodes.policy import View, change_line, esc, open_file, search_file
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
    said = item
    if ctx.rng.random() < 0.2:
        words = item.split()
        part = " ".join(words[: max(2, len(words) - 2)])
        if ctx.facts.files[path].count(part) == 1:
            said = part

    def play(session: Session) -> tuple[str, str]:
        real, rows = search_file(session, shown, esc(said), f"Tick {said} in {shown}. Find it.")
        rows = [row for row in rows if BULLET.match(row.text)]
        if not rows:
            raise Report(
                f"{real} has no such item.",
                f"There is no checkbox `{said}` in `{real}`. Nothing was changed.",
            )
        if len(rows) > 1:
            raise Report(
                "Several fit.",
                f"Several items of `{real}` contain `{said}`: lines "
                f"{', '.join(str(r.line) for r in rows)}. Which one?",
            )
        old = rows[0].text.strip()
        if "[ ]" not in old:
            raise Report(
                "It is ticked already.", f"`{said}` is already ticked in `{real}`; nothing to change."
            )
        fresh = old.replace("[ ]", "[x]", 1)
        change_line(
            session, real, rows[0].line, old, fresh, f"Line {rows[0].line} is {old}. It becomes {fresh}."
        )
        return "The diff shows it.", f"Ticked `{said}` in `{real}` (line {rows[0].line})."

    check = checks.writes(
        {path: checks.replace_line(ctx.facts.files[path], number, line.replace("[ ]", "[x]", 1))}
    )
    return Plan("tick_checkbox", "addline", {"text": said, "path": shown}, play, check, ("file", path))

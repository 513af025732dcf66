"""Markdown by its parts: rows and cells of tables, items and whole sections under a heading."""

import re
from dataclasses import dataclass

from k3agent.backend.training.episodes import checks, literals
from k3agent.backend.training.episodes.editing import change_line, edit_text
from k3agent.backend.training.episodes.families.adding import append, squeeze
from k3agent.backend.training.episodes.policy import View, open_file, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Play, Report, Session

HEADING = re.compile(r"^(#+) (.+?)\s*$")
RULE = re.compile(r"^\|[\s:|-]+\|\s*$")
COLUMNS = ("Name", "Key", "Option", "File", "Command", "Field", "Step", "Tool")
MORE = ("Default", "Value", "Meaning", "Owner", "Status", "Unit", "Since", "Type", "Limit")


@dataclass(slots=True)
class Page:
    """A document with sections and a table."""

    path: str
    text: str
    titles: list[str]
    header: list[str]
    rows: list[list[str]]


def cells_of(row: str) -> list[str]:
    """The cells of a table's line."""
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def draw_page(ctx: Setting) -> Page | None:
    """A document under a new name."""
    rng, words = ctx.rng, ctx.words
    header = [rng.choice(COLUMNS), *rng.sample(MORE, rng.choice((1, 1, 2, 3)))]
    rows = [[_cell(ctx, column) for column in range(len(header))] for _ in range(rng.randint(2, 5))]
    if len({row[0] for row in rows}) < len(rows):
        return None
    titles = [words.title() for _ in range(rng.choice((2, 3, 3, 4)))]
    if len({title.lower() for title in titles}) < len(titles):
        return None
    at = rng.randrange(len(titles))
    lines = [f"# {words.title()}", "", f"{words.phrase().capitalize()}."]
    mark = rng.choice("-*")
    for number, title in enumerate(titles):
        lines += ["", f"## {title}", ""]
        if number == at:
            lines += _table(header, rows, padded=rng.random() < 0.4)
        elif rng.random() < 0.75:
            lines += [f"{mark} {words.phrase()}" for _ in range(rng.randint(1, 4))]
        else:
            lines.append(f"{words.phrase().capitalize()}.")
    folder = rng.choice(("", "docs/", "docs/", f"{words.noun()}/"))
    path = f"{folder}{rng.choice((words.noun(), 'GUIDE', 'OPTIONS', 'reference', words.noun()))}.md"
    if path in ctx.facts.files:
        return None
    return Page(path, "\n".join(lines) + "\n", titles, header, rows)


def _cell(ctx: Setting, column: int) -> str:
    rng, words = ctx.rng, ctx.words
    if not column:
        return rng.choice(
            (words.noun(), words.noun(), f"{words.noun()}_{words.noun()}", f"{words.noun()}.py")
        )
    text = rng.choice(
        (
            words.noun(),
            str(rng.randint(0, 9999)),
            f"{words.adjective()} {words.noun()}",
            literals.version(rng, words),
            rng.choice(("yes", "no", "open", "done")),
            f"{words.noun()}@{words.noun()}.org",
        )
    )
    return text.replace("|", "/").replace(",", "")


def _table(header: list[str], rows: list[list[str]], *, padded: bool) -> list[str]:
    """The lines of a table; padded: columns under each other."""
    widths = [max(len(row[at]) for row in [header, *rows]) if padded else 0 for at in range(len(header))]
    rule = ["-" * max(3, width) for width in widths]

    def line(row: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"

    return [line(header), line(rule), *(line(row) for row in rows)]


def says_rows(path: str, before: str, wanted: list[list[str]]) -> Check:
    """The table has these rows, and all other lines are as they were."""

    def rest(text: str) -> str:
        return squeeze("\n".join(row for row in text.splitlines() if not row.startswith("|")))

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        rows = [cells_of(row) for row in after.splitlines() if row.startswith("|") and not RULE.match(row)]
        if rows[1:] != wanted:
            return f"the table in {path} is not as asked"
        return checks.unchanged(outcome, path) or (
            None if rest(after) == rest(before) else f"{path} was changed elsewhere"
        )

    return check


def _plan(name: str, slots: dict[str, str], play: Play, check: Check, page: Page) -> Plan:
    fresh, subject = {page.path: page.text}, ("file", page.path)
    return Plan(name, "data", slots, play, check, subject, prepare=lambda files: files.update(fresh))


def _find_table(view: View) -> list[tuple[int, str]]:
    """The lines of the first table: header, rule, rows."""
    rows = [(number, row) for number, row in view.lines if row.startswith("|")]
    if len(rows) < 2:
        raise Report("No table there.", f"There is no table in `{view.path}`. Nothing was changed.")
    return rows


@goal("add_row", "data", 1.4, level=1)
def add_row(ctx: Setting) -> Plan | None:
    """Add a row to a table."""
    page = draw_page(ctx)
    if page is None:
        return None
    cells = [_cell(ctx, column) for column in range(len(page.header))]
    if cells[0] in page.text:
        return None
    said = ctx.rng.choice((", ", ", ", " | ")).join(cells)

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, page.path, f"Add a row with {said} to the table in {page.path}. Read it.")
        number, row = _find_table(view)[-1]
        old = row.strip()
        fresh = "| " + " | ".join(cells) + " |"
        think = f"The table's last row is line {number}: {old} Add after it."
        change_line(session, view.path, number, old, f"{old}\n{fresh}", think)
        return "The diff shows it.", f"Added the row `{fresh}` to the table in `{view.path}`."

    check = says_rows(page.path, page.text, [*page.rows, cells])
    return _plan("add_row", {"cells": said, "path": page.path}, play, check, page)


@goal("set_cell", "data", 1.4, level=1)
def set_cell(ctx: Setting) -> Plan | None:
    """Change a cell of a table, named by its row and its column."""
    page = draw_page(ctx)
    if page is None:
        return None
    at, column = ctx.rng.randrange(len(page.rows)), ctx.rng.randrange(1, len(page.header))
    row, new = page.rows[at][0], _cell(ctx, column)
    if new == page.rows[at][column] or sum(item[0] == row for item in page.rows) > 1:
        return None
    wanted = [list(item) for item in page.rows]
    wanted[at][column] = new
    title = page.header[column] if ctx.rng.random() < 0.6 else page.header[column].lower()

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, page.path, f"Set {title} of {row} in the table of {page.path}. Read it.")
        table = _find_table(view)
        names = [cell.lower() for cell in cells_of(table[0][1])]
        if title.lower() not in names:
            shown = quoted(cells_of(table[0][1]))
            raise Report(
                "No such column.", f"The table in `{view.path}` has no column `{title}`, only {shown}."
            )
        number, line = next(((n, text) for n, text in table[2:] if cells_of(text)[0] == row), (0, ""))
        if not number:
            raise Report(
                "No such row.", f"The table in `{view.path}` has no row `{row}`. Nothing was changed."
            )
        place = names.index(title.lower())
        cells = line.strip().strip("|").split("|")
        think = f"{row} is line {number}; its {title} is {cells[place].strip()}."
        cells[place] = f" {new} ".ljust(len(cells[place]))
        change_line(session, view.path, number, line.strip(), f"|{'|'.join(cells)}|", think)
        return "The diff shows it.", f"{title} of `{row}` in `{view.path}` is now `{new}`."

    slots = {"row": row, "column": title, "value": new, "path": page.path}
    return _plan("set_cell", slots, play, says_rows(page.path, page.text, wanted), page)


def section_of(view: View, title: str) -> list[tuple[int, str]]:
    """The heading of this title and the lines under it."""
    at = next(
        (
            index
            for index, (_, row) in enumerate(view.lines)
            if (match := HEADING.match(row)) and match[2].lower() == title.lower()
        ),
        None,
    )
    if at is None:
        titles = [match[2] for _, row in view.lines if (match := HEADING.match(row))]
        raise Report(
            f"There is no section {title}.",
            f"There is no section `{title}` in `{view.path}`. It has: {quoted(titles, 8)}."
            " Nothing was changed.",
        )
    found = [view.lines[at]]
    level = len(HEADING.match(view.lines[at][1])[1])  # type: ignore[index]
    for number, row in view.lines[at + 1 :]:
        match = HEADING.match(row)
        if match and len(match[1]) <= level:
            break
        found.append((number, row))
    return found


@goal("add_item_in", "data", 1.5, level=1)
def add_item_in(ctx: Setting) -> Plan | None:
    """Add a list item under a heading."""
    page = draw_page(ctx)
    if page is None:
        return None
    title, item = ctx.rng.choice(page.titles), ctx.words.phrase()
    missing = ctx.rng.random() < 0.06
    if missing:
        title = ctx.words.title()
    if item in page.text or (missing and title.lower() in page.text.lower()):
        return None

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, page.path, f"Add the item {item} under {title} in {page.path}. Read it.")
        lines = [(number, row) for number, row in section_of(view, title) if row.strip()]
        number, row = lines[-1]
        match = re.match(r"^(\s*)([-*]) ", row)
        mark = match[2] if match else "-"
        gap = "\n" if match else "\n\n"
        think = f"The section {title} ends with line {number}: {row.strip()} Add the item after it."
        change_line(session, view.path, number, row.strip(), f"{row.strip()}{gap}{mark} {item}", think)
        return "The diff shows it.", f"Added `{mark} {item}` under `{title}` in `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        rows = [row.strip() for row in outcome.after.get(page.path, "").splitlines() if row.strip()]
        have = next((row for row in rows if row in (f"- {item}", f"* {item}")), None)
        if have is None:
            return f"{page.path} lacks the item {item}"
        above = [row for row in rows[: rows.index(have)] if HEADING.match(row)]
        if not above or above[-1] != f"## {title}":
            return f"the item is not under {title}"
        rows.remove(have)
        same = rows == [row.strip() for row in page.text.splitlines() if row.strip()]
        return checks.unchanged(outcome, page.path) or (
            None if same else f"{page.path} was changed elsewhere"
        )

    slots = {"text": item, "section": title, "path": page.path}
    return _plan("add_item_in", slots, play, checks.declines() if missing else check, page)


@goal("add_section", "data", 1.2, level=1)
def add_section(ctx: Setting) -> Plan | None:
    """Add a section with a line of text at the end."""
    page = draw_page(ctx)
    if page is None:
        return None
    title, line = ctx.words.title(), f"{ctx.words.phrase().capitalize()}."
    if title in page.text:
        return None

    def play(session: Session) -> tuple[str, str]:
        view = open_file(
            session, page.path, f"At the end of {page.path}: ## {title}, and below it: {line} Read it."
        )
        append(session, view, f"## {title}\n\n{line}", gap=1)
        return "The diff shows it.", f"Added the section `{title}` with `{line}` to `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        rows = squeeze(outcome.after.get(page.path, "")).split("\n")
        head = [row for row in rows[-2:-1] if re.fullmatch(rf"##? {re.escape(title)}", row)]
        if not head or rows[-1] != line or squeeze(page.text) != "\n".join(rows[:-2]):
            return f"{page.path} is not as asked"
        return checks.unchanged(outcome, page.path)

    slots = {"title": title, "text": line, "path": page.path}
    return _plan("add_section", slots, play, check, page)


@goal("remove_section", "data", 1.2, level=1)
def remove_section(ctx: Setting) -> Plan | None:
    """Take a section out, its heading too."""
    page = draw_page(ctx)
    if page is None:
        return None
    title = ctx.rng.choice(page.titles)
    rows = page.text.splitlines()
    start = rows.index(f"## {title}")
    end = next((at for at in range(start + 1, len(rows)) if rows[at].startswith("## ")), len(rows))
    wanted = "\n".join(rows[:start] + rows[end:])

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, page.path, f"Remove the section {title} from {page.path}. Read it.")
        lines = section_of(view, title)
        first, last = lines[0][0], lines[-1][0]
        texts = dict(view.lines)
        # With the line before it where it is the last one, so that no blank line stays at the end.
        begin = first if last < view.total else max(1, first - 1)
        old = "\n".join(texts[number] for number in range(begin, last + 1)).lstrip("\n")
        after = texts.get(last + 1)
        new = "" if after is None else after
        old = old if after is None else f"{old}\n{after}"
        think = f"{title} is lines {first} to {last}. Take them out."
        edit_text(session, view.path, old, new, think)
        return "The diff shows it.", f"Removed the section `{title}` from `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        if squeeze(outcome.after.get(page.path, "")) != squeeze(wanted):
            return f"{page.path} is not as asked"
        return checks.unchanged(outcome, page.path)

    return _plan("remove_section", {"section": title, "path": page.path}, play, check, page)


@goal("add_checkbox", "data", 1.4, level=1)
def add_checkbox(ctx: Setting) -> Plan | None:
    """Add an open checkbox to the list of those in a document."""
    rng, words = ctx.rng, ctx.words
    path = (
        f"{rng.choice(('', '', 'docs/'))}{rng.choice(('TODO', 'PLAN', 'tasks', words.noun(), 'RELEASE'))}.md"
    )
    items = [words.phrase() for _ in range(rng.randint(1, 5))]
    item = words.phrase()
    mark = rng.choice("--*")
    rows = [f"{mark} [{rng.choice('  x')}] {text}" for text in items]
    tail = ["", f"## {words.title()}", "", f"{words.phrase().capitalize()}."] if rng.random() < 0.4 else []
    text = "\n".join([f"# {words.title()}", "", *rows, *tail]) + "\n"
    if path in ctx.facts.files or item in text:
        return None
    last = 1 + len(rows)

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, path, f"Add the open checkbox {item} to {path}. Read it.")
        boxes = [(n, row) for n, row in view.lines if re.match(r"\s*[-*] \[[ xX]\] ", row)]
        if not boxes:
            raise Report("No checkboxes.", f"`{view.path}` has no checkboxes. Nothing was changed.")
        number, row = boxes[-1]
        fresh = f"{row.strip()[0]} [ ] {item}"
        think = f"The last checkbox is line {number}: {row.strip()} Add {fresh} after it."
        change_line(session, view.path, number, row.strip(), f"{row.strip()}\n{fresh}", think)
        return "The diff shows it.", f"Added `{fresh}` to `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        have = [row.strip() for row in after.splitlines() if row.strip()]
        wanted = [
            row.strip() for row in checks.insert_line(text, last + 1, f"{mark} [ ] {item}").splitlines()
        ]
        if have != [row for row in wanted if row]:
            return f"{path} is not as asked"
        return checks.unchanged(outcome, path)

    fresh = {path: text}
    return Plan(
        "add_checkbox",
        "data",
        {"text": item, "path": path},
        play,
        check,
        ("file", path),
        prepare=lambda files: files.update(fresh),
    )

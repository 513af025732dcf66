"""Adding and deleting lines at given places of a file."""

from k3agent.backend.training.episodes import checks, literals
from k3agent.backend.training.episodes.editing import change_line, edit_text
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.policy import View, esc, open_file, search_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

TAIL = 10


def squeeze(text: str) -> str:
    """Without blank lines and line-end differences."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def open_end(session: Session, path: str, think: str) -> View:
    """Read a file so that its last lines are seen."""
    view = open_file(session, path, think)
    if view.lines and view.lines[-1][0] < view.total:
        start = max(1, view.total - TAIL + 1)
        more = open_file(session, view.path, f"{view.total} lines. Read the end.", offset=start, limit=TAIL)
        return View(view.path, more.lines, view.total)
    return view


def last_line(view: View) -> tuple[int, str] | None:
    """The last line that is not blank."""
    return next(((number, text) for number, text in reversed(view.lines) if text.strip()), None)


def append(session: Session, view: View, new: str, gap: int = 0) -> str:
    """Put text after the last line; the path's report word."""
    last = last_line(view)
    if last is None:
        session.call("write", f"{view.path} is empty. Write it.", path=view.path, content=new + "\n")
        return "1"
    number, text = last
    old = text.strip()
    think = f"The last line is {number}: {old}. Add after it."
    edit_text(session, view.path, old, old + "\n" * (gap + 1) + new, think, line=number)
    return str(number + gap + 1)


def plain_line(ctx: Setting, path: str) -> str:
    """A new line that suits the file."""
    rng, words = ctx.rng, ctx.words
    match extension(path):
        case "py":
            return rng.choice(
                (
                    f"print('{words.phrase()}')",
                    f"# {words.phrase()}",
                    f"{words.constant()} = {rng.randint(1, 99)}",
                    f"{words.variable()} = '{words.noun()}'",
                    f"print({rng.randint(1, 99)})",
                    f"{words.constant()} = {literals.odd_number(rng)}",
                    f'{words.constant()} = "{literals.version(rng, words)}"',
                )
            )
        case "md":
            return rng.choice(
                (
                    words.phrase().capitalize() + ".",
                    f"- {words.phrase()}",
                    f"See {words.noun()}.md.",
                    f"Version {literals.version(rng, words)} from {literals.date(rng, words)}",
                    f"[{words.title()}](https://{words.noun()}.org/{words.noun()})",
                    f"| {words.noun()} | {rng.randint(1, 99)} |",
                    f"**{words.noun()}**: {words.adjective()} — {literals.place(rng, words)}",
                )
            )
        case "csv":
            return f"{words.noun()},{rng.randint(1, 500)},{words.adjective()}"
        case "js" | "ts":
            return rng.choice(
                (
                    f"console.log('{words.noun()}');",
                    f"// {words.phrase()}",
                    f"const {words.variable('camel')} = {rng.randint(1, 99)};",
                )
            )
        case "sh":
            return rng.choice(
                (f"echo {words.noun()}", f"# {words.phrase()}", f"{words.constant()}={words.noun()}")
            )
        case "ini" | "cfg" | "toml":
            value = rng.choice((str(rng.randint(1, 99)), f'"{literals.version(rng, words)}"', "true"))
            return f"{words.noun()}_{words.noun()} = {value}"
        case "yaml" | "yml":
            value = rng.choice((str(rng.randint(1, 99)), f"/{words.noun()}/{words.noun()}.log", "true"))
            return f"{words.noun()}_{words.noun()}: {value}"
        case "env" | "conf":
            value = rng.choice((words.noun(), literals.version(rng, words), str(rng.randint(1, 9999))))
            return f"{words.constant()}={value}"
        case "log":
            return f"{rng.choice(('INFO', 'ERROR', 'WARNING'))} {words.phrase()}"
        case "css":
            return f".{words.noun()} {{ color: red; }}"
    if path.endswith("Dockerfile"):
        return f"{rng.choice(('ENV', 'ARG'))} {words.constant()}={literals.version(rng, words)}"
    return rng.choice((words.noun(), words.phrase(), words.phrase().capitalize() + "."))


def _target(ctx: Setting, *, empty: bool = False) -> str | None:
    pool = [
        path
        for path, text in ctx.facts.files.items()
        if (text.strip() or empty) and extension(path) not in ("json", "html", "go")
    ]
    return ctx.rng.choice(pool) if pool else None


@goal("add_line_end", "addline", 1.8)
def add_line_end(ctx: Setting) -> Plan | None:
    """Put a line at the end of a file."""
    path = _target(ctx, empty=ctx.rng.random() < 0.1)
    if path is None:
        return None
    line, shown = plain_line(ctx, path), ctx.path(path)
    if path.endswith("__init__.py"):
        shown = path

    def play(session: Session) -> tuple[str, str]:
        view = open_end(session, shown, f"Add the line {line} at the end of {shown}. Read it.")
        append(session, view, line)
        return "The diff shows it.", f"Added `{line}` at the end of `{view.path}`."

    text = ctx.facts.files[path].rstrip()
    check = checks.writes({path: f"{text}\n{line}\n" if text else line})
    if text:
        check = by_squeeze(path, f"{text}\n{line}")
    return Plan("add_line_end", "addline", {"line": line, "path": shown}, play, check, ("file", path))


def by_squeeze(path: str, expected: str) -> Check:
    """The file equals the expected text but for blank lines."""

    def check(outcome: Outcome) -> str | None:
        if squeeze(outcome.after.get(path, "")) != squeeze(expected):
            return f"{path} is not as asked"
        return checks.unchanged(outcome, path)

    return check


@goal("add_line_start", "addline", 1.2)
def add_line_start(ctx: Setting) -> Plan | None:
    """Put a line at the start of a file."""
    path = _target(ctx)
    if path is None or path.endswith("__init__.py"):
        return None
    line, shown = plain_line(ctx, path), ctx.path(path)
    lines = ctx.facts.files[path].splitlines()
    if not lines[0].strip() or (lines[0].startswith("#!") and (len(lines) < 2 or not lines[1].strip())):
        return None

    def play(session: Session) -> tuple[str, str]:
        view = open_file(
            session, shown, f"Add the line {line} at the top of {shown}. Read the beginning.", limit=3
        )
        if not view.lines:
            append(session, view, line)
            return "Done.", f"Added `{line}` to `{view.path}`."
        first = view.lines[0]
        if first[1].startswith("#!") and len(view.lines) > 1:
            old = first[1]
            change_line(
                session,
                view.path,
                1,
                old,
                f"{old}\n{line}",
                f"Line 1 is {old}; it must stay first. Add after it.",
            )
        else:
            old = first[1].strip()
            change_line(session, view.path, 1, old, f"{line}\n{old}", f"Line 1 is {old}. Add before it.")
        return "The diff shows it.", f"Added `{line}` at the top of `{view.path}`."

    at = 1 if lines[0].startswith("#!") else 0
    expected = "\n".join([*lines[:at], line, *lines[at:]])
    check = by_squeeze(path, expected)
    return Plan("add_line_start", "addline", {"line": line, "path": shown}, play, check, ("file", path))


def _anchor(ctx: Setting) -> tuple[str, str, int] | None:
    """(path, anchor text, line number): a text that stands on one line only."""
    path = _target(ctx)
    if path is None:
        return None
    lines = ctx.facts.files[path].splitlines()
    pool = [
        (number, line.strip())
        for number, line in enumerate(lines, 1)
        if 3 <= len(line.strip()) <= 60
        and sum(1 for other in lines if line.strip() in other) == 1
        and not line.rstrip().endswith((":", ",", "(", "[", "{"))
        and "`" not in line
        and '"""' not in line
    ]
    if not pool:
        return None
    number, text = ctx.rng.choice(pool)
    if ctx.rng.random() < 0.2 and len(text.split()) > 2:
        part = " ".join(text.split()[:2])
        if sum(1 for other in lines if part in other) == 1 and text.startswith(part):
            text = part
    return path, text, number


def _beside(ctx: Setting, after: bool) -> Plan | None:
    found = _anchor(ctx)
    if found is None:
        return None
    path, anchor, number = found
    line, shown = plain_line(ctx, path), ctx.path(path)
    lines = ctx.facts.files[path].splitlines()
    whole = lines[number - 1]
    indent = whole[: len(whole) - len(whole.lstrip())]
    word = "after" if after else "before"

    def play(session: Session) -> tuple[str, str]:
        real, rows = search_file(
            session, shown, esc(anchor), f"Add {line} {word} the line {anchor} in {shown}. Find that line."
        )
        if not rows:
            raise Report(
                f"{real} has no such line.", f"There is no line `{anchor}` in `{real}`. Nothing was changed."
            )
        if len(rows) > 1:
            raise Report(
                f"{len(rows)} lines fit. I must ask.",
                f"`{anchor}` stands in {len(rows)} lines of `{real}`: "
                f"{', '.join(str(row.line) for row in rows)}. Which one do you mean?",
            )
        old = rows[0].text.strip()
        lead = rows[0].text[: len(rows[0].text) - len(rows[0].text.lstrip())]
        new = f"{old}\n{lead}{line}" if after else f"{line}\n{lead}{old}"
        change_line(
            session, real, rows[0].line, old, new, f"It is line {rows[0].line}. Add {line} {word} it."
        )
        return "The diff shows it.", f"Added `{line}` {word} `{anchor}` in `{real}`."

    at = number if after else number - 1
    expected = "\n".join([*lines[:at], indent + line, *lines[at:]])
    slots = {"line": line, "anchor": anchor, "path": shown}
    return Plan(
        "add_after" if after else "add_before",
        "addline",
        slots,
        play,
        by_squeeze(path, expected),
        ("file", path),
    )


@goal("add_after", "addline", 1.2)
def add_after(ctx: Setting) -> Plan | None:
    """Put a line after another."""
    return _beside(ctx, True)


@goal("add_before", "addline", 1.0)
def add_before(ctx: Setting) -> Plan | None:
    """Put a line before another."""
    return _beside(ctx, False)


@goal("delete_line", "addline", 1.8)
def delete_line(ctx: Setting) -> Plan | None:
    """Remove one line."""
    found = _anchor(ctx)
    if found is None:
        return None
    path, anchor, number = found
    text = ctx.facts.files[path]
    lines = text.splitlines()
    if number == len(lines) and not text.endswith("\n"):
        return None
    shown = ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        real, rows = search_file(
            session, shown, esc(anchor), f"Delete the line {anchor} in {shown}. Find it."
        )
        if not rows:
            raise Report(
                f"{real} has no such line.",
                f"There is no line with `{anchor}` in `{real}`. Nothing was changed.",
            )
        if len(rows) > 1:
            raise Report(
                f"{len(rows)} lines fit. I must ask.",
                f"`{anchor}` stands in {len(rows)} lines of `{real}`: "
                f"{', '.join(str(row.line) for row in rows)}. Which one shall I delete?",
            )
        change_line(
            session,
            real,
            rows[0].line,
            rows[0].text + "\n",
            "",
            f"It is line {rows[0].line}. Remove it with its line end.",
        )
        return "The diff shows it gone.", f"Deleted line {rows[0].line} of `{real}`: `{rows[0].text.strip()}`"

    expected = "\n".join(lines[: number - 1] + lines[number:])
    return Plan(
        "delete_line",
        "addline",
        {"text": anchor, "path": shown},
        play,
        by_squeeze(path, expected),
        ("file", path),
    )

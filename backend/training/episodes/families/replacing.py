"""Replacing text in one file or in all."""

import re

from k3agent.backend.training.episodes import checks, literals
from k3agent.backend.training.episodes.editing import change_line, difference, edit_text
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.policy import (
    Hit,
    counted,
    esc,
    hits,
    quoted,
    search_file,
    several,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.renaming import by_path
from k3agent.backend.training.episodes.session import Plan, Report, Session

SHORT = 40


def replace_in(session: Session, path: str, found: list[Hit], old: str, new: str) -> None:
    """Replace all in one file."""
    lines = counted(len(found), "line")
    think = f"{path} has it in {lines}: {several([str(hit.line) for hit in found])}. {old} -> {new}"
    edit_text(session, path, old, new, think, everywhere=True)


def play_replace(session: Session, old: str, new: str, path: str) -> tuple[str, str]:
    """Replace in one file."""
    real, found = search_file(
        session, path, esc(old), f'Replace "{old}" with "{new}" in {path}. Find it there.'
    )
    if not found:
        loose = hits(
            session.call(
                "grep", "Not there. Look in any case.", pattern=esc(old), path=real, ignore_case=True
            )
        )
        if not loose:
            raise Report(
                f'{real} has no "{old}".', f'"{old}" does not occur in `{real}`. Nothing was changed.'
            )
        match = re.search(re.escape(old), loose[0].text, re.IGNORECASE)
        old = match[0] if match else old
        found = [hit for hit in loose if old in hit.text]
    replace_in(session, real, found, old, new)
    number = counted(len(found), "line")
    return "The diff is right.", f'Replaced "{old}" with "{new}" in `{real}` ({number}).'


def play_replace_all(session: Session, old: str, new: str) -> tuple[str, str]:
    """Replace in all files."""
    found = hits(
        session.call("grep", f'Replace "{old}" with "{new}" in all files. Find it.', pattern=esc(old))
    )
    if not found:
        raise Report(f'There is no "{old}".', f'"{old}" occurs nowhere in this project. Nothing was changed.')
    table = by_path(found)
    for path, rows in table.items():
        replace_in(session, path, rows, old, new)
    left = hits(session.call("grep", "All edited. Is any left?", pattern=esc(old)))
    if left and old not in new:
        raise Report(
            f"Some are left: {left[0].at}.", f'"{old}" still occurs in {quoted([hit.at for hit in left])}.'
        )
    number = counted(len(table), "file")
    return (
        f"None is left. Changed {number}: {several(list(table), 10)}.",
        f'Replaced "{old}" with "{new}" in {number}: {quoted(list(table), 10)}.',
    )


def part_of(ctx: Setting, path: str) -> str | None:
    """A piece of one line of a file, bounded by spaces or punctuation, never inside a word."""
    rng = ctx.rng
    lines = [line.strip() for line in ctx.facts.files[path].splitlines() if 3 <= len(line.strip()) <= 90]
    if not lines:
        return None
    line = rng.choice(lines)
    if rng.random() < 0.25 and (len(line) <= SHORT or rng.random() < 0.3) and "`" not in line:
        return line if line.count('"') < 2 else None
    tokens = re.findall(r"[\w.@/:+-]+|[^\w\s]", line)
    odd = re.findall(r"[^\s,;]*[\d$/*@\\—][^\s,;]*[^\s,;.:]", line)
    if odd and rng.random() < 0.35:
        text = rng.choice(odd)
        return text if 2 < len(text) <= SHORT and "`" not in text else None
    words = [match for match in re.finditer(r"[A-Za-z][\w'-]+", line)]
    if rng.random() < 0.7 and words:
        first = rng.randrange(len(words))
        last = min(len(words) - 1, first + rng.choice((0, 0, 1, 2, 3)))
        text = line[words[first].start() : words[last].end()]
    else:
        text = rng.choice(tokens) if tokens else line
    return text if 2 < len(text) <= SHORT and "`" not in text and (text.count('"') < 2) else None


def inside_word(ctx: Setting, path: str, text: str) -> bool:
    body = ctx.facts.files[path]
    before = r"\w" if text[0].isalnum() or text[0] == "_" else r"(?!)"
    after = r"[\w.]*\w" if text[-1].isalnum() or text[-1] == "_" else r"(?!)"
    return bool(re.search(rf"{before}{re.escape(text)}|{re.escape(text)}{after}", body))


def new_text(ctx: Setting, old: str) -> str:
    rng, words = ctx.rng, ctx.words
    for _ in range(20):
        if re.fullmatch(r"-?\d+", old):
            new = str(rng.randint(1, 999))
        elif re.search(r"\d[.:/-]\d|/|@", old) and '"' not in old:
            new = literals.like_text(rng, words, old)
        elif rng.random() < 0.12:
            new = literals.odd_text(rng, words)
        elif re.search(r"\d", old) and rng.random() < 0.7:
            new = re.sub(r"\d+", lambda match: str(int(match[0]) + rng.choice((1, 2, 5, 10))), old, count=1)
        elif rng.random() < 0.15:
            new = rng.choice((f"{words.adjective()} {old}", f"{old} {words.noun()}", f"{words.noun()} {old}"))
        elif old.count(" ") > 1:
            new = rng.choice((words.phrase(), " ".join([*old.split()[:-1], words.noun()])))
        else:
            new = rng.choice(
                (words.noun(), words.adjective(), f"{words.adjective()} {words.noun()}", words.text_value())
            )
            if old[:1].isupper() and rng.random() < 0.7:
                new = new.capitalize()
        if new != old and '"' not in new:
            return new
    return "other"


def breaks(path: str, before: str, after: str) -> bool:
    """Whether a Python file stops parsing: few people ask for that, and the tools warn of it."""
    return path.endswith(".py") and not checks.compiles(after) and checks.compiles(before)


DOCUMENTS = ("md", "txt", "css", "csv", "html", "rst", "ini")


@goal("replace_text", "replace", 2.5)
def replace_text(ctx: Setting) -> Plan | None:
    """Replace OLD with NEW in PATH."""
    pool = [path for path, text in ctx.facts.files.items() if text.strip()]
    documents = [path for path in pool if extension(path) in DOCUMENTS]
    path = ctx.choose(documents if documents and ctx.rng.random() < 0.4 else pool)
    if not isinstance(path, str):
        return None
    old = part_of(ctx, path)
    if old is None or inside_word(ctx, path, old) or ctx.facts.files[path].count(old) > 8:
        return None
    new, shown = new_text(ctx, old), ctx.path(path)
    text = ctx.facts.files[path]
    if breaks(path, text, text.replace(old, new)):
        return None
    check = checks.writes({path: text.replace(old, new)})
    slots = {"old": old, "new": new, "path": shown}
    return Plan(
        "replace_text", "replace", slots, lambda s: play_replace(s, old, new, shown), check, ("file", path)
    )


@goal("replace_text_all", "replace", 1.6)
def replace_text_all(ctx: Setting) -> Plan | None:
    """Replace OLD with NEW everywhere."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if text.strip()])
    if not isinstance(path, str):
        return None
    old = part_of(ctx, path)
    if old is None:
        return None
    places = [other for other, text in ctx.facts.files.items() if old in text]
    if len(places) > 4 or any(
        inside_word(ctx, other, old) or ctx.facts.files[other].count(old) > 6 for other in places
    ):
        return None
    new = new_text(ctx, old)
    after = {other: ctx.facts.files[other].replace(old, new) for other in places}
    if any(breaks(other, ctx.facts.files[other], text) for other, text in after.items()):
        return None
    check = checks.writes(dict(after))
    return Plan(
        "replace_text_all",
        "replace",
        {"old": old, "new": new},
        lambda s: play_replace_all(s, old, new),
        check,
    )


def replace_nth(line: str, old: str, new: str, last: bool) -> str:
    """The line with the first or the last of the texts replaced."""
    at = line.rindex(old) if last else line.index(old)
    return line[:at] + new + line[at + len(old) :]


@goal("replace_first", "replace", 1.0)
def replace_first(ctx: Setting) -> Plan | None:
    """Replace only the first (last) OLD with NEW in PATH."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if text.strip() and "\r" not in text])
    if not isinstance(path, str):
        return None
    text = ctx.facts.files[path]
    for _ in range(6):
        old = part_of(ctx, path)
        if old is not None and 2 <= text.count(old) <= 8 and not inside_word(ctx, path, old):
            break
    else:
        return None
    new, shown = new_text(ctx, old), ctx.path(path)
    which = ctx.rng.choice(("first", "first", "last"))

    def play(session: Session) -> tuple[str, str]:
        think = f'Replace only the {which} "{old}" with "{new}" in {shown}. Find them.'
        real, found = search_file(session, shown, esc(old), think)
        if not found:
            raise Report(
                f'{real} has no "{old}".', f'"{old}" does not occur in `{real}`. Nothing was changed.'
            )
        hit = found[-1 if which == "last" else 0]
        line = hit.text.strip()
        fresh = replace_nth(line, old, new, which == "last")
        think = f"The {which} one is in line {hit.line}: {line}. {old} -> {new}"
        change_line(session, real, hit.line, line, fresh, think)
        return (
            "The diff is right.",
            f'Replaced the {which} "{old}" with "{new}" in `{real}`, line {hit.line}.',
        )

    after = replace_nth(text, old, new, which == "last")
    if breaks(path, text, after):
        return None
    check = checks.writes({path: after})
    slots = {"which": which, "old": old, "new": new, "path": shown}
    return Plan("replace_first", "replace", slots, play, check, ("file", path))


def _block(ctx: Setting, path: str) -> tuple[str, str] | None:
    """Two or three neighbouring lines of a file and what they become: one line other, more, or fewer."""
    rng, rows = ctx.rng, ctx.facts.files[path].split("\n")
    count = rng.choice((2, 2, 3))
    starts = [at for at in range(len(rows) - count + 1) if all(row.strip() for row in rows[at : at + count])]
    if not starts:
        return None
    at = rng.choice(starts)
    old = rows[at : at + count]
    text = "\n".join(old)
    if len(text) > 170 or ctx.facts.files[path].count(text) != 1 or {"`", '"""', "\r"} & set(text):
        return None
    new, place = list(old), rng.randrange(count)
    words = list(re.finditer(r"[A-Za-z][\w-]{2,}|\d+", old[place]))
    kind = rng.random()
    if kind < 0.2:
        del new[place]
    elif kind < 0.4:
        lead = old[place][: len(old[place]) - len(old[place].lstrip())]
        mark = "# " if path.endswith(".py") else "- " if old[place].lstrip().startswith("- ") else ""
        new.insert(place + 1, f"{lead}{mark}{ctx.words.phrase()}")
    elif words:
        for match in sorted(
            rng.sample(words, min(len(words), rng.choice((1, 1, 2)))), key=lambda m: -m.start()
        ):
            row = new[place]
            new[place] = row[: match.start()] + new_text(ctx, match[0]) + row[match.end() :]
    return (text, "\n".join(new)) if new != old else None


@goal("replace_block", "replace", 1.2)
def replace_block(ctx: Setting) -> Plan | None:
    """Some lines are pasted, and what should stand there instead."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if text.strip() and "\r" not in text])
    found = _block(ctx, path) if isinstance(path, str) else None
    if not isinstance(path, str) or found is None:
        return None
    old, new = found
    text, shown = ctx.facts.files[path], ctx.path(path)
    after = text.replace(old, new)
    if breaks(path, text, after):
        return None
    fence = "```\n{}\n```" if ctx.rng.random() < 0.55 or old[0] == " " else "{}"
    first = old.split("\n")[0].strip()
    to = new.split("\n")[0].strip()

    def play(session: Session) -> tuple[str, str]:
        think = f"Replace {old.count(chr(10)) + 1} lines in {shown}."
        if to != first:
            think += f" First new line: {to}."
        think += f" First old line: {first}. Find it."
        real, rows = search_file(session, shown, esc(first), think)
        if not rows:
            raise Report("Not there.", f"I do not find `{first}` in `{real}`. Nothing was changed.")
        where = (
            f"It is line {rows[0].line}" if len(rows) == 1 else f"{len(rows)} such lines; all of old fit one"
        )
        edit_text(session, real, old, new, f"{where}. {difference(old, new)}")
        return "The diff shows it.", f"Replaced these lines in `{real}`."

    slots = {"old": fence.format(old), "new": fence.format(new), "path": shown}
    return Plan("replace_block", "replace", slots, play, checks.writes({path: after}), ("file", path))


MESSAGE = re.compile(
    r"(?:print|echo|log|Error|error|info|warning|Exception|msg|message|title|label|return)\b[ (=:]*f?([\"'])"
    r"((?:(?!\1)[^\\{}`])+ (?:(?!\1)[^\\{}`])+)\1"
)


@goal("change_message", "replace", 1.8)
def change_message(ctx: Setting) -> Plan | None:
    """The message OLD should be NEW; no file is named."""
    rng = ctx.rng
    pool = [
        (path, match[2])
        for path, text in ctx.facts.files.items()
        for match in MESSAGE.finditer(text)
        if len(match[2]) < 70 and "\n" not in match[2] and '"' not in match[2]
    ]
    pool = [(path, old) for path, old in pool if len(ctx.facts.with_text(old)) == 1]
    if not pool:
        return None
    path, old = rng.choice(pool)
    words = old.split()
    if rng.random() < 0.5 and len(words) > 2:
        at = rng.randrange(len(words))
        fresh = rng.choice((ctx.words.noun(), ctx.words.adjective(), ctx.words.verb()))
        words[at] = fresh.capitalize() if words[at][:1].isupper() else fresh
        new = " ".join(words)
    else:
        new = rng.choice((ctx.words.phrase(), ctx.words.phrase().capitalize() + ".", ctx.words.title()))
    text = ctx.facts.files[path]
    if new == old or {"'", '"'} & set(new) or text.count(old) != 1:
        return None

    def play(session: Session) -> tuple[str, str]:
        found = hits(session.call("grep", f'Another message in place of "{old}". Find it.', pattern=esc(old)))
        if not found:
            raise Report("No such message.", f'"{old}" occurs nowhere in this project. Nothing was changed.')
        for name, rows in by_path(found).items():
            replace_in(session, name, rows, old, new)
        places = quoted([hit.at for hit in found])
        return "The diff is right.", f'The message says "{new}" now ({places}); it was "{old}".'

    check = checks.writes({path: text.replace(old, new)})
    return Plan("change_message", "replace", {"old": old, "new": new}, play, check, ("file", path))

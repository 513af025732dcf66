"""Replacing text in one file or in all."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.names import by_path
from k3agent.backend.training.episodes.policy import Hit, esc, hits, quoted, search_file, several
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session

SHORT = 40


def replace_in(session: Session, path: str, found: list[Hit], old: str, new: str) -> None:
    """Replace all in one file."""
    lines = "line" if len(found) == 1 else "lines"
    think = f"{path}: {lines} {several([str(hit.line) for hit in found])}. Put {new} for {old}."
    result = session.call("edit", think, path=path, old=old, new=new, all=True)
    if result.is_error:
        raise Report(
            "That failed; I stop.", f"I could not change `{path}`: {result.text.removeprefix('Error: ')}"
        )


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
    number = "1 line" if len(found) == 1 else f"{len(found)} lines"
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
    number = "1 file" if len(table) == 1 else f"{len(table)} files"
    return "Done.", f'Replaced "{old}" with "{new}" in {number}: {quoted(list(table), 10)}.'


def _part(ctx: Setting, path: str) -> str | None:
    """A piece of one line of a file, bounded by spaces or punctuation, never inside a word."""
    rng = ctx.rng
    lines = [line.strip() for line in ctx.facts.files[path].splitlines() if 3 <= len(line.strip()) <= 90]
    if not lines:
        return None
    line = rng.choice(lines)
    if rng.random() < 0.25 and len(line) <= SHORT:
        return line
    tokens = re.findall(r"[\w.@/:+-]+|[^\w\s]", line)
    words = [match for match in re.finditer(r"[A-Za-z][\w'-]+", line)]
    if rng.random() < 0.6 and words:
        first = rng.randrange(len(words))
        last = min(len(words) - 1, first + rng.choice((0, 0, 1, 2)))
        text = line[words[first].start() : words[last].end()]
    else:
        text = rng.choice(tokens) if tokens else line
    return text if 2 < len(text) <= SHORT and "`" not in text and '"' not in text else None


def _inside_word(ctx: Setting, path: str, text: str) -> bool:
    body = ctx.facts.files[path]
    return bool(re.search(rf"\w{re.escape(text)}|{re.escape(text)}\w", body))


def _new_text(ctx: Setting, old: str) -> str:
    rng, words = ctx.rng, ctx.words
    for _ in range(20):
        if re.fullmatch(r"-?[\d.]+", old):
            new = str(rng.randint(1, 999))
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


@goal("replace_text", "replace", 2.5)
def replace_text(ctx: Setting) -> Plan | None:
    """Replace OLD with NEW in PATH."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if text.strip()])
    if not isinstance(path, str):
        return None
    old = _part(ctx, path)
    if old is None or _inside_word(ctx, path, old) or ctx.facts.files[path].count(old) > 8:
        return None
    new, shown = _new_text(ctx, old), ctx.path(path)
    check = checks.writes({path: ctx.facts.files[path].replace(old, new)})
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
    old = _part(ctx, path)
    if old is None:
        return None
    places = [other for other, text in ctx.facts.files.items() if old in text]
    if len(places) > 4 or any(
        _inside_word(ctx, other, old) or ctx.facts.files[other].count(old) > 6 for other in places
    ):
        return None
    new = _new_text(ctx, old)
    check = checks.writes({other: ctx.facts.files[other].replace(old, new) for other in places})
    return Plan(
        "replace_text_all",
        "replace",
        {"old": old, "new": new},
        lambda s: play_replace_all(s, old, new),
        check,
    )

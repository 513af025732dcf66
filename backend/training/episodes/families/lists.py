"""Adding an entry to a list of a settings file: JSON over several lines, inline, YAML with dashes."""

import json
import re
import tomllib

from k3agent.backend.training.episodes import checks, literals
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.policy import esc, open_file, search_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session

HEAD = re.compile(r"^(\s*)[\"']?([\w-]+)[\"']?\s*[:=]\s*(\[.*)?$")
Lines = list[tuple[int, str]]


def with_entry(lines: Lines, start: int, said: str) -> tuple[int, str, str] | None:
    """(line number, its text, its new text) that adds an entry to the list whose key is in line `start`."""
    at = next((index for index, (number, _) in enumerate(lines) if number == start), None)
    if at is None:
        return None
    number, head = lines[at]
    quote = '"' if '"' in head else ""
    if re.search(r"\[.+\],?$", head):
        end = head.rindex("]")
        return number, head, f"{head[:end]}, {quote}{said}{quote}{head[end:]}"
    is_block = head.rstrip().endswith("[")
    item = re.compile(r"^\s+[\"'\w]" if is_block else r"^\s*- ")
    last = at
    while last + 1 < len(lines) and item.match(lines[last + 1][1]):
        last += 1
    if last == at:
        return None
    number, text = lines[last]
    lead = text[: len(text) - len(text.lstrip())]
    if not is_block:
        return number, text, f"{text}\n{lead}- {said}"
    tail = "," if text.endswith(",") else ""
    value = f'"{said}"' if '"' in text else said
    return number, text, f"{text.rstrip(',')},\n{lead}{value}{tail}"


def _lists(path: str, text: str) -> list[tuple[str, int]]:
    """(key, line) of the lists of a settings file."""
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        match = HEAD.match(line)
        after = lines[number] if number < len(lines) else ""
        if match is None:
            continue
        inline = bool(match[3]) and re.search(r"\[.+\],?$", line) is not None
        block = (match[3] == "[" and re.match(r"^\s+[\"'\w]", after)) or (
            not match[3] and re.match(r"^\s*- ", after)
        )
        if inline or block:
            found.append((match[2], number))
    return found


def _parsed(kind: str, text: str) -> object:
    return json.loads(text) if kind == "json" else tomllib.loads(text) if kind == "toml" else None


@goal("add_entry", "addline", 1.2)
def add_entry(ctx: Setting) -> Plan | None:
    """Add a value to a list in a settings file."""
    pool = [
        (path, key, number)
        for path, text in ctx.facts.files.items()
        if extension(path) in ("json", "toml", "yaml", "yml") and "\r" not in text
        for key, number in _lists(path, text)
        if len(re.findall(rf"\b{re.escape(key)}\b", text)) == 1
    ]
    if not pool:
        return None
    path, key, number = ctx.rng.choice(pool)
    said = ctx.words.noun() if ctx.rng.random() < 0.7 else literals.odd_text(ctx.rng, ctx.words)
    text, shown = ctx.facts.files[path], ctx.path(path)
    if not re.fullmatch(r"[a-zA-Z][\w.:/@-]*\w", said) or said in text:
        return None
    lines = list(enumerate(text.splitlines(), 1))
    found = with_entry(lines, number, said)
    if found is None:
        return None
    expected = checks.replace_line(text, found[0], found[2])

    def play(session: Session) -> tuple[str, str]:
        task = f"Add {said} to {key} in {shown}."
        real, rows = search_file(session, shown, rf"\b{esc(key)}\b", f"{task} Find the list.")
        if not rows:
            raise Report(f"{real} has no {key}.", f"There is no `{key}` in `{real}`. Nothing was changed.")
        place = with_entry([(rows[0].line, rows[0].text)], rows[0].line, said)
        if place is None:
            think = f"The list begins at line {rows[0].line}. Read it."
            view = open_file(session, real, think, offset=rows[0].line, limit=20)
            place = with_entry(view.lines, rows[0].line, said)
        if place is None:
            raise Report("That is no list.", f"`{key}` in `{real}` is no list. Nothing was changed.")
        line, old, new = place
        think = f"The last entry is in line {line}: {old.strip()}. Add {said} after it."
        change_line(session, real, line, old.strip(), new[len(old) - len(old.lstrip()) :], think)
        return "The diff shows it.", f"Added `{said}` to `{key}` in `{real}`."

    def check(outcome: Outcome) -> str | None:
        try:
            _parsed(extension(path), outcome.after.get(path, ""))
        except ValueError:
            return f"{path} is broken"
        return checks.writes({path: expected})(outcome)

    try:
        _parsed(extension(path), text)
    except ValueError:
        return None
    slots = {"value": said, "key": key, "path": shown}
    return Plan("add_entry", "addline", slots, play, check, ("file", path))

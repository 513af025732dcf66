"""Settings asked for by what they do: "where does the server listen", "let requests give up after {}"."""

import json
import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import LEAD, fit_value, split_value
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.values import set_line
from k3agent.backend.training.episodes.openwords import is_held_out
from k3agent.backend.training.episodes.policy import Hit, hits, pieces, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session
from k3agent.backend.training.episodes.words import Words, camel
from k3agent.backend.training.wordings.noise import dress

NAME = re.compile(rf"{LEAD}[\"']?([\w-]+)")
FALLBACK = re.compile(r"((?:\|\|\s*|,\s*|:-)['\"]?)([^'\"|,(){}\s]+)(['\"]?[)}]*;?)$")
"""The end of `env.PORT || 3000;` and of `os.environ.get('PORT', 3000)`: what holds without the variable."""


@dataclass(frozen=True, slots=True)
class Role:
    """A setting as people know it."""

    names: tuple[str, ...]
    search: str
    values: tuple[str, ...]
    questions: tuple[str, ...]
    wishes: tuple[str, ...]

    @property
    def is_free(self) -> bool:
        """Whether the value may be any word: a title, a greeting, a folder."""
        return {"TITLE", "GREETING", "THEME", "OUTPUT_DIR", "DATA_DIR"} & set(self.names) != set()


@cache
def roles() -> tuple[Role, ...]:
    """All roles of roles.txt."""
    text = (Path(__file__).parent.parent / "roles.txt").read_text(encoding="utf-8")
    found = []
    for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()[1:]
        rows = {mark: [line[2:].strip() for line in lines if line.startswith(mark)] for mark in "NSV?!"}
        names, values = rows["N"][0].split(), rows["V"][0].split()
        found.append(Role(tuple(names), rows["S"][0], tuple(values), tuple(rows["?"]), tuple(rows["!"])))
    return tuple(found)


def said_of_part(texts: tuple[str, ...], words: Words, rng: random.Random) -> str:
    """A way to say it, of the part that the words are from."""
    held = words.part != "train"
    own = [text for text in texts if is_held_out(text) == held]
    return rng.choice(own or list(texts))


def _value(role: Role, words: Words, rng: random.Random) -> str:
    """A value that suits; where any word does, often one that no list has."""
    value = rng.choice(role.values)
    if role.is_free and rng.random() < 0.6:
        word = words.noun()
        return word.capitalize() if value[0].isupper() else word
    return value


def _line(rng: random.Random, name: str, value: str, kind: str) -> str:
    """A line that sets a name in a kind of file."""
    is_number = re.fullmatch(r"[\d.]+", value) and value.count(".") < 2
    quote = rng.choice("'\"")
    text = value if is_number else f"{quote}{value}{quote}"
    low = name.lower()
    name_js = rng.choice((name, camel(low.split("_"))))
    can_fall_back = re.fullmatch(r"[\w.]+", value) and rng.random() < 0.12
    match kind:
        case "py":
            if can_fall_back:
                wrapped = f"os.environ.get({quote}{name}{quote}, {text})"
                return f"{name} = int({wrapped})" if value.isdigit() else f"{name} = {wrapped}"
            return f"{name} = {text}"
        case "js":
            word = rng.choice(("const", "const", "const", "let", "export const"))
            if can_fall_back:
                return f"{word} {name_js} = process.env.{name} || {text};"
            return f"{word} {name_js} = {text};"
        case "json":
            return (
                f'  "{rng.choice((low, camel(low.split("_"))))}": {value if is_number else json.dumps(value)}'
            )
        case "toml":
            return f"{low} = {value if is_number else json.dumps(value)}"
        case "yaml":
            return f"{rng.choice((low, camel(low.split('_'))))}: {value}"
        case "ini":
            return f"{low} = {value}"
        case _:
            return f"{name}={value}"


def _other_line(rng: random.Random, words: Words, kind: str) -> str:
    """Another setting: a made-up one."""
    value = rng.choice((str(rng.randint(1, 999)), words.noun()))
    return _line(rng, words.constant(), value, kind)


def _file(ctx: Setting, roles_in: list[tuple[str, str]]) -> tuple[str, str]:
    """A new file that sets these names among others: its path and text."""
    rng, words = ctx.rng, ctx.words
    kind = rng.choice(("py", "py", "py", "js", "js", "json", "yaml", "conf", "toml", "ini"))
    lines = [_line(rng, name, value, kind) for name, value in roles_in]
    lines += [_other_line(rng, words, kind) for _ in range(rng.choice((0, 1, 2, 3, 5)))]
    rng.shuffle(lines)
    head: list[str] = []
    tail: list[str] = []
    if kind == "py":
        head = [f'"""{words.phrase().capitalize()}."""', ""] if rng.random() < 0.5 else []
        head += ["import os", ""] if any("os." in line for line in lines) else []
        if rng.random() < 0.4:
            tail = ["", "", f"def {words.function()}():", f"    return {words.noun()!r}"]
    elif kind == "js":
        head = (
            [f"import {{ {words.function('camel')} }} from './{words.noun()}.js';", ""]
            if rng.random() < 0.4
            else []
        )
        if rng.random() < 0.5:
            name = NAME.match(rng.choice(lines))
            used = f"console.log({name[1] if name else words.noun()});"
            tail = ["", f"function {words.function('camel')}() {{", f"  {used}", "}"]
    elif kind == "json":
        lines = ["{", *(line + "," for line in lines[:-1]), lines[-1], "}"]
    elif kind in ("toml", "ini"):
        head = [f"[{rng.choice(('app', 'server', 'settings', words.noun()))}]"]
    elif kind == "yaml" and rng.random() < 0.4:
        head, lines = [f"{rng.choice(('app', 'server', words.noun()))}:"], [f"  {line}" for line in lines]
    stem = rng.choice(("config", "settings", "app", "server", "constants", "defaults", words.noun()))
    folder = rng.choice(("", "", "", "src/", "config/", *(f"{item}/" for item in ctx.facts.folders)))
    ending = rng.choice(("yaml", "yml")) if kind == "yaml" else kind
    return f"{folder}{stem}.{ending}", "\n".join([*head, *lines, *tail]) + "\n"


def _found(role: Role, rows: list[Hit]) -> list[tuple[str, Hit]]:
    """(name, hit) of the lines that set something of this role."""
    pattern = re.compile(role.search, re.IGNORECASE)
    table = [(match[1], hit) for hit in rows if (match := NAME.match(hit.text)) and pattern.search(match[1])]
    return [item for item in table if split_value(item[0], item[1].text) is not None]


def _look(session: Session, role: Role, task: str, nothing: str) -> list[tuple[str, Hit]]:
    """Search for the names that such a setting may have."""
    think = f"{task} The name may be like {role.search}. Look for it in any case."
    result = session.call("grep", think, pattern=role.search, ignore_case=True)
    found = _found(role, hits(result))
    if not found:
        raise Report(
            "Nothing like that is set.", f"I found no setting for that ({role.search}) here.{nothing}"
        )
    return found


def play_ask(session: Session, role: Role, said: str) -> tuple[str, str]:
    """Find the setting and tell its value."""
    found = _look(session, role, f"They ask: {said}.", "")
    rows = []
    for name, hit in found:
        parts = split_value(name, hit.text)
        assert parts is not None
        other = FALLBACK.search(hit.text.strip()) if _is_fallback(hit.text) else None
        value = f"{other[2]}` unless the variable is set: `{hit.text.strip()}" if other else parts[1]
        rows.append(f"`{name}` is `{value}` (`{hit.path}`, line {hit.line})")
    if len(rows) == 1:
        return f"{found[0][0]} fits the question.", f"{rows[0]}."
    return f"{len(rows)} names fit. Tell all.", "Several settings fit:\n" + "\n".join(
        f"- {row}" for row in rows
    )


def _is_fallback(text: str) -> bool:
    return bool(re.search(r"environ|getenv|process\.env", text))


def play_wish(session: Session, role: Role, said: str, wanted: str) -> tuple[str, str]:
    """Find the setting and change its value."""
    found = _look(session, role, f"They want: {said}. Which setting is that?", " Nothing was changed.")
    if len(found) > 1:
        shown = quoted([f"{name} ({hit.at})" for name, hit in found])
        raise Report(
            f"{len(found)} names fit. I must ask.",
            f"Several settings fit: {shown}. Which one shall I change?",
        )
    name, hit = found[0]
    match = FALLBACK.search(hit.text.strip()) if _is_fallback(hit.text) else None
    if match is None:
        return set_line(session, name, hit, wanted)
    old_line = hit.text.strip()
    new_line = f"{old_line[: match.start()]}{match[1]}{wanted}{match[3]}"
    think = f"{hit.at} has {old_line}. Its end holds when the variable is not set. {match[2]} -> {wanted}"
    change_line(session, hit.path, hit.line, old_line, new_line, think)
    return (
        f"The diff shows {new_line}. Done.",
        f"`{name}` in `{hit.path}` (line {hit.line}) is `{wanted}` now unless the variable is set;"
        f" it was `{match[2]}`.",
    )


def _draw(ctx: Setting) -> tuple[Role, str, str, dict[str, str], list[str]] | None:
    """(role, its name, its value, the new file, the names that fit in the whole project)."""
    rng = ctx.rng
    role = rng.choice(roles())
    others = rng.sample([item for item in roles() if item is not role], rng.choice((0, 1, 2, 3, 4)))
    name, value = rng.choice(role.names), _value(role, ctx.words, rng)
    table = [(name, value)] + [(rng.choice(item.names), _value(item, ctx.words, rng)) for item in others]
    path, text = _file(ctx, table)
    if path in ctx.facts.files or path.startswith("test"):
        return None
    files = {**ctx.facts.files, path: text}
    pattern = re.compile(role.search, re.IGNORECASE)
    rows = [
        Hit(other, number, line)
        for other, body in files.items()
        for number, line in enumerate(body.splitlines(), 1)
        if pattern.search(line)
    ]
    if len(rows) > 25 or any("\r" in row.text for row in rows):
        return None
    fitting = [hit.at for _, hit in _found(role, rows)]
    own = [hit for found, hit in _found(role, rows) if hit.path == path and pieces(found) == pieces(name)]
    if len(own) != 1 or len(fitting) > 4 or (len(fitting) > 1 and rng.random() < 0.6):
        return None
    return role, own[0].text, value, {path: text}, fitting


@goal("ask_role", "explain", 1.8)
def ask_role(ctx: Setting) -> Plan | None:
    """What a setting is, asked by what it does."""
    drawn = _draw(ctx)
    if drawn is None:
        return None
    role, _, value, fresh, _ = drawn
    said = said_of_part(role.questions, ctx.words, ctx.rng)
    prompt = dress([f"{said}?"], [False], False, True, ctx.rng)
    path = next(iter(fresh))
    return Plan(
        "ask_role",
        "explain",
        {},
        lambda session: play_ask(session, role, said),
        checks.answers(value, path),
        prompt=prompt,
        prepare=lambda files: files.update(fresh),
    )


@goal("set_role", "setvalue", 2.6)
def set_role(ctx: Setting) -> Plan | None:
    """A new value for a setting, told by what it does."""
    drawn = _draw(ctx)
    if drawn is None:
        return None
    role, line, value, fresh, fitting = drawn
    wanted = value
    while wanted == value:
        wanted = _value(role, ctx.words, ctx.rng)
    if value.isdigit() and ctx.rng.random() < 0.4:
        wanted = str(int(value) + ctx.rng.choice((1, 2, 5, 10, 25, 100)))
    path, text = next(iter(fresh.items()))
    name_match = NAME.match(line)
    assert name_match is not None
    parts = split_value(name_match[1], line)
    if parts is None:
        return None
    fallback = FALLBACK.search(line.strip()) if _is_fallback(line) else None
    new = f"{parts[0]}{fit_value(parts[1], wanted, extension(path))}{parts[2]}"
    if fallback is not None:
        new = f"{line.strip()[: fallback.start()]}{fallback[1]}{wanted}{fallback[3]}"
    expected = text.replace(f"{line}\n", f"{new}\n", 1)
    if expected == text or ("\n" + text).count(f"\n{line}\n") != 1:
        return None
    said = said_of_part(role.wishes, ctx.words, ctx.rng)
    before, _, after = said.partition("{}")
    prompt = dress([before, wanted, after], [not before, True, not after], False, True, ctx.rng)
    check = checks.declines(path) if len(fitting) > 1 else checks.writes({path: expected})
    return Plan(
        "set_role",
        "setvalue",
        {"value": wanted},
        lambda session: play_wish(session, role, said.replace("{}", wanted), wanted),
        check,
        prompt=prompt,
        prepare=lambda files: files.update(fresh),
    )

"""Settings files with sections, drawn as tables of values and written as JSON, TOML or YAML; and the way
back, for checkers.
"""

import json
import random
import re
import tomllib
from dataclasses import dataclass

from k3agent.backend.training.episodes import literals
from k3agent.backend.training.episodes.words import Words, plural

Scalar = str | int | float | bool
Value = Scalar | list[str]
Table = dict[str, "Value | dict[str, Value]"]

KINDS = ("json", "toml", "yaml", "yml")
SHARED = (
    "host",
    "port",
    "name",
    "enabled",
    "timeout",
    "path",
    "user",
    "level",
    "size",
    "mode",
    "url",
    "retries",
)
PLAIN = re.compile(r"[A-Za-z][\w./@:+-]*")
WORDS_OF_YAML = {"true", "false", "yes", "no", "on", "off", "null", "none"}
NUMBER = re.compile(r"-?\d+(\.\d+)?$")


@dataclass(slots=True)
class Document:
    """A settings file: `table` has plain keys and sections, no deeper ones."""

    path: str
    kind: str
    table: Table
    text: str

    @property
    def sections(self) -> dict[str, dict[str, Value]]:
        """The sections by name."""
        return {name: value for name, value in self.table.items() if isinstance(value, dict)}


def plain_text(rng: random.Random, words: Words) -> str:
    """A text that needs no quotation marks in any kind of file."""
    for _ in range(20):
        make = rng.choice(
            (literals.version, literals.address, literals.place, literals.tag, None, None, None)
        )
        text = make(rng, words) if make else words.noun()
        if PLAIN.fullmatch(text) and text.lower() not in WORDS_OF_YAML and not text.endswith(":"):
            return text
    return words.noun()


def scalar(rng: random.Random, words: Words) -> Scalar:
    """A value."""
    roll = rng.random()
    if roll < 0.45:
        return plain_text(rng, words)
    if roll < 0.6:
        return rng.choice((True, False))
    if roll < 0.7:
        return rng.randint(1, 99) / rng.choice((10, 100))
    return rng.choice((rng.randint(0, 99), rng.randint(100, 65535), -rng.randint(1, 60)))


def written(kind: str, value: Value) -> str:
    """A value as it stands in a file of this kind."""
    if isinstance(value, list):
        return "[" + ", ".join(written(kind, item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    return value if kind in ("yaml", "yml") else f'"{value}"'


def read_back(said: str) -> Scalar:
    """What a value means that a person wrote without quotation marks."""
    if said in ("true", "false"):
        return said == "true"
    if NUMBER.match(said):
        return float(said) if "." in said else int(said)
    return said


def said_value(value: Scalar) -> str:
    """A value as a person writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def draw_table(rng: random.Random, words: Words) -> Table:
    """Some plain keys and two to four sections; some keys stand in several sections."""
    shared = rng.sample(SHARED, 3) if rng.random() < 0.6 else [words.key() for _ in range(2)]
    table: Table = {words.key(): scalar(rng, words) for _ in range(rng.choice((0, 1, 2)))}
    for _ in range(rng.choice((2, 2, 3, 4))):
        keys = rng.sample(shared, rng.randint(1, len(shared))) + [
            words.key() for _ in range(rng.randint(1, 3))
        ]
        rng.shuffle(keys)
        section: dict[str, Value] = {key: scalar(rng, words) for key in dict.fromkeys(keys)}
        if rng.random() < 0.35:
            section[plural(words.noun())] = [words.noun() for _ in range(rng.randint(2, 4))]
        name = words.fresh(words.noun)
        if name not in table:
            table[name] = section
    return table


def render(table: Table, kind: str, indent: int, comments: dict[str, str]) -> str:
    """The file's text; `comments` by section."""
    if kind == "json":
        return json.dumps(table, indent=indent) + "\n"
    lines: list[str] = []
    sign = " = " if kind == "toml" else ": "
    for name, value in table.items():
        if not isinstance(value, dict):
            lines.append(f"{name}{sign}{written(kind, value)}")
            continue
        lines += [""] if lines and kind == "toml" else []
        lines += [f"# {comments[name]}"] if name in comments else []
        lines.append(f"[{name}]" if kind == "toml" else f"{name}:")
        lead = "" if kind == "toml" else " " * indent
        for key, item in value.items():
            if isinstance(item, list) and kind != "toml":
                lines += [f"{lead}{key}:", *(f"{lead}  - {entry}" for entry in item)]
            else:
                lines.append(f"{lead}{key}{sign}{written(kind, item)}")
    return "\n".join(lines) + "\n"


def draw_document(rng: random.Random, words: Words, kind: str = "") -> Document:
    """A settings file under a new name."""
    kind = kind or rng.choice(("json", "toml", "yaml", "yaml", "yml"))
    folder = rng.choice(("", "", "", "config/", "conf/", f"{words.noun()}/", "deploy/"))
    stem = rng.choice(
        ("config", "settings", "app", "service", words.noun(), words.noun(), f"{words.noun()}-dev")
    )
    table = draw_table(rng, words)
    comments = {name: words.phrase() for name in table if rng.random() < 0.2}
    text = render(table, kind, rng.choice((2, 2, 4)), comments)
    return Document(f"{folder}{stem}.{kind}", kind, table, text)


class ParseError(ValueError):
    """A settings file that cannot be read."""


def parse(kind: str, text: str) -> object:
    """What a settings file says. Of YAML only what `render` writes is known."""
    try:
        if kind == "json":
            return json.loads(text)
        if kind == "toml":
            return tomllib.loads(text)
    except ValueError as error:
        raise ParseError(str(error)) from error
    return _yaml(text)


def _scalar_of(text: str) -> Value:
    text = text.strip()
    if text[:1] in "\"'" and text[:1] and text[-1] == text[0] and len(text) > 1:
        return text[1:-1]
    return read_back(text)


def _yaml(text: str) -> Table:
    """Keys, sections with keys, and lists in sections, told apart by indentation."""
    table: Table = {}
    section: dict[str, Value] | None = None
    entries: list[str] | None = None
    depth = 0
    for row in text.splitlines():
        if not row.strip() or row.lstrip().startswith("#"):
            continue
        lead, body = len(row) - len(row.lstrip()), row.strip()
        if body.startswith("- "):
            if entries is None or not lead:
                raise ParseError(f"an entry outside of a list: {row!r}")
            entries.append(str(_scalar_of(body[2:])))
            continue
        key, colon, rest = body.partition(":")
        if not colon or (rest and not rest.startswith(" ")):
            raise ParseError(f"neither key nor entry: {row!r}")
        key, rest, entries = key.strip("\"'"), rest.strip(), None
        target = table if not lead else section
        if target is None or (lead and depth and lead != depth) or key in target:
            raise ParseError(f"a key in a wrong place or twice: {row!r}")
        if not lead:
            section, depth = None, 0
        else:
            depth = lead
        if rest:
            target[key] = _scalar_of(rest)
        elif lead:
            entries = []
            target[key] = entries
        else:
            section = {}
            table[key] = section
    return table

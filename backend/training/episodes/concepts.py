"""Small functions with descriptions: read from concepts.txt (well-known ones), natural.txt (as in ordinary
programs) and varied.txt (other ways to write), named, dressed and sampled at random.
"""

import ast
import contextlib
import io
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from k3agent.backend.training.episodes.words import RESERVED, Words, plural

LOCALS = {
    "total": ("total", "result", "amount", "acc", "summed", "running"),
    "result": ("result", "output", "found", "kept", "answer", "out"),
    "count": ("count", "hits", "number", "matches", "counter"),
    "item": ("item", "value", "x", "entry", "element", "num"),
    "value": ("value", "item", "x", "entry", "val"),
    "word": ("word", "w", "term", "part", "name"),
    "best": ("best", "top", "winner", "current", "chosen"),
    "counts": ("counts", "seen", "result", "totals"),
    "groups": ("groups", "result", "buckets"),
    "row": ("row", "record", "entry", "r"),
    "char": ("char", "letter", "c", "ch"),
    "index": ("index", "i", "position", "pos"),
    "number": ("number", "i", "value", "k"),
}
PLURAL_TYPES = tuple(
    "ints ints0 words nested rows matrix prices items users orders loglines settings counts".split()  # noqa: SIM905
)
HINTS = {
    "int": "int",
    "pos": "int",
    "small": "int",
    "possmall": "int",
    "count": "int",
    "natural": "int",
    "low": "int",
    "high": "int",
    "year": "int",
    "age": "int",
    "points": "int",
    "ints": "list[int]",
    "ints0": "list[int]",
    "words": "list[str]",
    "dict": "dict",
    "rows": "list[dict]",
    "matrix": "list[list[int]]",
    "nested": "list[list[int]]",
    "prices": "list",
    "pair": "tuple",
    "hour": "int",
    "status": "int",
    "month": "int",
    "day": "int",
    "zero": "int",
    "counts": "list[int]",
    "settings": "list[str]",
    "loglines": "list[str]",
    "items": "list[dict]",
    "users": "list[dict]",
    "orders": "list[dict]",
    "stock": "dict",
}


@dataclass(frozen=True, slots=True)
class Concept:
    """One entry of concepts.txt or natural.txt."""

    names: tuple[str, ...]
    params: tuple[tuple[str, str], ...]
    descriptions: tuple[str, ...]
    bodies: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Func:
    """A function ready to be written: `body` lines are indented by four spaces; `cases` are
    (arguments, result).
    """

    name: str
    params: list[str]
    body: list[str]
    description: str
    hints: list[str] = field(default_factory=list)
    doc: str | None = None
    cases: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)
    decorators: list[str] = field(default_factory=list)
    is_async: bool = False
    hinted: bool = False
    defaults: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    """Names of its module that the body uses."""

    @property
    def signature(self) -> str:
        """`name(params)` as in a definition."""
        parts = []
        for index, param in enumerate(self.params):
            text = param
            if self.hinted and index < len(self.hints):
                text += f": {self.hints[index]}"
            if param in self.defaults:
                text += f" = {self.defaults[param]}" if self.hinted else f"={self.defaults[param]}"
            parts.append(text)
        return f"{self.name}({', '.join(parts)})"

    def source(self, quote: str = '"""') -> list[str]:
        """The lines of the definition, unindented."""
        head = f"{'async ' if self.is_async else ''}def {self.signature}:"
        doc = [f"    {line}".rstrip() for line in f"{quote}{self.doc}{quote}".split("\n")] if self.doc else []
        return [*self.decorators, head, *doc, *self.body]


@cache
def concepts(file: str = "concepts.txt") -> tuple[Concept, ...]:
    """All entries of one of the two files."""
    found: list[Concept] = []
    head: str | None = None
    bodies: list[list[str]] = [[]]

    def flush() -> None:
        if head is None:
            return
        names, params, descriptions = (part.strip() for part in head.split("|"))
        pairs = tuple((p.split(":")[0], p.split(":")[1]) for p in params.split())
        found.append(
            Concept(
                tuple(names.split()),
                pairs,
                tuple(text.strip() for text in descriptions.split(";")),
                tuple(tuple(body) for body in bodies),
            )
        )

    for line in (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith("--"):
            bodies.append([])
        elif line.startswith(" "):
            bodies[-1].append(line)
        else:
            flush()
            head, bodies = line, [[]]
    flush()
    return tuple(found)


def sample(kind: str, rng: random.Random, words: Words) -> Any:
    """A value of a parameter type of concepts.txt."""
    for draw in (_number, _text, _collection, _record, _form):
        value = draw(kind, rng, words)
        if value is not None:
            return value
    raise ValueError(f"concepts.txt names the unknown parameter type {kind!r}; add it to sample()")


def _number(kind: str, rng: random.Random, _: Words) -> int | None:
    """A number, or None where `kind` is none."""
    integer = rng.randint
    match kind:
        case "int":
            return integer(-3, 30) if rng.random() < 0.3 else integer(1, 12)
        case "pos":
            return integer(1, 12)
        case "small":
            return integer(0, 4)
        case "possmall":
            return integer(1, 3)
        case "count":
            return integer(1, 9)
        case "natural":
            return integer(0, 9999)
        case "low":
            return integer(0, 4)
        case "high":
            return integer(5, 12)
        case "year":
            return rng.choice((1900, 2000, 2004, 2023, 2024, 2100, integer(1900, 2100)))
        case "age":
            return rng.choice((17, 18, 19, integer(1, 90)))
        case "points":
            return rng.choice((90, 89, 80, 70, 50, 49, integer(0, 100)))
    return None


def _text(kind: str, rng: random.Random, words: Words) -> str | None:
    """A text, or None where `kind` is none."""
    integer = rng.randint
    match kind:
        case "word":
            return words.noun().capitalize() if rng.random() < 0.3 else words.noun()
        case "letter":
            return rng.choice("aeiorst")
        case "text":
            return rng.choice(
                (
                    words.noun(),
                    f"{words.adjective()} {words.noun()}",
                    f"{words.noun().capitalize()} {words.noun()}",
                )
            )
        case "spaced":
            return " " * integer(0, 2) + words.noun().capitalize() + " " * integer(0, 2)
        case "pal":
            return rng.choice(("level", "anna", "noon", "abca", words.noun()))
        case "blanky":
            return rng.choice(("", "  ", words.noun(), " " + words.noun()))
        case "digity":
            return rng.choice((str(integer(0, 999)), words.noun(), ""))
        case "csv":
            return ",".join(words.noun() for _ in range(integer(1, 4)))
        case "filename":
            return f"{words.noun()}.{rng.choice(('txt', 'py', 'csv', 'tar'))}"
        case "mail":
            return rng.choice(
                (f"{words.noun()}@{words.noun()}.org", words.noun(), f"{words.noun()}@{words.noun()}")
            )
        case "mailok":
            return f"{words.noun()}@{words.noun()}.org"
        case "role":
            return rng.choice(("admin", "owner", "guest", "editor"))
    return None


def _collection(kind: str, rng: random.Random, words: Words) -> Any:
    """A list, dict or tuple, or None where `kind` is none."""
    integer = rng.randint
    match kind:
        case "ints" | "ints0":
            low = 0 if kind == "ints0" and rng.random() < 0.2 else 1
            values = [integer(-4, 12) for _ in range(integer(low, 5) if low else 0)]
            return values + values[:1] if values and rng.random() < 0.2 else values
        case "nested" | "matrix":
            size = integer(1, 3)
            return [[integer(0, 9) for _ in range(size)] for _ in range(size)]
        case "words":
            base = [
                rng.choice((words.noun(), words.noun()[:2], words.adjective())) for _ in range(integer(1, 4))
            ]
            return base + base[:1] if rng.random() < 0.3 else base
        case "dict":
            return {words.noun(): integer(1, 20) for _ in range(integer(1, 3))}
        case "rows":
            return [{"name": words.noun(), "amount": integer(1, 20)} for _ in range(integer(1, 3))]
        case "prices":
            return [(integer(1, 9), integer(1, 5)) for _ in range(integer(1, 3))]
        case "pair":
            return (integer(0, 9), integer(0, 9))
    return None


def _record(kind: str, rng: random.Random, words: Words) -> Any:
    """Records of a program's data, or None where `kind` is none."""
    integer, some = rng.randint, range(rng.choice((1, 2, 2)))
    match kind:
        case "items":
            return [{"name": words.noun(), "price": integer(1, 20), "quantity": integer(1, 5)} for _ in some]
        case "users":
            return [{"name": words.noun(), "age": integer(9, 60), "active": rng.random() < 0.6} for _ in some]
        case "orders":
            return [
                {"id": integer(1, 99), "total": integer(5, 90), "status": rng.choice(("open", "paid"))}
                for _ in some
            ]
        case "stock":
            return {words.noun(): integer(0, 9) for _ in some}
        case "counts":
            return [integer(1, 9) for _ in range(integer(1, 4))]
        case "settings":
            lines = [f"{words.noun()}={words.noun()}" for _ in some]
            return [*lines, "# " + words.noun()] if rng.random() < 0.4 else lines
        case "loglines":
            levels = [rng.choice(("ERROR", "INFO", "WARNING")) for _ in range(integer(1, 3))]
            return [f"{level}: {words.noun()}" for level in levels]
    return None


SAMPLES = ("varied.txt", "ideas.txt")


@cache
def _samples() -> tempfile.TemporaryDirectory[str]:
    """A folder with files that functions may read: copies, since a wrong function may write to them."""
    folder = tempfile.TemporaryDirectory(prefix="k3agent-samples-")
    for name in SAMPLES:
        shutil.copy(Path(__file__).parent / name, folder.name)
    return folder


def _form(kind: str, rng: random.Random, words: Words) -> Any:
    """A line, word or number with a form of its own, or None where `kind` is none."""
    integer, noun = rng.randint, words.noun
    forms: dict[str, Callable[[], Any]] = {
        "hour": lambda: integer(0, 23),
        "status": lambda: rng.choice((200, 201, 204, 301, 302, 400, 404, 500, 503)),
        "month": lambda: integer(1, 12),
        "day": lambda: integer(1, 28),
        "zero": lambda: 0,
        "fullname": lambda: " ".join(noun().capitalize() for _ in range(integer(2, 3))),
        "setting": lambda: rng.choice((f"{noun()}={noun()}", f"{noun()} = {integer(1, 99)}", "a=b=c")),
        "booly": lambda: rng.choice(("yes", "Yes", "true", "TRUE", "1", "0", "no", noun())),
        "logline": lambda: f"{rng.choice(('ERROR', 'INFO', 'WARNING'))}: {noun()} {noun()}",
        "commented": lambda: rng.choice((f"{noun()} = 1  # {noun()}", f"{noun()}()", f"# {noun()}")),
        "multiline": lambda: "\n".join(rng.choice((noun(), noun(), "")) for _ in range(integer(1, 3))),
        "phrase": lambda: " ".join(rng.choice((noun(), "the", "a")) for _ in range(integer(2, 4))),
        "prefix": lambda: rng.choice(("> ", "  ", "# ", "- ")),
        "camel": lambda: noun() + noun().capitalize(),
        "snake": lambda: "_".join(noun() for _ in range(integer(1, 3))),
        "date": lambda: f"{integer(1990, 2030)}-{integer(1, 12):02d}-{integer(1, 28):02d}",
        "time": lambda: f"{integer(0, 23):02d}:{integer(0, 59):02d}",
        "dayname": lambda: rng.choice(("monday", "Friday", "saturday", "Sunday", "tuesday")),
        "path": lambda: "/".join(noun() for _ in range(integer(2, 3))),
        "dotted": lambda: rng.choice((".", "")) + noun(),
        "query": lambda: "&".join(f"{noun()}={integer(1, 9)}" for _ in range(integer(1, 2))),
        "url": lambda: f"{rng.choice(('http', 'https'))}://{noun()}.org/{noun()}",
        "onoff": lambda: rng.choice(("on", "off")),
        "statusname": lambda: rng.choice(("open", "paid", "shipped")),
        "digits": lambda: str(integer(0, 99999)),
        "password": lambda: noun() + rng.choice(("", str(integer(1, 9999)))),
        "file": lambda: str(Path(_samples().name, rng.choice(SAMPLES))),
        "row": lambda: {"name": noun(), "amount": integer(1, 20)},
        "maybekey": lambda: rng.choice(("name", "amount", noun())),
        "rowkey": lambda: rng.choice(("name", "amount")),
    }
    return forms[kind]() if kind in forms else None


def replace_words(text: str, table: dict[str, str]) -> str:
    """Every whole word of the table replaced at once."""
    if not table:
        return text
    pattern = re.compile(r"(?<![\w.'\"])(" + "|".join(map(re.escape, table)) + r")\b(?!['\"])")
    return pattern.sub(lambda match: table[match.group(1)], text)


@cache
def _names_in(concept: Concept) -> frozenset[str]:
    """The names that a concept's bodies use, parameters left out."""
    text = "\n".join(line for body in concept.bodies for line in body)
    return frozenset(re.findall(r"(?<!\$)\b[a-z_]\w*", text))


def param_names(concept: Concept, rng: random.Random, words: Words) -> dict[str, str]:
    """Names for the parameters: the usual ones, or words that suit."""
    table: dict[str, str] = {}
    taken = {name for name, _ in concept.params} | _names_in(concept)
    keep = rng.random() < 0.35
    for name, kind in concept.params:
        chosen = name
        if not keep:
            noun = words.noun()
            if kind in PLURAL_TYPES:
                chosen = rng.choice(
                    (plural(noun), "values", "numbers" if kind.startswith("ints") else "entries", "data")
                )
            elif rng.random() < 0.6:
                chosen = words.variable()
            else:
                chosen = rng.choice(
                    ("x", "y", "left", "right", "first", "second", "amount", "value", "source")
                )
        if chosen in taken or chosen in table.values() or chosen in RESERVED or chosen in LOCALS:
            chosen = name
        table[name] = chosen
    return table


def instantiate(
    concept: Concept,
    rng: random.Random,
    words: Words,
    *,
    style: str = "snake",
    cases: int = 3,
    keep_params: bool = False,
    rename_locals: bool = True,
) -> Func | None:
    """A function from a concept: names drawn, locals renamed, cases computed by running it."""
    params = {name: name for name, _ in concept.params} if keep_params else param_names(concept, rng, words)
    name = rng.choice(concept.names)
    if rng.random() < 0.5 or name in words.used or name in RESERVED:
        ends = (words.noun(), plural(words.noun()), f"{words.adjective()}_{words.noun()}")
        name = f"{name}_{rng.choice(ends)}"
    if name in words.used:
        return None
    own = concept.names[0]
    if style == "camel":
        parts = name.split("_")
        name = parts[0] + "".join(part.capitalize() for part in parts[1:])
    body = list(rng.choice(concept.bodies))
    text = "\n".join(body)
    table: dict[str, str] = {}
    if rename_locals and rng.random() < 0.6:
        taken = set(re.findall(r"[a-z_]\w*", text)) | set(params.values())
        for local, options in LOCALS.items():
            if re.search(rf"(?<!['\"])\b{local}\b", text) and f"${local}" not in text:
                option = rng.choice(options)
                if option not in taken:
                    table[local] = option
                    taken.add(option)
        text = replace_words(text, table)
    text = re.sub(
        r"\$(\w+)", lambda match: params[match.group(1)] if match.group(1) in params else match.group(0), text
    )
    text = re.sub(rf"\b{own}\(", f"{name}(", text) if own in ("factorial", "fibonacci") else text
    description = re.sub(
        r"\$(\w+)", lambda match: params.get(match.group(1), match.group(0)), rng.choice(concept.descriptions)
    )
    func = Func(
        name=name,
        params=[params[p] for p, _ in concept.params],
        body=text.split("\n"),
        description=description,
        hints=[HINTS.get(kind, "str") for _, kind in concept.params],
    )
    words.used.add(name)
    add_cases(func, concept, rng, words, cases)
    return func if func.cases else None


def add_cases(func: Func, concept: Concept, rng: random.Random, words: Words, count: int) -> None:
    """Give a function up to `count` different calls with the values it returns."""
    function = compile_function(func)
    seen: set[str] = set()
    for _ in range(count * 5):
        if len(func.cases) >= count:
            break
        args = tuple(sample(kind, rng, words) for _, kind in concept.params)
        if repr(args) in seen:
            continue
        seen.add(repr(args))
        try:
            value = function(*[copy_value(arg) for arg in args])
        except (ArithmeticError, ValueError, LookupError, TypeError):
            continue
        func.cases.append((args, value))


def copy_value(value: Any) -> Any:
    """A copy deep enough for lists of lists."""
    if isinstance(value, list):
        return [copy_value(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


def compile_function(func: Func, extra: dict[str, Any] | None = None) -> Any:
    """The Python function of a Func, for computing cases."""
    scope: dict[str, Any] = {**func.constants, **(extra or {})}
    exec("\n".join(func.source()), scope)
    return scope[func.name]


NATURAL_SHARE = 0.45
VARIED_SHARE = 0.4


def random_concept(rng: random.Random, words: Words, **options: Any) -> Func:
    """A function from any concept; in a natural project mostly from natural.txt, with its own parameters."""
    while True:
        file = "natural.txt" if rng.random() < (0.7 if words.natural else NATURAL_SHARE) else "concepts.txt"
        file = "varied.txt" if rng.random() < VARIED_SHARE else file
        keep = {"keep_params": True} if words.natural and rng.random() < 0.4 else {}
        func = instantiate(rng.choice(concepts(file)), rng, words, **{**keep, **options})
        if func is not None:
            return func


def same_results(text: str, func: Func) -> bool:
    """Whether the function in a file gives what it must."""
    scope: dict[str, object] = dict(func.constants)
    try:
        tree = ast.parse(text)
        named = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        nodes: list[ast.stmt] = [node for node in named if node.name == func.name]
        exec(compile(ast.Module(nodes[-1:], []), "file", "exec"), scope)
        function = scope[func.name]
        with contextlib.redirect_stdout(io.StringIO()):
            return all(function(*[copy_value(arg) for arg in args]) == value for args, value in func.cases)  # type: ignore[operator]
    except Exception:
        return False

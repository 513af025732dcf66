"""Methods described in words, by what a class keeps (methods.txt), and classes to put them into."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from k3agent.backend.training.episodes.concepts import copy_value
from k3agent.backend.training.episodes.extras import in_one_line, plain
from k3agent.backend.training.episodes.mutate import limited
from k3agent.backend.training.episodes.units import Unit, renamed_unit, units
from k3agent.backend.training.episodes.words import Words, plural

KINDS = {
    "strs": "list",
    "nums": "list",
    "records": "list",
    "list": "list",
    "counts": "dict",
    "dict": "dict",
    "set": "set",
    "int": "number",
    "bool": "bool",
    "str": "string",
}
"""What classes keep, and what a thought calls it."""
WIDER = {"strs": ("list",), "nums": ("list",), "counts": ("dict",), "records": ()}
"""Methods that also suit such a kind."""
ERRORS = ("ValueError", "ValueError", "KeyError", "KeyError", "LookupError", "IndexError", "RuntimeError")
SINGLE = ("int", "bool", "str")
EMPTY = {"list": [], "dict": {}, "set": set(), "number": 0, "bool": True, "string": ""}
DEFAULTS = ("None", "None", "None", "0", "-1", '""', "False")
_FIRST = re.compile(r"^\s+self\.(\w+)(?:: [^=]+)? = (\[\]|\{\}|set\(\)|0|True|False|'')$", re.MULTILINE)
_KIND_OF = {
    "[]": "list",
    "{}": "dict",
    "set()": "set",
    "0": "int",
    "True": "bool",
    "False": "bool",
    "''": "str",
}


@dataclass(frozen=True, slots=True)
class Idea:
    """A kind of method."""

    kinds: tuple[str, ...]
    names: tuple[str, ...]
    params: tuple[tuple[str, str], ...]
    descriptions: tuple[str, ...]
    body: tuple[str, ...]


@dataclass(slots=True)
class Home:
    """A class: its text, its name, and what it keeps by attribute: kind, and keys where it keeps records."""

    text: str
    name: str
    kept: dict[str, str]
    keys: tuple[str, str] = ("", "")


@dataclass(slots=True)
class Method:
    """A method to be written."""

    name: str
    params: list[str]
    body: list[str]
    description: str
    attribute: str
    kind: str
    exact: bool
    trials: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    """What the attribute is before, and the arguments."""

    @property
    def said(self) -> str:
        """Its body in one line, as thoughts say it."""
        return in_one_line(self.body)

    @property
    def head(self) -> str:
        """Its first line."""
        return f"def {self.name}({', '.join(['self', *self.params])}):"

    def results(self, source: str, owner: str, called: str = "") -> list[str]:
        """What it gives and leaves behind in a file's class, for each trial. Raises what the file raises."""
        scope: dict[str, Any] = {"__name__": "unit"}
        exec(source, scope)
        return [self._result(scope[owner], before, args, called or self.name) for before, args in self.trials]

    def _result(self, owner: Any, before: Any, args: tuple[Any, ...], called: str) -> str:
        thing = owner.__new__(owner)
        setattr(thing, self.attribute, copy_value(before) if not isinstance(before, set) else set(before))
        try:
            given = limited(partial(getattr(thing, called), *map(copy_value, args)))
            left = getattr(thing, self.attribute)
            if called == "__iter__":
                given = sorted(given, key=str)
            elif called == "__str__":
                # how name and number are put together is not said
                text = str(given)
                given = owner.__name__ in text, str(len(left)) in re.findall(r"\d+", text)
            itself = " itself" if given is left and isinstance(left, list | dict | set) else ""
            shown = f"{type(given).__name__}{itself} {plain(given)!r}"
        except (Exception, SystemExit) as error:
            shown = f"!{type(error).__name__}{f' {error}' if self.exact else ''}"
        return f"{shown} / {plain(getattr(thing, self.attribute))!r}"

    def is_as_wanted(self, found: list[str], wanted: list[str]) -> bool:
        """Whether results are as wanted, but where the right one raises what the words do not tell of."""
        said = re.findall(r"raise (\w+)\(", "\n".join(self.body))
        pairs = zip(found, wanted, strict=True)
        return all(one == two or (two[0] == "!" and two[1:].split()[0] not in said) for one, two in pairs)


@cache
def method_ideas() -> tuple[Idea, ...]:
    """All of methods.txt."""
    found: list[Idea] = []
    for block in re.split(r"\n(?=\S)", (Path(__file__).parent / "methods.txt").read_text(encoding="utf-8")):
        rows = [row for row in block.split("\n") if row.strip() and not row.startswith("#")]
        if not rows:
            continue
        kinds, names, params, said = (part.strip() for part in rows[0].split("|"))
        pairs = tuple((part.split(":")[0], part.split(":")[1]) for part in params.split())
        texts = tuple(text.strip() for text in re.split(r"; (?!raises|it )", said))
        found.append(Idea(tuple(kinds.split()), tuple(names.split()), pairs, texts, tuple(rows[1:])))
    return tuple(found)


@cache
def _natural_homes() -> tuple[tuple[Unit, str], ...]:
    """Units of natural code with a class that begins with something empty, and its name."""
    found = []
    for unit in units():
        names = re.findall(r"^class (\w+)(?:\(object\))?:", unit.text, re.MULTILINE)
        if len(names) == 1 and len(unit.code) < 45 and _FIRST.search(unit.text) and "slots" not in unit.text:
            found.append((unit, names[0]))
    return tuple(found)


def natural_home(rng: random.Random, words: Words) -> Home | None:
    """A class of natural code in other words."""
    unit, _ = rng.choice(_natural_homes())
    other = renamed_unit(unit, rng, words) if rng.random() < 0.7 else unit
    name = re.findall(r"^class (\w+)", other.text, re.MULTILINE)[0]
    kept = {match[1]: _KIND_OF[match[2]] for match in _FIRST.finditer(other.text)}
    if any(re.search(rf"\bdef {attribute}\b", other.text) for attribute in kept):
        return None
    return Home(other.text, name, kept)


_STARTS = {
    "strs": ("[]", "list[str]", "add", "item", "{a}.append(item)"),
    "nums": ("[]", "list[int]", "record", "value", "{a}.append(value)"),
    "counts": ("{{}}", "dict[str, int]", "put", "key, amount", "{a}[key] = amount"),
    "set": ("set()", "set[str]", "mark", "item", "{a}.add(item)"),
    "int": ("0", "int", "move", "amount", "{a} = amount"),
    "bool": ("False", "bool", "start", "", "{a} = True"),
    "str": ('""', "str", "label", "text", "{a} = text"),
    "records": (
        "[]",
        "list[dict]",
        "add",
        "{label}, {amount}",
        '{a}.append({{"{label}": {label}, "{amount}": {amount}}})',
    ),
}


def drawn_home(rng: random.Random, words: Words) -> Home:
    """A class put together: one to three things that it keeps, each with a method that fills it."""
    name = words.class_name()
    label, amount = words.fresh(words.noun), words.fresh(words.noun)
    kinds = rng.sample(list(_STARTS), rng.choice((1, 1, 2, 2, 3)))
    typed, kept, start, more = rng.random() < 0.4, {}, [], []
    if rng.random() < 0.4:
        own = words.fresh(words.variable)
        start.append(f"        self.{own} = {own}")
        head = f"    def __init__(self, {own}):"
    else:
        head = "    def __init__(self):"
    for kind in kinds:
        value, hint, verb, params, body = _STARTS[kind]
        noun = words.fresh(words.noun)
        attribute = plural(noun) if kind not in ("int", "bool", "str") else noun
        attribute = f"_{attribute}" if rng.random() < 0.2 else attribute
        kept[attribute] = kind
        places = {"a": f"self.{attribute}", "label": label, "amount": amount}
        start.append(f"        self.{attribute}{f': {hint}' if typed else ''} = {value.format()}")
        taken = "".join(f", {param}" for param in params.format(**places).split(", ") if param)
        if rng.random() < 0.7 or kind == "records":
            more += ["", f"    def {verb}_{noun}(self{taken}):", f"        {body.format(**places)}"]
    doc = [f'    """{words.phrase().capitalize()}."""', ""] if rng.random() < 0.3 else []
    text = "\n".join([f"class {name}:", *doc, head, *start, *more]) + "\n"
    return Home(text, name, kept, (label, amount))


def draw_method(rng: random.Random, words: Words, home: Home, *, named: bool = True) -> Method | None:
    """A method about one of the things that a class keeps."""
    attribute = rng.choice(list(home.kept))
    kind = home.kept[attribute]
    suits = {kind, *WIDER.get(kind, ())}
    idea = rng.choice([idea for idea in method_ideas() if suits & set(idea.kinds)])
    names = [name for name in idea.names if not re.search(rf"\b{name}\b", home.text)]
    only = sum(kind not in SINGLE for kind in home.kept.values()) == 1
    said = [
        text
        for text in idea.descriptions
        if only or not re.search(r"\b(its|it has)\b", text.replace("{it}", ""))
    ]
    if not names or not said:
        return None
    name = rng.choice(names)
    if named and not name.startswith("__") and rng.random() < 0.35:
        name = f"{name}_{words.fresh(words.noun)}"
    table = {p: words.fresh(words.variable) if rng.random() < 0.25 else p for p, _ in idea.params}
    if set(table.values()) & {attribute, name, "item", "value", "key"} - set(table):
        return None
    fill = _filler(rng, words, home, attribute, table, in_text=name == "__str__")
    chosen = rng.choice(said)
    body = [fill(line, "") for line in idea.body]
    alone = f"the {attribute}" if kind in SINGLE and "_" not in attribute else attribute
    spoken = rng.choice((f"self.{attribute}", f"self.{attribute}", attribute, alone))
    params = [table[p] for p, _ in idea.params]
    method = Method(name, params, body, fill(chosen, spoken), attribute, kind, "{text}" in chosen)
    for _ in range(12):
        before = _kept_value(kind, rng, words, home.keys)
        args = tuple(_argument(of, before, rng, words, home.keys) for _, of in idea.params)
        method.trials.append((before, args))
    method.trials.append((copy_value(EMPTY[KINDS[kind]]), method.trials[0][1]))
    return method


def _filler(
    rng: random.Random, words: Words, home: Home, attribute: str, table: dict[str, str], *, in_text: bool
) -> Callable[[str, str], str]:
    """What puts names and values drawn once into lines and descriptions."""
    text = rng.choice((words.phrase(), f"no {words.noun()}", f"unknown {words.noun()}"))
    label, amount = home.keys
    places = {
        "{error}": rng.choice(ERRORS),
        "{text}": re.sub(r"[\"\\']", "", text),
        "{default}": rng.choice(DEFAULTS),
        "{n}": str(rng.randint(2, 3)),
        "{cls}": home.name,
        "{label}": label,
        "{amount}": amount,
        "{a!}": f"self.{attribute}" if in_text else f"{{self.{attribute}}}",
        "{a}": f"self.{attribute}",
    }

    def fill(line: str, it: str) -> str:
        line = line.replace("{{a!}!r}", f"{{self.{attribute}!r}}").replace("{it}", it)
        for place, value in places.items():
            line = line.replace(place, value)
        return re.sub(r"\$(\w+)", lambda match: table[match[1]], line)

    return fill


def _kept_value(kind: str, rng: random.Random, words: Words, keys: tuple[str, str]) -> Any:
    some = range(rng.randint(1, 4))
    match kind:
        case "nums":
            return [rng.randint(-3, 20) for _ in some]
        case "list" | "strs":
            return [words.noun() for _ in some]
        case "dict" | "counts":
            return {words.noun(): rng.randint(0, 20) for _ in some}
        case "set":
            return {words.noun() for _ in some}
        case "int":
            return rng.randint(0, 20)
        case "bool":
            return rng.random() < 0.5
        case "records":
            return [{keys[0]: words.noun(), keys[1]: rng.randint(0, 20)} for _ in some]
    return words.noun()


def _argument(of: str, before: Any, rng: random.Random, words: Words, keys: tuple[str, str]) -> Any:
    inside = list(before) if isinstance(before, (list, dict, set)) else []
    if isinstance(before, set):
        inside.sort()
    match of:
        case "item" | "key":
            return rng.choice(inside) if inside and rng.random() < 0.65 else words.noun()
        case "items":
            return [words.noun(), *inside[:1]]
        case "other":
            return {words.noun(): 3, **dict.fromkeys(inside[:1], 5)}
        case "number":
            return rng.choice((-3, -1, 0, rng.randint(1, 25), rng.randint(1, 25)))
        case "small":
            return rng.randint(0, 2)
        case "index":
            return max(0, rng.randint(-1, 4))  # whether -1 is an index is not said
        case "label":
            return rng.choice(inside)[keys[0]] if inside and rng.random() < 0.7 else words.noun()
    return rng.choice(("", " a ", "a", words.noun()))

"""Functions of several lines in JavaScript and Go (webbugs.txt) with one line that is wrong, what then comes
or is raised for some arguments, and in one sentence why the line must change.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from k3agent.backend.training.episodes.webcode import GO_WORDS, Idea, Plain, Raised, WebFunc
from k3agent.backend.training.episodes.words import Words, camel

MISSPELLED = 0.15
"""Of the slips, names that are written wrongly."""
_UNSURE = ("limit", "fee", "parity")
"""Functions in which not every line is run."""
COMMENTED = 0.75
_COMMENTED = ("fee", "limit", "countFrom", "countOver", "reduced", "find")
"""Functions whose names alone do not say what they do."""


@dataclass(frozen=True, slots=True)
class Slip:
    """A part of a line, what stands there wrongly, what then comes, and why it is wrong."""

    language: str
    old: str
    new: str
    result: str
    why: str


@dataclass(slots=True)
class Block:
    """A function of webbugs.txt."""

    verb: str
    kinds: tuple[str, ...]
    result: str
    described: str
    args: str = ""
    right: str = ""
    bodies: dict[str, list[str]] = field(default_factory=dict)
    slips: list[Slip] = field(default_factory=list)

    def fitting(self, language: str) -> list[Slip]:
        """The slips that its body in the language can have."""
        body = "\n".join(self.bodies[language])
        return [slip for slip in self.slips if slip.language in ("", language) and body.count(slip.old) == 1]


@cache
def blocks() -> tuple[Block, ...]:
    """The functions of webbugs.txt."""
    text = (Path(__file__).parent / "webbugs.txt").read_text(encoding="utf-8")
    return tuple(_block(part) for part in text.split("\n@")[1:])


def _block(text: str) -> Block:
    head, described, *rows = text.rstrip().split("\n")
    verb, _, kinds = head.partition(" ")
    taken, _, result = kinds.partition(" -> ")
    block = Block(verb, tuple(taken.split()), result, described)
    part = ""
    for row in rows:
        if row in ("js", "go"):
            part = row
        elif row.startswith("args "):
            block.args = row[5:]
        elif row.startswith("py "):
            block.right, part = row[3:], "slips"
        elif part == "slips":
            match = re.fullmatch(r"(?:(js|go): )?(.+?) \| (.+?) \| (.+?) \| (.+)", row)
            if match is None:
                raise ValueError(f"webbugs.txt: not a slip: {row}")
            block.slips.append(Slip(match[1] or "", *match.groups()[1:]))
        else:
            block.bodies.setdefault(part, []).append(row)
    return block


@dataclass(slots=True)
class BodyFunc(WebFunc):
    """A function of several lines, with one of them gone wrong."""

    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    why: str = ""
    mark: str = ""
    """The text at whose place an error is raised."""

    @property
    def at(self) -> int:
        """The index of the line that differs."""
        return next(
            n for n, pair in enumerate(zip(self.right, self.wrong, strict=True)) if pair[0] != pair[1]
        )

    def line(self, *, wrong: bool = False) -> str:
        """The line that differs, without indentation."""
        return (self.wrong if wrong else self.right)[self.at].strip()

    def source(self, *, wrong: bool = False, export: bool = False) -> list[str]:
        """The definition."""
        lead = "  " if self.language == "js" else "\t"
        return self.defined([lead + row for row in (self.wrong if wrong else self.right)], export=export)

    def needs(self) -> str:
        """The package of Go's library that its body needs."""
        return "strings" if any("strings." in row for row in self.right) else ""

    def raised_at(self, error: str) -> tuple[int, int]:
        """How many lines below the head an error is raised, and in which column."""
        index, row = next(
            (n, text) for n, text in reversed(list(enumerate(self.wrong, 1))) if self.mark in text
        )
        column = row.rfind(self.mark)
        if self.language == "go":
            return index, column + 2
        if error.startswith("ReferenceError"):
            # node names the statement, or the bracket around the expression that begins with the name
            column -= 7 if row[:column].endswith("return ") else row[:column].endswith("= (")
        return index, column + 3


def draw_body(rng: random.Random, words: Words, language: str) -> BodyFunc | None:
    """A function with names of its own and one slip."""
    block = rng.choice([item for item in blocks() if language in item.bodies])
    names = _names(rng, words, block, language)
    if len(set(names.values())) < len(names):
        return None
    fill = _filler(names)
    right = [fill(row) for row in block.bodies[language]]
    params = [names[letter] for letter in "abc"[: len(block.kinds)]]
    if rng.random() < MISSPELLED and (slip := _misspelled(rng, block, right, params, names["s"], language)):
        wrong, result, why = slip
    else:
        chosen = rng.choice(block.fitting(language))
        wrong = "\n".join(right).replace(fill(chosen.old), fill(chosen.new), 1).split("\n")
        result, why = fill(chosen.result), fill(chosen.why)
        if "\n".join(right).count(fill(chosen.old)) != 1 or chosen.new == "":
            return None
    env = _environment(rng, words, names)
    idea = Idea(
        block.verb,
        block.kinds,
        block.result,
        fill(block.described),
        "",
        "",
        "",
        "",
        _result(block.right, params_of(block), env),
        _result(result, params_of(block), env),
        _drawer(block.args, env),
    )
    noun = words.noun()
    parts = [block.verb, names["p"] if block.verb == "totalOf" else rng.choice(("", words.adjective())), noun]
    name = words.fresh(lambda: camel([part for part in parts if part]))
    name = name[0].upper() + name[1:] if language == "go" else name
    if name in names.values() or "{" in idea.described:
        return None
    is_said = block.verb in _COMMENTED or rng.random() < COMMENTED
    func = BodyFunc(idea, language, name, params, "", is_said)
    func.right, func.wrong, func.why = right, wrong, why
    func.mark = result.rpartition("@")[2] if result.startswith("!") else ""
    return func


def params_of(block: Block) -> str:
    """The names of its parameters in results."""
    return ", ".join("abc"[: len(block.kinds)])


def _filler(names: dict[str, str]) -> Callable[[str], str]:
    # `$qs`: the property with a letter too much
    return lambda text: re.sub(r"\$([abcsipq])", lambda match: names[match[1]], text)


def _names(rng: random.Random, words: Words, block: Block, language: str) -> dict[str, str]:
    """What the parameters, local names and properties are called."""
    names = {
        "s": rng.choice(("total", "result", "sum", "found", "value")),
        "i": rng.choice(("item", "entry", "one")),
    }
    for letter in (*"abc"[: len(block.kinds)], "p", "q"):
        name = words.variable("camel") if letter in "abc" else words.noun()
        while not name.isidentifier() or name in GO_WORDS or name in names.values() or len(name) < 3:
            name = words.variable("camel")
        names[letter] = name
    return names


def _environment(rng: random.Random, words: Words, names: dict[str, str]) -> dict[str, Any]:
    """What the expressions of webbugs.txt may name."""
    p, q = names["p"], names["q"]

    def item() -> dict[str, int]:
        return {p: rng.randint(2, 20), q: rng.randint(21, 40)}

    def items() -> list[dict[str, int]]:
        second = [rng.sample(range(21, 60), 3), rng.sample(range(2, 20), 3)]
        return [{p: one, q: other} for one, other in zip(second[1], second[0], strict=True)]

    return {"r": rng, "w": words.noun, "p": p, "q": q, "item": item, "items": items, "Plain": Plain}


def _result(text: str, params: str, env: dict[str, Any]) -> Callable[..., Any]:
    """What a function gives for its arguments, or raises."""
    if not text.startswith("!"):
        return eval(f"lambda {params}: {text}", env)
    said = text[1:].rpartition("@")[0]
    whole = re.sub(r"\{(len\(a\))\}", lambda _: "\0", said)
    count = eval(f"lambda {params}: len(a)", env) if "\0" in whole else None
    return lambda *args: Raised(whole.replace("\0", str(count(*args)) if count else ""))


def _drawer(args: str, env: dict[str, Any]) -> Callable[[], tuple[Any, ...]] | None:
    return (lambda: tuple(eval(args, dict(env)))) if args else None


def _misspelled(
    rng: random.Random, block: Block, right: list[str], params: list[str], local: str, language: str
) -> tuple[list[str], str, str] | None:
    """A name that is written wrongly where it is read: the lines, what is raised, and why."""
    if block.verb in _UNSURE:
        return None
    places = [
        (n, name)
        for n, row in enumerate(right)
        for name in (*params, *([local] if language == "js" else []))
        if "=>" not in row
        and row.startswith(("return", "for", "const", local))
        and re.search(rf"(?<![\w.]){name}\b(?! :?=)", row)
    ]
    places = [(n, name) for n, name in places if name != local or n == len(right) - 1]
    if not places:
        return None
    at, name = rng.choice(places)
    cut = rng.randrange(1, len(name) - 1)
    bad = rng.choice((name[:cut] + name[cut + 1 :], name[:cut] + name[cut] + name[cut:], f"{name}s"))
    if any(bad in row for row in right) or bad in GO_WORDS or bad == name:
        return None
    row = re.sub(rf"(?<![\w.]){name}\b(?! :?=)", bad, right[at], count=1)
    error = (
        f"!ReferenceError: {bad} is not defined@{bad}"
        if language == "js"
        else f"!build: undefined: {bad}@{bad}"
    )
    kind = "parameter" if name in params else "local name"
    return [*right[:at], row, *right[at + 1 :]], error, f"{bad} is made nowhere; the {kind} is {name}"

"""Small functions in JavaScript and Go whose results are known: what a line should be, how it goes wrong, and
what both give for some arguments.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from k3agent.backend.training.episodes.words import Words, camel, pascal

GO_TYPES = {"num": "int", "text": "string", "nums": "[]int", "texts": "[]string", "bool": "bool"}


@dataclass(frozen=True, slots=True)
class Idea:
    """A kind of function. `{a}`, `{b}`, `{c}` stand for its parameters."""

    verb: str
    kinds: tuple[str, ...]
    result: str
    described: str
    js: str
    js_wrong: str
    go: str
    go_wrong: str
    right: Callable[..., Any]
    wrong: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]] | None = None
    """Draws arguments, where not any would do."""


class Plain(str):
    """A value that is no text: NaN, undefined."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An error in the place of a value."""

    text: str


@cache
def ideas() -> tuple[Idea, ...]:
    """The ideas of ideas.txt."""
    text = (Path(__file__).parent / "ideas.txt").read_text(encoding="utf-8")
    rows = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(_idea(block.split("\n")) for block in rows.strip("\n").split("\n\n"))


def _idea(lines: list[str]) -> Idea:
    head, described, js, js_wrong, go, go_wrong, right, wrong = lines
    verb, _, kinds = head.partition(": ")
    taken, _, result = kinds.partition(" -> ")
    names = ", ".join("abc"[: len(taken.split())])
    return Idea(
        verb,
        tuple(taken.split()),
        result,
        described,
        js,
        js_wrong,
        js if go == "same" else go,
        js_wrong if go_wrong == "same" else go_wrong,
        eval(f"lambda {names}: {right}"),
        eval(f"lambda {names}: {wrong}"),
    )


@dataclass(slots=True)
class WebFunc:
    """A function of an idea: its name, its parameters and how its body is laid out."""

    idea: Idea
    language: str
    name: str
    params: list[str]
    local: str = ""
    documented: bool = False
    exported: bool = True
    title: str = ""
    """What its test is called, if not as the function."""

    @property
    def signature(self) -> str:
        """`name(a, b)`, with types in Go."""
        if self.language == "js":
            return f"{self.name}({', '.join(self.params)})"
        kinds = [f"{name} {GO_TYPES[kind]}" for name, kind in zip(self.params, self.idea.kinds, strict=True)]
        return f"{self.name}({', '.join(kinds)}) {GO_TYPES[self.idea.result]}"

    def _fill(self, text: str) -> str:
        return text.format(**dict(zip("abc", self.params, strict=False)))

    @property
    def described(self) -> str:
        """What it returns, in words."""
        return self._fill(self.idea.described)

    def expression(self, *, wrong: bool = False) -> str:
        """What it returns, as code."""
        idea = self.idea
        if self.language == "js":
            return self._fill(idea.js_wrong if wrong else idea.js)
        return self._fill(idea.go_wrong if wrong else idea.go)

    def line(self, *, wrong: bool = False) -> str:
        """The line of the body that holds the expression, without indentation."""
        end = ";" if self.language == "js" else ""
        if not self.local:
            return f"return {self.expression(wrong=wrong)}{end}"
        if self.language == "js":
            return f"const {self.local} = {self.expression(wrong=wrong)};"
        return f"{self.local} := {self.expression(wrong=wrong)}"

    def source(self, *, wrong: bool = False, export: bool = False) -> list[str]:
        """The definition."""
        lead, end = ("  ", ";") if self.language == "js" else ("\t", "")
        body = [lead + self.line(wrong=wrong)]
        if self.local:
            body.append(f"{lead}return {self.local}{end}")
        return self.defined(body, export=export)

    def defined(self, body: list[str], *, export: bool) -> list[str]:
        """The definition around the indented rows of a body."""
        if self.language == "js":
            doc = [f"/** Returns {self.described}. */"] if self.documented else []
            return [*doc, f"{'export ' if export else ''}function {self.signature} {{", *body, "}"]
        doc = [f"// {self.name} returns {self.described}."] if self.documented else []
        return [*doc, f"func {self.signature} {{", *body, "}"]

    def needs(self) -> str:
        """The package of Go's library that its body needs."""
        code = self.expression()
        return "strings" if "strings." in code else "fmt" if "fmt." in code else ""


def draw_func(rng: random.Random, words: Words, language: str) -> WebFunc:
    """A function with names of its own."""
    idea = rng.choice(ideas())
    noun = words.noun()
    parts = [part for part in (idea.verb, rng.choice(("", words.adjective())), noun) if part]
    name = words.fresh(lambda: camel(parts))
    if language == "go":
        name = name[0].upper() + name[1:]
    params: list[str] = []
    while len(params) < len(idea.kinds):
        param = words.variable("camel")
        if param not in (*params, name, noun) and param.isidentifier() and param not in GO_WORDS:
            params.append(param)
    local = rng.choice(("result", "value", camel([words.noun(), "value"]))) if rng.random() < 0.35 else ""
    return WebFunc(idea, language, name, params, "" if local in params else local, rng.random() < 0.4)


_GO_WORDS = """
    range type func map var const chan go select package import interface struct default case
    fallthrough defer goto switch string int len new make fmt strings error any nil true false delete in
    of let typeof static enum await super this export function arguments eval
"""
GO_WORDS = frozenset(_GO_WORDS.split())
"""Names that one of the languages keeps for itself."""


def draw_arguments(
    func: WebFunc, rng: random.Random, words: Words
) -> tuple[tuple[Any, ...], Any, Any] | None:
    """Arguments, what they should give, and what the wrong line gives; None if these are the same."""
    for _ in range(12):
        made = func.idea.args
        args = made() if made else tuple(_argument(kind, rng, words) for kind in func.idea.kinds)
        if func.idea.verb == "head":
            args = (args[0], rng.randint(1, 2))
        if func.idea.verb == "repeat":
            args = (args[0], rng.randint(2, 3))
        if func.idea.verb == "startsWith":
            args = (args[0], args[0][:3])
        if func.idea.verb == "trimmed":
            args = (f"{args[0]} ",)
        want, have = func.idea.right(*args), func.idea.wrong(*args)
        if func.idea.verb == "label" and func.language == "go":
            have = want.replace(": ", ":")
        if want != have:
            return args, want, have
    return None


def _argument(kind: str, rng: random.Random, words: Words) -> Any:
    if kind == "num":
        return rng.randint(2, 40)
    if kind == "text":
        return words.noun()
    if kind == "nums":
        return rng.sample(range(1, 60), rng.randint(2, 4))
    if kind.startswith("item"):
        raise ValueError("objects are drawn by their function")
    return [words.noun() for _ in range(rng.randint(2, 3))]


def literal(value: Any, language: str) -> str:
    """A value as code."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Plain | Raised):
        return value.text if isinstance(value, Raised) else str(value)
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key}: {literal(item, language)}' for key, item in value.items())} }}"
    if isinstance(value, str):
        return f'"{value}"' if language == "go" else f"'{value}'"
    if isinstance(value, list):
        inside = ", ".join(literal(item, language) for item in value)
        if language == "js":
            return f"[{inside}]"
        return f"[]{'string' if value and isinstance(value[0], str) else 'int'}{{{inside}}}"
    return str(value)


def call(func: WebFunc, args: tuple[Any, ...]) -> str:
    """A call as code."""
    return f"{func.name}({', '.join(literal(arg, func.language) for arg in args)})"


def test_name(func: WebFunc) -> str:
    """The name of its test."""
    return f"Test{pascal([func.name])}" if func.language == "go" else func.name

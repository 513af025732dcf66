"""Words and names: large lists with a fixed held-out part, and the identifiers, file names and texts
made of them.
"""

import builtins
import random
import sys
from collections.abc import Callable
from keyword import iskeyword
from pathlib import Path

from k3agent.backend.training.episodes import openwords
from k3agent.backend.training.episodes.openwords import OPEN_SHARE, is_held_out, open_word


def _lists() -> dict[str, list[str]]:
    """The sections of words.txt."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            found[name] = []
        elif line and not line.startswith("#"):
            found[name] += line.split()
    return found


_LISTS = _lists()
NOUNS = _LISTS["NOUNS"]

VERBS = _LISTS["VERBS"]

ADJECTIVES = _LISTS["ADJECTIVES"]

CONST_PREFIX = [
    "MAX",
    "MIN",
    "DEFAULT",
    "BASE",
    "TOTAL",
    "INITIAL",
    "FINAL",
    "EXTRA",
    "LOCAL",
    "GLOBAL",
    "MAIN",
]
CONST_SUFFIX = _LISTS["CONST_SUFFIX"]
PLURAL_EXCEPTIONS = {
    "mouse": "mice",
    "leaf": "leaves",
    "knife": "knives",
    "person": "people",
    "shelf": "shelves",
    "wolf": "wolves",
}


PROSE_SHARE = 0.35
"""Of all sentences in documents, comments and messages, those that people really wrote."""


def plural(noun: str) -> str:
    """The plural of an English noun of the list."""
    if noun in PLURAL_EXCEPTIONS:
        return PLURAL_EXCEPTIONS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def camel(words: list[str]) -> str:
    """lowerCamelCase of words."""
    return words[0] + "".join(word.capitalize() for word in words[1:])


def pascal(words: list[str]) -> str:
    """UpperCamelCase of words."""
    return "".join(word.capitalize() for word in words)


class Words:
    """Draws words and names, from the training part or from the held-out part, never twice the same name.

    `part` tells which wordings go with them (`wordings.grammar.PARTS`).
    """

    def __init__(self, rng: random.Random, held_out: bool = False, part: str = "") -> None:
        self.rng = rng
        self.natural = rng.random() < 0.5
        """Names as programs have them (users, orders, services) rather than any words of the language."""
        self.open_share = OPEN_SHARE * rng.choice((0.2, 0.7, 1.0, 1.4, 1.7))
        """The share of words without end; projects differ in it."""
        self.held_out = held_out
        self.part = part or ("held_out" if held_out else "train")
        pools = POOLS[held_out]
        self._usual = NATURAL_POOLS[held_out]
        self._nouns, self._verbs, self._adjectives = pools
        self.used: set[str] = set()

    def open(self) -> str | None:
        """A word that no list has, as often as this project has them."""
        return open_word(self.rng, self.held_out) if self.rng.random() < self.open_share else None

    def noun(self) -> str:
        """A noun; often one that no list has."""
        if (word := self.open()) is not None:
            return word
        if self.natural and self.rng.random() < 0.75:
            return self.rng.choice(self._usual["NATURAL_NOUNS"])
        return self.rng.choice(self._nouns)

    def verb(self) -> str:
        """A verb."""
        if self.rng.random() < 0.75 and (word := self.open()) is not None:
            return word
        if self.natural and self.rng.random() < 0.9:
            return self.rng.choice(self._usual["NATURAL_VERBS"])
        return self.rng.choice(self._verbs)

    def adjective(self) -> str:
        """An adjective."""
        if (word := self.open()) is not None:
            return word
        if self.natural and self.rng.random() < 0.85:
            return self.rng.choice(self._usual["NATURAL_ADJECTIVES"])
        return self.rng.choice(self._adjectives)

    def fresh(self, make: Callable[[], str], tries: int = 40) -> str:
        """The first name from `make()` that was not used yet and is none of Python's own."""
        for _ in range(tries):
            name = make()
            if name not in self.used and not hasattr(builtins, name):
                break
        else:
            name = f"{make()}{self.rng.randrange(2, 99)}"
        self.used.add(name)
        return name

    def function_words(self) -> list[str]:
        """Words of a function's name: verb first."""
        rng = self.rng
        kind = rng.random()
        if self.natural and kind > 0.7:
            noun = self.noun()
            return rng.choice(
                (
                    ["get", noun, "by", rng.choice(("id", "name", "email", "key", "date"))],
                    ["is", "valid", noun],
                    ["has", plural(noun)],
                    [noun, "to", rng.choice(("dict", "json", "text", "row"))],
                    [self.verb(), noun, rng.choice(("list", "data", "info", "path", "count", "total"))],
                    [self.verb(), "all", plural(noun)],
                    ["on", noun, rng.choice(("created", "changed", "deleted", "error"))],
                    ["_" + self.verb(), noun],
                )
            )
        if kind < 0.45:
            return [self.verb(), self.noun()]
        if kind < 0.65:
            return [self.verb(), self.adjective(), self.noun()]
        if kind < 0.72:
            return [self.verb(), self.noun(), self.noun()]
        if kind < 0.75:
            return [self.verb(), self.adjective(), self.noun(), self.noun()]
        if kind < 0.83:
            return [self.noun(), self.noun()]
        if kind < 0.88:
            return ["is", self.adjective()]
        if kind < 0.92:
            return [self.verb(), plural(self.noun())]
        return [self.verb()] if rng.random() < 0.4 else [self.noun(), "to", self.noun()]

    def function(self, style: str = "snake") -> str:
        """A fresh function name."""
        join = camel if style == "camel" else "_".join
        return self.fresh(lambda: join(self.function_words()))

    def variable(self, style: str = "snake") -> str:
        """A variable name; not reserved."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.55:
            words = [self.noun()]
        elif kind < 0.8:
            words = [self.adjective(), self.noun()]
        else:
            words = [self.noun(), self.noun()]
        name = camel(words) if style == "camel" else "_".join(words)
        return name if name not in RESERVED else name + "_value"

    def key(self) -> str:
        """A fresh key of a settings file."""
        rng = self.rng

        def make() -> str:
            kind = rng.random()
            if kind < 0.3 and rng.random() >= self.open_share:
                return rng.choice(_LISTS["COMMON_KEYS"])
            if kind < 0.6:
                return self.noun()
            return f"{self.adjective() if kind < 0.8 else self.noun()}_{self.noun()}"

        return self.fresh(make)

    def class_name(self) -> str:
        """A fresh class name."""

        def make() -> str:
            kind = self.rng.random()
            if self.natural and kind < 0.7:
                return pascal([self.noun()]) + self.rng.choice(_LISTS["CLASS_ENDS"])
            if kind < 0.35:
                return pascal([self.noun()])
            if kind < 0.8:
                return pascal([self.noun(), self.noun()])
            return pascal([self.adjective(), self.noun()])

        return self.fresh(make)

    def constant(self) -> str:
        """A fresh UPPER_CASE name."""
        rng = self.rng

        def make() -> str:
            kind = rng.random()
            if kind < 0.2 and rng.random() >= self.open_share:
                return rng.choice(_LISTS["COMMON_CONSTANTS"])
            if kind < 0.35:
                words = [rng.choice(CONST_PREFIX), self.noun()]
            elif kind < 0.6:
                words = [self.noun(), rng.choice(CONST_SUFFIX)]
            elif kind < 0.75:
                words = [rng.choice(CONST_PREFIX), self.noun(), rng.choice(CONST_SUFFIX)]
            elif kind < 0.85:
                words = [self.noun()]
            elif kind < 0.95:
                words = [self.adjective(), self.noun()]
            else:
                words = [rng.choice(CONST_PREFIX), rng.choice(CONST_SUFFIX)]
            return "_".join(words).upper()

        return self.fresh(make)

    def module(self) -> str:
        """A fresh module name (no extension)."""

        def make() -> str:
            kind = self.rng.random()
            if (word := self.open()) is not None:
                return word if kind < 0.6 else f"{word}_{self.noun()}"
            if self.natural and kind < 0.7:
                name = self.rng.choice(_LISTS["NATURAL_MODULES"])
                return name if kind < 0.5 else f"{self.noun()}_{name}"
            if kind < 0.25:
                return self.rng.choice(_LISTS["COMMON_MODULES"])
            if kind < 0.6:
                return self.noun()
            if kind < 0.75:
                return plural(self.noun())
            return f"{self.noun()}_{self.noun()}"

        return self.fresh(lambda: importable(make()))

    def file_stem(self, ending: str = "") -> str:
        """A file's name without extension: words with any separator where it is no code that is imported."""
        rng, roll = self.rng, self.rng.random()
        first, second = self.noun(), self.noun()
        if ending == "py" or roll < 0.4:
            name = first if roll < 0.25 else f"{first}_{second}"
            return importable(name) if ending == "py" else name
        if roll < 0.7:
            return f"{first}-{second}" if roll < 0.6 else f"{self.adjective()}-{first}-{second}"
        if roll < 0.8:
            return first + second.capitalize()
        if roll < 0.88:
            return f"{rng.randint(2019, 2030)}-{first}"
        return rng.choice(
            (f"{first}{rng.randint(1, 99)}", f"{first}.{second}", first.upper(), first.capitalize())
        )

    def title(self) -> str:
        """Two to four words, first upper-case, as in a heading."""
        words = [self.adjective(), self.noun()] if self.rng.random() < 0.6 else [self.noun(), self.noun()]
        if self.rng.random() < 0.2:
            words.append("notes")
        return " ".join(words).capitalize()

    def phrase(self) -> str:
        """A short sentence without full stop."""
        rng = self.rng
        if rng.random() < PROSE_SHARE:
            return self.sentence()
        noun, other = self.noun(), self.noun()
        if self.natural and rng.random() < 0.7:
            return rng.choice(
                (
                    f"{self.verb()} the {noun} and return the {other}",
                    f"{self.verb()} {plural(noun)} for the given {other}",
                    f"return early when the {noun} is {self.adjective()}",
                    f"called once for every {noun}",
                    f"the {self.adjective()} {noun} comes from the {other} service",
                    f"helpers for {plural(noun)} and {plural(other)}",
                    f"{self.verb()} the {noun} before saving the {other}",
                    f"raise an error if the {noun} has no {other}",
                    f"everything about {plural(noun)}",
                    f"keep this in sync with the {noun} {rng.choice(('table', 'schema', 'page', 'view'))}",
                    f"the {noun} must be {self.adjective()} here",
                    f"see the {noun} docs for the {other} format",
                )
            )
        return rng.choice(
            (
                f"{self.verb()} the {noun} before the {other}",
                f"the {self.adjective()} {noun} is {self.adjective()}",
                f"every {noun} has a {self.adjective()} {other}",
                f"{self.verb()} {plural(noun)} and {plural(other)}",
                f"{plural(noun)} are kept in the {self.adjective()} {other}",
                f"ask the {noun} about the {other}",
                f"a {noun} without a {other} is {self.adjective()}",
                f"do not {self.verb()} the {self.adjective()} {noun}",
                f"{noun} {self.verb()}s {other}",
            )
        )

    def sentence(self) -> str:
        """A real sentence from the library's documentation, without full stop."""
        texts = openwords.sentences(self.held_out)
        text = self.rng.choice(texts)
        return text if self.rng.random() < 0.6 else text[0].lower() + text[1:]

    def text_value(self) -> str:
        """A short string as found in constants and settings."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            return self.noun()
        if kind < 0.42:
            return rng.choice(("-", "_", ".", "/", "")).join(self.noun() for _ in range(rng.choice((2, 3))))
        if kind < 0.47:
            return camel([self.verb(), self.adjective(), self.noun()])
        if kind < 0.6:
            return f"{self.adjective()}-{self.noun()}"
        if kind < 0.7:
            return f"{self.noun()}_{rng.randrange(1, 99)}"
        if kind < 0.78:
            return f"https://{self.noun()}.example.com/{self.noun()}"
        if kind < 0.86:
            return f"/{self.noun()}/{self.noun()}"
        if kind < 0.92:
            return f"{self.adjective()} {self.noun()}"
        return f"{self.noun()}.{rng.choice(('txt', 'csv', 'log', 'json', 'db'))}"


RESERVED = frozenset(
    [
        "and",
        "as",
        "assert",
        "async",
        "await",
        "break",
        "class",
        "continue",
        "def",
        "del",
        "elif",
        "else",
        "except",
        "finally",
        "for",
        "from",
        "global",
        "if",
        "import",
        "in",
        "is",
        "lambda",
        "nonlocal",
        "not",
        "or",
        "pass",
        "raise",
        "return",
        "try",
        "while",
        "with",
        "yield",
        "None",
        "True",
        "False",
        "list",
        "dict",
        "set",
        "str",
        "int",
        "float",
        "sum",
        "min",
        "max",
        "len",
        "map",
        "filter",
        "input",
        "range",
        "print",
        "open",
        "type",
        "id",
        "hash",
        "next",
        "iter",
        "all",
        "any",
        "bin",
        "hex",
        "oct",
        "object",
        "property",
        "format",
        "match",
        "case",
        "round",
        "super",
        "zip",
        "sorted",
        "reversed",
        "abs",
        "pow",
        "ord",
        "chr",
        "dir",
        "vars",
        "slice",
        "bytes",
        "self",
        "cls",
    ]
)
HIDING = RESERVED.union(_LISTS["STDLIB_CLASH"], _LISTS["INSTALLED"], sys.stdlib_module_names)
"""Names of modules that are there already, or look too much like it: those of the standard library, and of
packages that many environments have. A test runner may have imported them before the project's own.
"""


def importable(name: str, ending: str = "_tools") -> str:
    """A name for a module or package of a project; one that is taken gets an ending."""
    return name + ending if name in HIDING else name


NATURAL_POOLS = {
    held_out: {
        name: [word for word in _LISTS[name] if is_held_out(word) == held_out]
        for name in ("NATURAL_NOUNS", "NATURAL_VERBS", "NATURAL_ADJECTIVES")
    }
    for held_out in (False, True)
}
POOLS = {
    held_out: tuple(
        [word for word in words if is_held_out(word) == held_out and not iskeyword(word)]
        for words in (NOUNS, VERBS, ADJECTIVES)
    )
    for held_out in (False, True)
}

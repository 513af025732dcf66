"""Random typed expressions: trees with their Python text and an English description, and function
bodies made of them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from k3agent.backend.training.episodes.concepts import Func, compile_function, copy_value
from k3agent.backend.training.episodes.words import RESERVED, Words, plural

Maker = Callable[["Grammar", int], "Expr"]


@dataclass(frozen=True, slots=True)
class Expr:
    """Python text, English words, and how tightly it binds (higher is tighter)."""

    code: str
    words: str
    level: int = 9

    def inside(self, level: int) -> str:
        """The code, in brackets where it binds less tightly than `level`."""
        return self.code if self.level >= level else f"({self.code})"


class Grammar:
    """Draws expressions over variables in scope, by type: int, str, bool, ints, strs, dict."""

    def __init__(
        self, rng: random.Random, words: Words, scope: dict[str, str], constants: dict[str, str] | None = None
    ) -> None:
        self.rng = rng
        self.words = words
        self.scope = scope
        self.constants = constants or {}

    def leaf(self, kind: str) -> Expr:
        """A variable of the type, or a literal."""
        rng = self.rng
        names = [name for name, of in self.scope.items() if of == kind]
        names += [name for name, of in self.constants.items() if of == kind]
        if names and rng.random() < 0.85:
            name = rng.choice(names)
            return Expr(name, name)
        match kind:
            case "int":
                number = str(rng.choice((1, 2, 3, 5, 10, 100, rng.randint(2, 60))))
                return Expr(number, number)
            case "str":
                text = rng.choice((self.words.noun(), "-", " ", ",", self.words.adjective()))
                return Expr(f"'{text}'", f"'{text}'")
            case "bool":
                return self.make("bool", 1)
            case "ints":
                name = "[" + ", ".join(str(rng.randint(1, 9)) for _ in range(rng.randint(1, 3))) + "]"
                return Expr(name, name)
            case "strs":
                name = "[" + ", ".join(f"'{self.words.noun()}'" for _ in range(rng.randint(1, 3))) + "]"
                return Expr(name, name)
        return Expr("{}", "an empty dict")

    def unlike(self, one: Expr, kind: str, depth: int = 0) -> Expr:
        """A random expression that is not, and does not begin with, the one that it stands beside."""
        while True:
            other = self.make(kind, depth)
            if not f"{other.code} ".startswith(f"{one.code} "):
                return other

    def make(self, kind: str, depth: int) -> Expr:
        """A random expression of a type."""
        if depth <= 0:
            return self.leaf(kind)
        makers = PRODUCTIONS.get(kind, ())
        if not makers or self.rng.random() < 0.12:
            return self.leaf(kind)
        return self.rng.choice(makers)(self, depth)


def binary(operator: str, level: int, *phrases: str, right_level: int | None = None) -> Maker:
    """A production for `a operator b` on numbers."""

    def make(grammar: Grammar, depth: int) -> Expr:
        left = grammar.make("int", depth - 1)
        right = grammar.unlike(left, "int", depth - 2)
        words = grammar.rng.choice(phrases).format(left.words, right.words)
        return Expr(f"{left.inside(level)} {operator} {right.inside(right_level or level)}", words, level)

    return make


def compare(operator: str, *phrases: str) -> Maker:
    """A production for comparing numbers."""

    def make(grammar: Grammar, depth: int) -> Expr:
        left = grammar.make("int", depth - 1)
        right = grammar.unlike(left, "int")
        words = grammar.rng.choice(phrases).format(left.words, right.words)
        return Expr(f"{left.inside(4)} {operator} {right.inside(4)}", words, 3)

    return make


def unary(kind: str, code: str, *phrases: str, level: int = 9) -> Maker:
    """A production with one inner expression; `{}` in `code` stands for it."""

    def make(grammar: Grammar, depth: int) -> Expr:
        inner = grammar.make(kind, depth - 1)
        return Expr(code.format(inner.inside(8)), grammar.rng.choice(phrases).format(inner.words), level)

    return make


def pair(kinds: tuple[str, str], code: str, *phrases: str, level: int = 9) -> Maker:
    """A production with two inner expressions of given types."""

    def make(grammar: Grammar, depth: int) -> Expr:
        first = grammar.make(kinds[0], depth - 1)
        second = grammar.unlike(first, kinds[1])
        text = code.format(first.inside(8), second.inside(8))
        return Expr(text, grammar.rng.choice(phrases).format(first.words, second.words), level)

    return make


def comprehension(source: str, result: str) -> Maker:
    """A list made from a list by a small expression, sometimes with a condition."""
    inner_kind = "int" if source == "ints" else "str"

    def make(grammar: Grammar, depth: int) -> Expr:
        rng = grammar.rng
        items = grammar.leaf(source)
        name = rng.choice(("item", "value", "x", "entry", "part"))
        if name in grammar.scope:
            name = "element"
        inside = Grammar(rng, grammar.words, {name: inner_kind}, grammar.constants)
        body = inside.make("int" if result == "ints" else "str", 1)
        if name not in body.code:
            body = (
                Expr(name, name)
                if inner_kind == ("int" if result == "ints" else "str")
                else Expr(f"len({name})", f"the length of {name}")
            )
        code, words = (
            f"[{body.code} for {name} in {items.code}",
            f"a list of {body.words} for each {name} in {items.words}",
        )
        if rng.random() < 0.4:
            test = inside.make("bool", 1)
            code, words = f"{code} if {test.code}", f"{words} where {test.words}"
        return Expr(code + "]", words)

    return make


def f_string(grammar: Grammar, depth: int) -> Expr:
    """Text with values filled in."""
    rng = grammar.rng
    first = grammar.leaf(rng.choice(("str", "int")))
    second = grammar.unlike(first, rng.choice(("str", "int")))
    link = rng.choice((": ", " ", ", ", "-", " of ", " = ", "/"))
    if "'" in first.code + second.code or "{" in first.code + second.code:
        return grammar.leaf("str")
    return Expr(
        f"f'{{{first.code}}}{link}{{{second.code}}}'",
        f"{first.words} and {second.words} with '{link}' between",
    )


def conditional(kind: str) -> Maker:
    """`a if test else b`."""

    def make(grammar: Grammar, depth: int) -> Expr:
        test, first = grammar.make("bool", 1), grammar.make(kind, depth - 1)
        second = grammar.unlike(first, kind)
        return Expr(
            f"{first.inside(2)} if {test.code} else {second.code}",
            f"{first.words} if {test.words}, else {second.words}",
            1,
        )

    return make


PRODUCTIONS: dict[str, tuple[Maker, ...]] = {
    "int": (
        binary("+", 5, "{} plus {}", "the sum of {} and {}"),
        binary("-", 5, "{} minus {}", "the difference of {} and {}", right_level=6),
        binary("*", 6, "{} times {}", "the product of {} and {}"),
        binary("+", 5, "{} increased by {}"),
        binary("//", 6, "{} divided by {}, rounded down", right_level=7),
        binary("%", 6, "the remainder of {} divided by {}", right_level=7),
        unary("ints", "sum({})", "the sum of {}"),
        unary("ints", "len({})", "the number of items in {}"),
        unary("str", "len({})", "the length of {}"),
        unary("int", "abs({})", "the absolute value of {}"),
        pair(("int", "int"), "max({}, {})", "the larger of {} and {}"),
        pair(("int", "int"), "min({}, {})", "the smaller of {} and {}"),
        pair(("dict", "str"), "{}.get({}, 0)", "the value in {} for {}, or 0"),
        conditional("int"),
    ),
    "str": (
        pair(("str", "str"), "{} + {}", "{} followed by {}", level=5),
        unary("str", "{}.upper()", "{} in upper case"),
        unary("str", "{}.lower()", "{} in lower case"),
        unary("str", "{}.strip()", "{} without surrounding spaces"),
        unary("str", "{}.title()", "{} in title case"),
        unary("int", "str({})", "{} as text"),
        unary("strs", "', '.join({})", "the parts of {} joined with commas"),
        pair(("str", "str"), "{}.replace({}, '')", "{} with every {} removed"),
        unary("str", "{}[:3]", "the first three characters of {}"),
        unary("str", "{}[::-1]", "{} backwards"),
        f_string,
        conditional("str"),
    ),
    "bool": (
        compare(">", "{} is greater than {}", "{} is above {}"),
        compare("<", "{} is less than {}", "{} is below {}"),
        compare(">=", "{} is at least {}"),
        compare("<=", "{} is at most {}"),
        compare("==", "{} is equal to {}", "{} equals {}"),
        compare("!=", "{} is not {}"),
        pair(("str", "str"), "{}.startswith({})", "{} starts with {}"),
        pair(("str", "strs"), "{} in {}", "{} is in {}", level=3),
        unary("str", "not {}", "{} is empty", level=2),
    ),
    "ints": (
        comprehension("ints", "ints"),
        unary("ints", "sorted({})", "{} sorted"),
        comprehension("strs", "ints"),
        unary("ints", "{}[1:]", "all but the first of {}"),
        unary("ints", "{}[::-1]", "{} in reverse order"),
    ),
    "strs": (
        comprehension("strs", "strs"),
        unary("str", "{}.split()", "the words of {}"),
        unary("strs", "sorted({})", "{} sorted"),
        pair(("str", "str"), "{}.split({})", "{} split at {}"),
    ),
}
SAMPLES: dict[str, Callable[[random.Random, Words], object]] = {
    "int": lambda rng, words: rng.randint(0, 20),
    "str": lambda rng, words: rng.choice((words.noun(), f"{words.adjective()} {words.noun()}")),
    "ints": lambda rng, words: [rng.randint(0, 12) for _ in range(rng.randint(1, 4))],
    "strs": lambda rng, words: [words.noun() for _ in range(rng.randint(1, 3))],
    "dict": lambda rng, words: {words.noun(): rng.randint(1, 9)},
}
HINTS = {"int": "int", "str": "str", "ints": "list[int]", "strs": "list[str]", "dict": "dict[str, int]"}


def draw_params(rng: random.Random, words: Words, count: int) -> dict[str, str]:
    """Parameter names with types."""
    scope: dict[str, str] = {}
    for _ in range(count):
        kind = rng.choice(("int", "int", "int", "str", "str", "ints", "strs", "dict"))
        name = words.variable()
        if kind in ("ints", "strs"):
            name = plural(words.noun())
        if name not in RESERVED:
            scope[name] = kind
    return scope or {"value": "int"}


def described_function(rng: random.Random, words: Words, style: str = "snake") -> Func:
    """A one-line function with an exact description of what it returns."""
    while True:
        scope = draw_params(rng, words, rng.choice((1, 2, 2, 3)))
        kind = rng.choice(("int", "int", "int", "str", "str", "bool", "ints", "strs"))
        expr = Grammar(rng, words, scope).make(kind, rng.choice((1, 2, 2, 3)))
        params = [name for name in scope if name in expr.code]
        if not params or expr.code in scope or len(expr.words) > 110:
            continue
        prefix = "True if " if kind == "bool" else ""
        func = Func(
            name=words.function(style),
            params=params,
            body=[f"    return {expr.code}"],
            description=f"{prefix}{expr.words}",
            hints=[HINTS[scope[name]] for name in params],
        )
        if add_cases(func, scope, rng, words):
            return func


def add_cases(
    func: Func,
    scope: dict[str, str],
    rng: random.Random,
    words: Words,
    extra: dict[str, object] | None = None,
) -> bool:
    """Fill in cases by running the function; False when it never returns."""
    try:
        function = compile_function(func, extra)
    except SyntaxError:
        return False
    for _ in range(6):
        args = tuple(SAMPLES[scope[name]](rng, words) for name in func.params)
        try:
            value = function(*[copy_value(arg) for arg in args])
        except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError):
            continue
        if all(args != seen for seen, _ in func.cases) and len(repr(value)) < 60:
            func.cases.append((args, value))
        if len(func.cases) == 3:
            break
    return bool(func.cases)

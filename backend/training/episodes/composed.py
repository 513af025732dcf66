"""Functions composed of the expressions of composed.txt: what they return in English and in Python, to depth
two, with parameters and constants of the module, checked by running.
"""

import ast
import random
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from k3agent.backend.training.episodes.concepts import Func, compile_function, copy_value
from k3agent.backend.training.episodes.words import RESERVED, Words, plural

SLOT = re.compile(
    r"([$@])(num|text|flag|nums|texts|table)(\d?)\b|#([nkwcqog])(\d?)|%((?:test|map)(?:num|text))"
)
SIGNS = {
    "!": ("an exclamation mark",),
    "?": ("a question mark",),
    ",": ("a comma",),
    ".": ("a dot", "a full stop", "a period"),
    "-": ("a dash", "a hyphen"),
    "_": ("an underscore",),
    " ": ("a space", "a blank"),
    ":": ("a colon",),
    ";": ("a semicolon",),
    "/": ("a slash",),
    "#": ("a hash sign",),
    "*": ("an asterisk", "a star"),
    "@": ("an at sign",),
    "\\n": ("a newline", "a line break"),
}
SMALL = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 8: "eight", 10: "ten", 12: "twelve"}
GREETINGS = ("Hello", "Hi", "Welcome", "Goodbye", "Dear", "Good morning")
UNITS = ("items", "points", "km", "days", "pages", "euros", "files", "minutes", "left", "done")
NAMES = {
    "num": "value amount number price width height count total n x size weight age speed score limit".split(),  # noqa: SIM905
    "text": "text word name title line label message sentence key line".split(),  # noqa: SIM905
    "nums": "numbers values scores prices sizes amounts counts weights".split(),  # noqa: SIM905
    "texts": "words names lines items titles entries labels parts".split(),  # noqa: SIM905
    "table": "prices counts ages scores table mapping data weights".split(),  # noqa: SIM905
    "flag": "active enabled ready flag".split(),  # noqa: SIM905
}
HINTS = {
    "num": "int",
    "text": "str",
    "nums": "list[int]",
    "texts": "list[str]",
    "table": "dict[str, int]",
    "flag": "bool",
}
LEVELS: dict[type, int] = {ast.IfExp: 1, ast.BoolOp: 2, ast.UnaryOp: 3, ast.Compare: 4, ast.BinOp: 5}
ATOM = 9
NESTED = 0.45
"""Of the places for an expression, those that hold one and not a parameter."""
BEFORE = re.compile(r"(?:^|[,:]|\b(?:if|when|unless|than|equals))\s*$")
BEHIND = re.compile(
    r"\s*$|,|\s(?:is|are|has|have|lies|equals|exceeds|reaches|differs|does|can|starts|begins|ends|contains)\b"
)
"""What may stand around an expression whose words would run into others."""
ARTICLE = re.compile(r"\b(?:the|those|key)\s+$")
MAX_WORDS = 130
MAX_CODE = 100


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of composed.txt; `level` tells how tightly its Python binds."""

    kind: str
    code: str
    phrases: tuple[str, ...]
    level: int
    free: frozenset[str]
    """Slots that stand between brackets and commas, and need none of their own."""


def _level(code: str) -> int:
    plain = SLOT.sub(lambda match: "1" if match[4] in ("o", "g") else "zz", code)
    return LEVELS.get(type(ast.parse(plain, mode="eval").body), ATOM)


@cache
def rules() -> dict[str, tuple[Rule, ...]]:
    """The rules by the kind of their result."""
    found: dict[str, list[Rule]] = {}
    for line in (Path(__file__).parent / "composed.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        kind, code, phrases = (part.strip() for part in line.split(" | "))
        free = frozenset(
            match[0]
            for match in SLOT.finditer(code)
            if code[: match.start()].rstrip()[-1:] in ("(", ",", "{", "[")
            and code[match.end() :].lstrip()[:1] in (")", ",", "}", "]")
        )
        parts = tuple(part.strip() for part in phrases.split(";"))
        found.setdefault(kind, []).append(Rule(kind, code, parts, _level(code), free))
    return {kind: tuple(items) for kind, items in found.items()}


@dataclass(slots=True)
class Composer:
    """Draws one function: its parameters are named as they are needed."""

    rng: random.Random
    words: Words
    constants: dict[str, object]
    params: dict[str, str] = field(default_factory=dict)
    item: str = ""
    used: set[str] = field(default_factory=set)
    open: tuple[bool, bool] = (False, False)
    """Whether the last expression's words may run into what stands before them, and behind them."""

    def param(self, kind: str, apart: set[str]) -> str:
        """A parameter of the kind that is not in `apart`: mostly one that is there already."""
        rng, words = self.rng, self.words
        have = [name for name, of in self.params.items() if of == kind and name not in apart]
        if have and rng.random() < 0.75:
            return rng.choice(have)
        name = ""
        for _ in range(20):
            noun = words.noun()
            own = plural(noun) if kind in ("nums", "texts", "table") else noun
            name = rng.choice((rng.choice(NAMES[kind]), own, words.variable() if kind == "num" else own))
            if (
                name not in (*self.params, self.item)
                and name not in RESERVED
                and name not in self.constants
                and name.isidentifier()
            ):
                break
        self.params[name] = kind
        return name

    def literal(self, kind: str) -> tuple[str, str]:
        """(Python, English) of a number, a word, a sign or a key."""
        rng, noun = self.rng, self.words.noun
        named = [name for name, value in self.constants.items() if type(value) in (int, float)]
        texts = [name for name, value in self.constants.items() if isinstance(value, str)]
        if kind == "n" and named and rng.random() < 0.6:
            return self.constant(rng.choice(named))
        if kind == "w" and texts and rng.random() < 0.3:
            return self.constant(rng.choice(texts))
        if kind == "n":
            number = rng.choice(
                (1, 10, 100, 1000, 0.5, 1.5, rng.randint(2, 99), rng.randint(2, 20), rng.randint(2, 500))
            )
            return str(number), str(number)
        if kind == "k":
            number = rng.choice((*SMALL, rng.randint(2, 20)))
            return str(number), SMALL[number] if number in SMALL and rng.random() < 0.4 else str(number)
        if kind == "c":
            sign = rng.choice(tuple(SIGNS))
            return f'"{sign}"', rng.choice((*SIGNS[sign], f"'{sign}'", f'"{sign}"'))
        if kind in ("o", "g"):
            word = rng.choice(UNITS if kind == "o" else GREETINGS)
            return word, word
        word = rng.choice((noun(), noun(), self.words.adjective(), noun()[:3], noun().capitalize()))
        return f'"{word}"', rng.choice((f"'{word}'", f'"{word}"', f"'{word}'", f"`{word}`"))

    def constant(self, name: str) -> tuple[str, str]:
        """A constant of the module."""
        self.used.add(name)
        return name, name

    def variable(self, kind: str) -> tuple[str, str, int]:
        """The name of an item of a list."""
        if not self.item:
            usual = ("number", "value", "x", "n") if kind == "num" else ("word", "name", "text", "item")
            self.item = next(
                (name for name in self.rng.sample(usual, 4) if name not in self.params), "element"
            )
        return self.item, self.item, ATOM

    def make(self, kind: str, depth: int) -> tuple[str, str, int]:
        """(Python, English, how tightly it binds) of a random expression of a kind."""
        rule = self.rng.choice(rules()[kind])
        phrase = self.rng.choice(rule.phrases)
        pieces: dict[str, tuple[str, str, int]] = {}
        if "X" in rule.code:
            numbers = kind in ("testnum", "mapnum") or "nums" in rule.code
            pieces["X"] = self.variable("num" if numbers else "text")
        apart: set[str] = set()
        for match in SLOT.finditer(rule.code):
            if match[0] in pieces:
                continue
            if match[4]:
                pieces[match[0]] = (*self.literal(match[4]), ATOM)
            elif match[6]:
                pieces[match[0]] = self.make(match[6], 0)
            elif match[1] == "@" or (depth <= 0 and match[2] != "flag") or self.rng.random() > NESTED:
                name = self.param(match[2], apart)
                apart.add(name)
                plain = match[2] == "flag" or ARTICLE.search(phrase.partition(match[0])[0])
                said = self.rng.choice(("{}", "{}", "{}", "{}", "{}", "{}", "the {}", "the given {}"))
                said = "{}" if plain else said
                pieces[match[0]] = (name, said.format(name), ATOM)
            else:
                pieces[match[0]] = self.nested(match[2], depth - 1, match[0], phrase, apart)
        self.open = _open(kind, phrase)
        return _fill(rule, pieces), _said(phrase, pieces), rule.level

    def nested(self, kind: str, depth: int, slot: str, phrase: str, apart: set[str]) -> tuple[str, str, int]:
        """An expression for a slot of a phrase; a parameter where its words would run into the phrase's."""
        kept = (dict(self.params), self.item, set(self.used))
        made = self.make(kind, depth)
        head, _, tail = phrase.partition(slot)
        if (self.open[0] and not BEFORE.search(head)) or (self.open[1] and not BEHIND.match(tail)):
            self.params, self.item, self.used = kept
            name = self.param(kind, apart)
            apart.add(name)
            return name, name, ATOM
        return made


def _fill(rule: Rule, pieces: dict[str, tuple[str, str, int]]) -> str:
    """The rule's Python with the pieces in it, bracketed where they bind less tightly than they must."""

    def put(match: re.Match[str]) -> str:
        code, _, level = pieces[match[0]]
        needed = (
            0 if match[0] in rule.free or match[6] else ATOM if rule.level in (ATOM, 5) else rule.level + 1
        )
        return code if level >= needed else f"({code})"

    code = SLOT.sub(put, rule.code)
    return re.sub(r"\bX\b", pieces["X"][0], code) if "X" in pieces else code


def _open(kind: str, phrase: str) -> tuple[bool, bool]:
    """Whether a phrase begins, and whether it ends, with what another phrase's words may take for itself:
    half of {a plus b}, {a plus b} times 3.
    """
    slots = list(SLOT.finditer(phrase))
    at_start = any(slot.start() == 0 and slot[2] == kind for slot in slots)
    at_end = any(slot.end() == len(phrase) and slot[2] in (kind, None) for slot in slots)
    return at_start, at_end


def _alike(code: str) -> bool:
    """Whether something is done with two of the same: x - x, min(x, x), x if y else x."""
    for node in ast.walk(ast.parse(code, mode="eval")):
        match node:
            case ast.BinOp(left=one, right=two) | ast.IfExp(body=one, orelse=two):
                pair = (one, two)
            case ast.Compare(left=one, comparators=[two]):
                pair = (one, two)
            case ast.Call(args=[one, two]):
                pair = (one, two)
            case _:
                continue
        if ast.dump(pair[0]) == ast.dump(pair[1]):
            return True
    return False


def _said(phrase: str, pieces: dict[str, tuple[str, str, int]]) -> str:
    return SLOT.sub(lambda match: pieces[match[0]][1], phrase)


def _sample(kind: str, rng: random.Random, words: Words, literals: list[str]) -> object:
    """An argument, often made of numbers and texts of the body, because those divide the cases."""
    numbers = [
        (float if "." in text else int)(text) for text in literals if re.fullmatch(r"\d+(\.\d+)?", text)
    ]
    texts = [text for text in literals if not text[:1].isdigit() and "{" not in text]

    def number() -> float:
        if numbers and rng.random() < 0.5:
            return rng.choice(numbers) + rng.choice((-1, 0, 1))
        return rng.choice((rng.randint(-5, 30), rng.randint(1, 12)))

    def text() -> str:
        word = rng.choice(
            (words.noun(), f"{words.adjective()} {words.noun()}", words.noun().capitalize(), words.noun() * 2)
        )
        if texts and rng.random() < 0.6:
            part = rng.choice(texts).replace("\\n", "\n")
            word = rng.choice((part + word, word + part, f"{word}{part}{words.noun()}", part))
        return rng.choice((word, word, word, word, f" {word} ", word.upper(), str(rng.randint(1, 900))))

    match kind:
        case "num":
            return number()
        case "nums":
            return [number() for _ in range(rng.randint(1, 5))]
        case "texts":
            return [text() for _ in range(rng.randint(1, 4))]
        case "table":
            return {words.noun(): number() for _ in range(rng.randint(1, 4))}
        case "flag":
            return rng.random() < 0.5
    return text()


def add_cases(func: Func, kinds: dict[str, str], rng: random.Random, words: Words) -> bool:
    """Up to five calls with their results; False where it fails, or all results are one."""
    try:
        function = compile_function(func)
    except SyntaxError:
        return False
    literals = [
        one or two for one, two in re.findall(r"\"([^\"]+)\"|\b(\d+(?:\.\d+)?)\b", "\n".join(func.body))
    ]
    literals += [str(value) for value in func.constants.values()]
    for _ in range(10):
        args = tuple(_sample(kinds[name], rng, words, literals) for name in func.params)
        table = next((arg for arg in args if isinstance(arg, dict)), None)
        if table and rng.random() < 0.6:
            args = tuple(rng.choice(list(table)) if isinstance(arg, str) else arg for arg in args)
        try:
            value = function(*[copy_value(arg) for arg in args])
        except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError):
            continue
        if (
            isinstance(value, complex)
            or len(repr(value)) > 200
            or any(args == seen for seen, _ in func.cases)
        ):
            continue
        func.cases.append((args, value))
        if len(func.cases) == 5:
            break
    return len({repr(value) for _, value in func.cases}) > 1


def composed_function(
    rng: random.Random, words: Words, constants: dict[str, object] | None = None, style: str = "snake"
) -> Func:
    """A function and what it returns, in words; `constants` are the module's."""
    while True:
        composer = Composer(rng, words, constants or {})
        kind = rng.choice(("num", "num", "text", "text", "flag", "flag", "nums", "texts"))
        code, said, _ = composer.make(kind, rng.choice((0, 0, 1, 1, 2)))
        if len(said) > MAX_WORDS or len(code) > MAX_CODE or not composer.params or not _agrees(said):
            continue
        if _alike(code):
            continue
        body = [f"    return {code}"]
        if kind == "flag":
            said = rng.choice(
                ("True if {}", "True if {}", "whether {}", "True when {}", "True if {}, else False")
            ).format(said)
        params = list(composer.params)
        lists = [name for name in params if composer.params[name] in ("nums", "texts", "table")]
        if kind in ("num", "text") and lists and rng.random() < 0.12:
            default = rng.choice(("0", "None") if kind == "num" else ('""', "None"))
            end = rng.choice((f"return {default}", default))
            body = (
                [f"    if not {lists[0]}:", f"        return {default}", *body]
                if end.startswith("return")
                else [
                    f"    return {code if ' if ' not in code else f'({code})'} if {lists[0]} else {default}"
                ]
            )
            name = "an empty text" if default == '""' else default
            said = f"{said}, {rng.choice(('or', 'and'))} {name} if {lists[0]} is empty"
        func = Func(
            name=words.function(style),
            params=params,
            body=body,
            description=said,
            hints=[HINTS[composer.params[name]] for name in params],
            constants={name: composer.constants[name] for name in sorted(composer.used)},
        )
        if add_cases(func, composer.params, rng, words):
            return func


def _agrees(said: str) -> bool:
    """Whether a description is not so nested that two readings of it are likely."""
    return said.count(" if ") + said.count(" when ") < 2 and said.count(" or ") + said.count(" and ") < 4


def constants_of(text: str) -> dict[str, object]:
    """The numbers and plain texts that a Python file names in capitals at its top level."""
    found: dict[str, object] = {}
    for name, value in re.findall(
        r"^([A-Z][A-Z0-9_]+)(?:: \w+)? = (-?\d[\d_]*(?:\.\d+)?|\"[^\"\\\n]*\"|'[^'\\\n]*')$",
        text,
        re.MULTILINE,
    ):
        found[name] = ast.literal_eval(value) if not re.match(r"0\d", value) else 0
    return found

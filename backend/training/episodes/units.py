"""Natural code: small functions and classes as real projects have them, from natural/*.txt, with tests; names
and numbers are drawn anew, and what the tests expect is computed.

A file has units between lines `==`: code, a line `--`, tests in paragraphs: `? expression` is a claim about
its value, `! Error expression` one about an exception, all else is done before.
"""

import ast
import builtins
import keyword
import random
import re
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from k3agent.backend.training.episodes.concepts import Func, compile_function, copy_value
from k3agent.backend.training.episodes.mutate import ENDLESS, limited
from k3agent.backend.training.episodes.words import RESERVED, Words, pascal

FOLDER = Path(__file__).parent / "natural"
RENAMED = 0.55
"""Of all units drawn, those in which some names are other words."""
ALTERED = 0.6
"""Of all groups of tests, those whose numbers are others."""
KEPT_NUMBERS = frozenset("0 1 2 7 10 12 24 60 100 365 1000 1024 3600 86400".split())  # noqa: SIM905
"""Numbers of code that mean something."""
LONGEST_VALUE = 90
DOCUMENTED = 0.5
_FIXED = frozenset(
    {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "cls", "args", "kwargs", "raises"}
    | {name for kind in (str, list, dict, set, tuple, int, float, bytes) for name in dir(kind)}
    | RESERVED
)
_NUMBER = re.compile(r"(?<![\w.'\"-])\d+(?![\w.'\"])")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


@dataclass(frozen=True, slots=True)
class Unit:
    """Code as lines, and groups of tests as lines."""

    code: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The code."""
        return "\n".join(self.code) + "\n"

    @property
    def names(self) -> list[str]:
        """The functions and classes at its top level."""
        return re.findall(r"^(?:def|class) (\w+)", self.text, re.MULTILINE)


@dataclass(slots=True)
class Expected:
    """One group of tests: what is done first, and what must hold: (expression, value or None, exception)."""

    setup: list[str]
    claims: list[tuple[str, Any, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UnitSample:
    """Judges a text of the unit's file."""

    expected: tuple[Expected, ...]

    def results(self, source: str) -> list[str]:
        """What every claim's expression gives, exceptions by name."""
        found: list[str] = []
        for group in self.expected:
            found += _group_results(source, group)
        return found

    @property
    def wanted(self) -> list[str]:
        """What they must give."""
        return [error or repr(value) for group in self.expected for _, value, error in group.claims]

    def works(self, source: str) -> bool:
        """Whether all claims hold."""
        return self.results(source) == self.wanted


def _group_results(source: str, group: Expected) -> list[str]:
    scope: dict[str, Any] = {"__name__": "unit"}
    try:
        exec(source, scope)
        limited(partial(exec, "\n".join(group.setup), scope))
    except Exception as error:
        return [type(error).__name__] * len(group.claims)
    found: list[str] = []
    for expression, _, _ in group.claims:
        try:
            found.append(limited(partial(_shown, expression, scope)))
        except Exception as error:
            found.append(type(error).__name__)
    return found


def _shown(expression: str, scope: dict[str, Any]) -> str:
    return repr(eval(expression, scope))


@cache
def units() -> tuple[Unit, ...]:
    """All units of all files."""
    found: list[Unit] = []
    for path in sorted(FOLDER.glob("*.txt")):
        for part in re.split(r"^==$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            code, _, tests = part.partition("\n--\n")
            groups = [tuple(group.splitlines()) for group in re.split(r"\n\n+", tests.strip())]
            found.append(Unit(tuple(code.strip("\n").split("\n")), tuple(groups)))
    return tuple(found)


def bound_names(unit: Unit) -> list[str]:
    """The names that the code itself gives: functions, classes, parameters, locals, attributes, keys."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(unit.text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    imported = set(re.findall(r"\w+", " ".join(line for line in unit.code if " import " in f" {line}")))
    return sorted(name for name in found - imported - _FIXED if not name.startswith("__") and len(name) > 1)


def renamed_unit(unit: Unit, rng: random.Random, words: Words) -> Unit:
    """The unit with some of its names, or all, replaced by other words."""
    names = bound_names(unit)
    share = rng.choice((0.2, 0.5, 1.0))
    taken = set(re.findall(r"\w+", "\n".join([unit.text, *map("\n".join, unit.groups)])))
    table: dict[str, str] = {}
    for name in names:
        if rng.random() >= share:
            continue
        fresh = words.noun() if rng.random() < 0.6 else f"{name}_{words.noun()}"
        if name[0].isupper():
            fresh = name if name.isupper() else pascal(fresh.lower().split("_"))
            fresh = words.constant() if name.isupper() else fresh
        if name.startswith("_"):
            fresh = f"_{fresh.lstrip('_')}"
        if fresh.isidentifier() and fresh not in taken and fresh not in _FIXED:
            table[name] = fresh
            taken.add(fresh)
    if not table:
        return unit
    pattern = re.compile(rf"(?<![\w\\])({'|'.join(map(re.escape, sorted(table, key=len, reverse=True)))})\b")

    def put(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(pattern.sub(lambda match: table[match[1]], line) for line in lines)

    return Unit(put(unit.code), tuple(put(group) for group in unit.groups))


def _numbers(line: str, rng: random.Random, share: float, kept: frozenset[str] = frozenset()) -> str:
    """A line with some of its numbers changed, those in texts left alone."""
    quoted = [match.span() for match in _QUOTED.finditer(line)]

    def other(match: re.Match[str]) -> str:
        inside = any(start < match.start() < end for start, end in quoted)
        if inside or match.group() in kept or rng.random() >= share:
            return match.group()
        value = int(match.group())
        return (
            str(max(0, value + rng.choice((-2, -1, 1, 2, 3, 5))))
            if value < 50
            else str(value + rng.randint(-9, 30))
        )

    return _NUMBER.sub(other, line)


def computed(unit: Unit) -> tuple[Expected, ...] | None:
    """What the tests expect; None where they do not run or a value cannot be written down."""
    found: list[Expected] = []
    for lines in unit.groups:
        group = Expected([])
        for line in lines:
            if line.startswith("? "):
                group.claims.append((line[2:], None, ""))
            elif line.startswith("! "):
                error, _, expression = line[2:].partition(" ")
                group.claims.append((expression, None, error))
            else:
                group.setup.append(line)
        values = _group_results(unit.text, group)
        for index, ((expression, _, error), shown) in enumerate(zip(group.claims, values, strict=True)):
            if shown == ENDLESS or len(shown) > LONGEST_VALUE or bool(error) != (shown == error):
                return None
            if not error:
                try:
                    group.claims[index] = (expression, ast.literal_eval(shown), "")
                except (ValueError, SyntaxError):
                    return None
        found.append(group)
    return tuple(found)


def draw_unit(rng: random.Random, words: Words, pool: tuple[Unit, ...] = ()) -> tuple[Unit, UnitSample]:
    """A unit in other words, with its tests' values. Raises ValueError where a file's unit does not run."""
    base = rng.choice(pool or units())
    expected = computed(base)
    if expected is None:
        raise ValueError(f"the natural unit {base.names} does not run; mend its code or its tests")
    first = base
    if rng.random() < DOCUMENTED:
        code = tuple(line for line in base.code if not re.fullmatch(r' +""".*"""', line))
        first = Unit(code, base.groups)
    wanted = UnitSample(expected)
    for step in ("numbers", "constants", "names"):
        if step == "names" and rng.random() < RENAMED:
            other = renamed_unit(first, rng, words)
        elif step == "numbers":
            bounds = frozenset(_NUMBER.findall(first.text))
            other = Unit(first.code, tuple(_altered(group, rng, bounds) for group in first.groups))
        elif step == "constants" and rng.random() < 0.35:
            other = with_other_numbers(first, rng)
        else:
            continue
        try:
            found = computed(other)
        except SyntaxError:
            continue
        if found is not None and len({*UnitSample(found).wanted}) >= len({*wanted.wanted}) - 1:
            first, wanted = other, UnitSample(found)
    return first, wanted


def _altered(group: tuple[str, ...], rng: random.Random, bounds: frozenset[str]) -> tuple[str, ...]:
    """Tests with other numbers; those that the code has too are its bounds and stay."""
    share = rng.choice((0.3, 0.7)) if rng.random() < ALTERED else 0.0
    return tuple(line if line.startswith("! ") else _numbers(line, rng, share, bounds) for line in group)


def with_other_numbers(unit: Unit, rng: random.Random) -> Unit:
    """A unit some of whose numbers are others: in its code, its docstrings and its tests alike."""
    numbers = [number for number in dict.fromkeys(_NUMBER.findall(unit.text)) if number not in KEPT_NUMBERS]
    table = {number: _numbers(number, rng, 0.6) for number in numbers}

    def put(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_NUMBER.sub(lambda match: table.get(match[0], match[0]), line) for line in lines)

    return Unit(put(unit.code), tuple(put(group) for group in unit.groups))


@cache
def _single() -> tuple[Unit, ...]:
    """Units of one function whose tests are calls with plain arguments."""
    return tuple(unit for unit in units() if _function(unit, UnitSample(())) is not None)


def _function(unit: Unit, sample: UnitSample) -> Func | None:
    """The unit as a function with cases (none where the sample is empty); None where it is more than that."""
    nodes = ast.parse(unit.text).body
    node = nodes[0]
    if (
        len(nodes) > 1
        or not isinstance(node, ast.FunctionDef)
        or node.decorator_list
        or len(unit.groups) != 1
    ):
        return None
    own = node.args
    if own.vararg or own.kwarg or own.kwonlyargs or own.posonlyargs or own.defaults:
        return None
    calls: list[tuple[Any, ...]] = []
    for line in unit.groups[0]:
        call = ast.parse(line[2:]).body[0] if line.startswith("? ") else None
        value = call.value if isinstance(call, ast.Expr) else None
        if not isinstance(value, ast.Call) or ast.unparse(value.func) != node.name or value.keywords:
            return None
        try:
            calls.append(tuple(ast.literal_eval(arg) for arg in value.args))
        except ValueError:
            return None
    if any(len(args) != len(own.args) for args in calls):
        return None
    doc = ast.get_docstring(node)
    start = node.body[1 if doc else 0].lineno - 1
    said = re.sub(r"^Returns? ", "", doc or "").rstrip(".")
    func = Func(node.name, [arg.arg for arg in own.args], list(unit.code[start:]), "")
    if doc and doc.startswith("Return "):
        func.description = said
    values = [value for group in sample.expected for _, value, _ in group.claims]
    func.cases = list(zip(calls, values, strict=False))
    return func


def natural_function(rng: random.Random, words: Words) -> Func:
    """A function of the library in other words."""
    while True:
        unit, sample = draw_unit(rng, words, _single())
        func = _function(unit, sample)
        if func is None or func.name in words.used or func.name in RESERVED:
            continue
        function = compile_function(func)
        if all(repr(function(*map(copy_value, args))) == repr(value) for args, value in func.cases):
            words.used.add(func.name)
            return func

"""Broken natural code: a slip in a function or a method of a unit (units.py), and tests that notice it."""

import ast
import random
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from k3agent.backend.training.episodes.alike import alike_slips
from k3agent.backend.training.episodes.bugs import Broken, draw_broken
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.layered import draw_layered
from k3agent.backend.training.episodes.likely import likely
from k3agent.backend.training.episodes.mutate import ENDLESS, Bug, candidates, limited
from k3agent.backend.training.episodes.project import layout
from k3agent.backend.training.episodes.pycode import Style
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.testforms import Claim, claim
from k3agent.backend.training.episodes.units import Expected, Unit, UnitSample, draw_unit, units
from k3agent.backend.training.episodes.words import Words, importable, pascal

NATURAL_REPAIRS = 0.5
"""Of the repairs, those in files of natural code."""
LAYERED = 0.7
"""Below this and above NATURAL_REPAIRS: those in code in layers."""
LIKELY = 0.65
"""Of the slips in natural code, those that leave a trace in an error, a value or a name."""
ALIKE = 0.18
"""Of the slips in natural code, those that are looked for first in units with lines that are alike or sums in
brackets.
"""
TRIES = 14
SECOND_UNIT = 0.35
"""Of the files, those with a second unit above or below."""

Changes = Callable[[Func, random.Random], list[Bug]]
"""What may be wrong in a function's lines."""
_DEFAULT = re.compile(r"=[^,()]+")


def functions_of(text: str) -> list[tuple[str, list[str], int, int]]:
    """Name, parameters, first and last line of every function and method of a text."""
    found: list[tuple[str, list[str], int, int]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            params = [arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")]
            found.append((node.name, params, node.lineno, node.end_lineno or node.lineno))
    return found


@cache
def _with_alike() -> tuple[Unit, ...]:
    """Units with lines that are alike or sums in brackets."""
    rng = random.Random(0)
    return tuple(unit for unit in units() if alike_slips(Func("", [], list(unit.code), ""), rng))


def _find(
    sample: UnitSample, lines: list[str], part: slice, rng: random.Random, changes: Changes
) -> tuple[Func, Bug] | None:
    """A changed line of one of the functions in a part of the file that the claims notice."""
    text = "\n".join(lines) + "\n"
    places = [item for item in functions_of(text) if part.start < item[2] <= part.stop]
    rng.shuffle(places)
    for name, params, start, end in places:
        body = lines[start - 1 : end]
        func = Func(name, params, body, "")
        for bug in changes(func, rng)[:TRIES]:
            if bug.right.strip().startswith(('"""', "@")) or not _keeps_head(bug):
                continue
            wrong = [*lines[: start - 1 + bug.index], bug.wrong, *lines[start + bug.index :]]
            source = "\n".join(wrong) + "\n"
            try:
                compile(source, "file", "exec")
            except (SyntaxError, ValueError):
                continue
            found = sample.results(source)
            if ENDLESS not in found and found != sample.wanted:
                return func, Bug(start - 1 + bug.index, bug.right, bug.wrong)
    return None


def _keeps_head(bug: Bug) -> bool:
    """Whether a changed line is no `def`, or one in which only a default differs."""
    if not bug.right.lstrip().startswith("def "):
        return True
    right, wrong = (_DEFAULT.sub("=", line) for line in (bug.right, bug.wrong))
    return right == wrong and right.count("=") == bug.right.count("=")


def draw_unit_bug(ctx: Setting, changes: Changes = candidates) -> Broken | None:
    """A slip in natural code (one of the changes), in a new module with its tests."""
    rng, words = ctx.rng, ctx.words
    style = Style.draw(rng) if ctx.project is None else ctx.project.style
    is_alike = changes is candidates and rng.random() < ALIKE
    unit, sample = draw_unit(rng, words, _with_alike() if is_alike else ())
    lines, at = unit_file(rng, words, unit)
    if changes is candidates and rng.random() < LIKELY:
        changes = likely
    part, found = slice(at, at + len(unit.code)), None
    if is_alike:
        found = _find(sample, lines, part, rng, alike_slips)
    found = found or _find(sample, lines, part, rng, changes)
    if found is None or any(name in text for name in unit.names for text in ctx.facts.files.values()):
        return None
    func, bug = found
    good, wrong = style.dress(lines), style.dress([bug.wrong])[0]
    if good[bug.index] == wrong:
        return None
    folder, _, tests = layout(rng, words)
    stem = rng.choice((importable(unit.names[-1].lower()), words.module(), words.module()))
    path, test_path = f"{folder}{stem}.py", f"{tests}test_{stem}.py"
    if path in ctx.facts.files or test_path in ctx.facts.files or path == test_path or stem in unit.names:
        return None
    bad = "\n".join([*good[: bug.index], wrong, *good[bug.index + 1 :]]) + "\n"
    text, failing = unit_tests(ctx, unit, sample, bad, path.removesuffix(".py").replace("/", "."), style)
    if not failing:
        return None
    return Broken(
        func,
        bug,
        path,
        "\n".join(good) + "\n",
        bad,
        bug.index + 1,
        wrong,
        good[bug.index],
        test_path,
        text,
        {},
        sample,
        failing,
    )


def draw_any(ctx: Setting) -> Broken | None:
    """A bug in natural code, in code in layers, or in one function."""
    kind = ctx.rng.random()
    if kind < NATURAL_REPAIRS:
        return draw_unit_bug(ctx)
    return draw_layered(ctx) if kind < LAYERED else draw_broken(ctx)


def unit_file(rng: random.Random, words: Words, unit: Unit) -> tuple[list[str], int]:
    """The lines of a file with the unit in it, and where it begins."""
    lines: list[str] = []
    if rng.random() < 0.35:
        lines += [f'"""{words.phrase().capitalize()}."""', ""]
    if rng.random() < SECOND_UNIT:
        other, _ = draw_unit(rng, words)
        simple = len(other.code) < 12 and other.text.startswith("def ")
        if simple and not set(other.names) & set(unit.names) and unit.code[0].startswith(("def ", "class ")):
            lines += [*([""] if lines else []), *other.code, "", ""]
    at = len(lines)
    return [*lines, *unit.code], at


def unit_tests(
    ctx: Setting, unit: Unit, sample: UnitSample, bad: str, dotted: str, style: Style
) -> tuple[str, str]:
    """A test file, and the first test in it that fails with the bug."""
    rng = ctx.rng
    kind = rng.choice(("functions", "functions", "class", "unittest"))
    used = [name for name in unit.names if any(_uses(group, name) for group in sample.expected)]
    head = [f"from {dotted} import {', '.join(used)}"]
    blocks: list[tuple[str, list[str]]] = []
    failing = ""
    needs_pytest = False
    label = re.sub(r"(?<!^)(?=[A-Z])", "_", used[0] if used else "it").lower()
    taken: set[str] = set()
    for group in _split(sample.expected, rng):
        name = _test_name(group, label, ctx.words, rng, taken)
        body = list(group.setup)
        fails = _fails(bad, group, rng, body, kind == "unittest")
        needs_pytest |= any(error for _, _, error in group.claims) and kind != "unittest"
        needs_pytest |= any("pytest." in line for line in body)
        blocks.append((name, body))
        failing = failing or (name if fails else "")
    pad = "" if kind == "functions" else "    "
    lines: list[str] = []
    if pad:
        base = "(unittest.TestCase)" if kind == "unittest" else ""
        lines.append(f"class Test{pascal(label.split('_'))}{base}:")
    for index, (name, body) in enumerate(blocks):
        lines += ([""] if pad and index else []) if pad else ["", ""]
        lines.append(f"{pad}def {name}({'self' if pad else ''}):")
        lines += [f"{pad}    {line}" for line in body]
    if needs_pytest:
        head = ["import pytest", "", *head]
    standard = [*(["import unittest"] if kind == "unittest" else []), *_imports(unit, sample)]
    head = [*standard, *([""] if standard else []), *head]
    text = "\n".join(style.dress([*head, *(["", ""] if pad else []), *lines])) + "\n"
    return text, failing


def _imports(unit: Unit, sample: UnitSample) -> list[str]:
    """The imports of the code whose names the tests use too."""
    found = [line for line in unit.code if line.startswith(("from ", "import "))]
    return [
        line
        for line in found
        for names in [re.findall(r"\w+", line.partition("import ")[2])]
        if any(_uses(group, name) for group in sample.expected for name in names)
    ]


def _uses(group: Expected, name: str) -> bool:
    text = "\n".join([*group.setup, *(expression for expression, _, _ in group.claims)])
    return bool(re.search(rf"\b{name}\b", text))


def _split(expected: tuple[Expected, ...], rng: random.Random) -> list[Expected]:
    """The groups; one without a setup may become a test for each claim."""
    found: list[Expected] = []
    apart = rng.random() < 0.6
    for group in expected:
        if not group.setup and len(group.claims) > 1 and apart:
            found += [Expected([], [item]) for item in group.claims]
        elif group.claims:
            found.append(group)
    return found


def _test_name(group: Expected, label: str, words: Words, rng: random.Random, taken: set[str]) -> str:
    """A name for a test: of the method or function that it calls, or of a word."""
    called = re.findall(r"(?:\.|\b)([a-z]\w+)\(", group.claims[0][0] + " " + " ".join(reversed(group.setup)))
    name = f"test_{called[0]}" if called and rng.random() < 0.7 else f"test_{label}"
    if name in taken or rng.random() < 0.3:
        value = group.claims[0][1]
        name += "_" + rng.choice((words.noun(), words.noun(), "empty" if value in ([], "", 0) else "works"))
    while name in taken:
        name += f"_{words.noun()}"
    taken.add(name)
    return name


def _fails(bad: str, group: Expected, rng: random.Random, body: list[str], is_unittest: bool) -> bool:
    """Write the claims of a test below its setup; whether one does not hold with the bug."""
    fails = False
    scope: dict[str, Any] = {"__name__": "unit"}
    try:
        exec(bad, scope)
        limited(partial(exec, "\n".join(group.setup), scope))
    except Exception:
        fails = True
    for expression, value, error in group.claims:
        if error:
            head = f"with self.assertRaises({error}):" if is_unittest else f"with pytest.raises({error}):"
            body += [head, f"    {expression}"]
            fails |= not fails and not _raises(expression, scope, error)
            continue
        one = claim(rng, expression, value) if rng.random() < 0.35 else _plain(expression, value)
        # A weaker claim may look at something else again: only what changes nothing is asked twice.
        body.append(one.unittest() if is_unittest else one.pytest())
        fails = fails or not one.holds(scope)
    return fails


def _plain(expression: str, value: Any) -> Claim:
    if value is None:
        return Claim(expression, "is", "None")
    if isinstance(value, bool):
        return Claim(expression, str(value).lower())
    return Claim(expression, "==", repr(value))


def _raises(expression: str, scope: dict[str, Any], name: str) -> bool:
    """Whether an expression raises that exception."""
    try:
        limited(partial(eval, expression, scope))
    except Exception as error:
        return type(error).__name__ == name
    return False

"""Broken projects: a function of the project (or of a new module) gets a bug that its tests notice."""

import random
import re
from dataclasses import dataclass
from typing import Protocol

from k3agent.backend.training.episodes.classes import (
    class_tests,
    draw_class_sample,
    find_class_bug,
)
from k3agent.backend.training.episodes.concepts import Func, random_concept, same_results
from k3agent.backend.training.episodes.expressions import described_function
from k3agent.backend.training.episodes.mutate import Bug, find_bug, outcome, with_bug
from k3agent.backend.training.episodes.project import layout, literal, test_file
from k3agent.backend.training.episodes.pycode import Module, Style, draw_const
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.routines import routine_function
from k3agent.backend.training.episodes.units import natural_function
from k3agent.backend.training.episodes.words import Words, importable

NATURAL_FUNCTIONS = 0.45
"""Of the new functions, those of natural code."""
ROUTINES = 0.7
"""Below this and above NATURAL_FUNCTIONS: those put together at random."""


class Judge(Protocol):
    """Tells whether a version of a file has it right."""

    def works(self, source: str) -> bool:
        """Whether all tests hold."""
        ...

    def results(self, source: str) -> list[str]:
        """What the tests' expressions give, exceptions by name."""
        ...


@dataclass(slots=True)
class Broken:
    """A function with a bug in a file: the wrong and the right line as they stand there."""

    func: Func
    bug: Bug
    path: str
    good: str
    bad: str
    line: int
    wrong: str
    right: str
    test_path: str
    tests: str
    extra: dict[str, str]
    sample: Judge | None = None
    failing: str = ""
    """A test that fails, where it is known."""

    def works(self, text: str) -> bool:
        """Whether a version of the file has it right."""
        if self.sample is None:
            return same_results(text, self.func)
        return self.sample.works(text)

    @property
    def files(self) -> dict[str, str]:
        """What is written before the task: the broken file, its test, new files."""
        return {**self.extra, self.path: self.bad, self.test_path: self.tests}

    def failing_case(self) -> tuple[tuple[object, ...], object, str]:
        """A case that the bug breaks: arguments, the right result, what comes instead."""
        scope: dict[str, object] = {}
        try:
            exec("\n".join(with_bug(self.func, self.bug).source()), scope)
        except SyntaxError:
            return (*self.func.cases[0], "SyntaxError")
        for args, value in self.func.cases:
            got = outcome(scope[self.func.name], args)
            if got != repr(value):
                return args, value, got
        return (*self.func.cases[0], "?")


def _failing_first(func: Func, bug: Bug) -> None:
    """Put the cases that a bug breaks in front: tests take some of them, the first ones."""
    scope: dict[str, object] = dict(func.constants)
    try:
        exec("\n".join(with_bug(func, bug).source()), scope)
    except SyntaxError:
        return
    func.cases.sort(key=lambda case: outcome(scope[func.name], case[0]) == repr(case[1]))


def _usable(func: Func) -> bool:
    return (
        bool(func.cases)
        and not func.is_async
        and not func.decorators
        and all(len(repr(case)) < 130 for case in func.cases)
    )


def _locate(text: str, style: Style, func: Func) -> tuple[int, list[str]] | None:
    """First line and lines of a function in a file, if it stands there unchanged."""
    lines = style.dress(func.source(style.doc_quote))
    at = f"\n{text}".find("\n" + "\n".join(lines) + "\n")
    return None if at < 0 else (text[:at].count("\n") + 1, lines)


def _from_project(ctx: Setting) -> tuple[Module, Func, Style] | None:
    project = ctx.project
    if project is None:
        return None
    pool = [
        (module, func)
        for module in project.modules
        if "\r" not in ctx.facts.files.get(module.path, "\r")
        for func in module.functions
        if _usable(func)
    ]
    if not pool:
        return None
    module, func = ctx.rng.choice(pool)
    return module, func, project.style


def fresh_function(ctx: Setting) -> Func:
    """A function whose right behaviour can be told from its name or its documentation."""
    rng, words = ctx.rng, ctx.words
    while True:
        kind = rng.random()
        if kind < NATURAL_FUNCTIONS:
            func = natural_function(rng, words)
        elif kind < ROUTINES:
            func = routine_function(rng, words)
        elif kind < 0.88:
            func = random_concept(rng, words, cases=4)
        else:
            func = described_function(rng, words)
        if not _usable(func):
            continue
        if not any(func.name in text for text in ctx.facts.files.values()):
            pad(func, rng, words)
            return func


def pad(func: Func, rng: random.Random, words: Words) -> None:
    """Comments, blank lines and a longer docstring now and then, so that no line can be counted out."""
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        at = rng.randrange(len(func.body))
        line = func.body[at]
        indent = line[: len(line) - len(line.lstrip())]
        func.body.insert(at, "" if at and rng.random() < 0.3 else f"{indent}# {words.phrase()}")
    if rng.random() < 0.25 and func.description:
        rows = [f"{words.phrase().capitalize()}." for _ in range(rng.choice((1, 2, 2, 3)))]
        func.doc = "\n".join([f"Return {func.description}.", "", *rows, ""])


def _fresh_module(ctx: Setting) -> tuple[Module, Func, Style, dict[str, str], str]:
    """A new module with one to four functions; the first drawn is the one to break."""
    rng, words = ctx.rng, ctx.words
    style = Style.draw(rng) if ctx.project is None else ctx.project.style
    folder, _, tests = layout(rng, words)
    existing = [path.rsplit("/", 1)[0] + "/" for path in ctx.facts.code_paths() if "/" in path]
    if existing and rng.random() < 0.5:
        folder = rng.choice(existing)
    name = words.module()
    while f"{folder}{name}.py" in ctx.facts.files:
        name = words.module() + "_two"
    module = Module(f"{folder}{name}.py", gap=2)
    func = fresh_function(ctx)
    module.functions = [func, *(fresh_function(ctx) for _ in range(rng.choice((0, 0, 1, 1, 2, 3))))]
    rng.shuffle(module.functions)
    if rng.random() < 0.3:
        module.consts = [draw_const(rng, words, style)]
    for item in module.functions:
        if (
            item.description
            and not item.doc
            and item.body[-1].strip().startswith("return")
            and rng.random() < 0.5
        ):
            item.doc = f"Return {item.description}."
    extra = (
        {f"{folder}__init__.py": ""}
        if folder and rng.random() < 0.6 and f"{folder}__init__.py" not in ctx.facts.files
        else {}
    )
    return module, func, style, extra, tests


def draw_broken(ctx: Setting) -> Broken | None:
    """A bug somewhere."""
    rng = ctx.rng
    found = _from_project(ctx) if rng.random() < 0.45 else None
    extra: dict[str, str] = {}
    if found is not None:
        module, func, style = found
        text, tests = ctx.facts.files[module.path], ""
        if any(path.startswith("tests/") for path in ctx.facts.files):
            tests = "tests/"
    else:
        module, func, style, extra, tests = _fresh_module(ctx)
        text = module.text(style)
    if len([item for item in ctx.facts.defined(func.name) if item.kind != "method"]) > 1:
        return None
    place = _locate(text, style, func)
    bug = find_bug(func, rng) if place is not None else None
    if place is None or bug is None:
        return None
    start, lines = place
    broken = style.dress(with_bug(func, bug).source(style.doc_quote))
    changed = [index for index, (one, two) in enumerate(zip(lines, broken, strict=True)) if one != two]
    if len(changed) != 1:
        return None
    index = changed[0]
    bad_lines = text.split("\n")
    bad_lines[start - 1 + index] = broken[index]
    _failing_first(func, bug)
    test_path, test_text = _test_for(ctx, module, func, style, tests)
    if test_path == module.path:
        return None
    return Broken(
        func,
        bug,
        module.path,
        text,
        "\n".join(bad_lines),
        start + index,
        broken[index],
        lines[index],
        test_path,
        test_text,
        extra,
    )


def draw_broken_class(ctx: Setting) -> Broken | None:
    """A bug in a method of a small class, in a new module."""
    rng, words = ctx.rng, ctx.words
    style = Style.draw(rng) if ctx.project is None else ctx.project.style
    sample = draw_class_sample(rng, words)
    if any(sample.name in text for text in ctx.facts.files.values()):
        return None
    bug = find_class_bug(sample, rng)
    if bug is None:
        return None
    folder, _, tests = layout(rng, words)
    stem = importable(sample.name.lower()) if rng.random() < 0.5 else words.module()
    path = f"{folder}{stem}.py"
    test_path = f"{tests}test_{stem}.py"
    if path in ctx.facts.files or test_path in ctx.facts.files or path == test_path:
        return None
    good = style.dress(sample.lines)
    if rng.random() < 0.4:
        good = [f'"""{words.phrase().capitalize()}."""', "", *good]
    offset = len(good) - len(sample.lines)
    line = bug.index + offset
    wrong = style.dress([bug.wrong])[0]
    bad = [*good[:line], wrong, *good[line + 1 :]]
    method = next(
        match[1] for item in reversed(sample.lines[: bug.index]) if (match := re.match(r"\s+def (\w+)", item))
    )
    text = class_tests(
        sample,
        style,
        path.removesuffix(".py").replace("/", "."),
        rng.choice(("pytest", "pytest", "unittest")),
    )
    func = Func(method, [], sample.lines, "")
    return Broken(
        func,
        bug,
        path,
        "\n".join(good) + "\n",
        "\n".join(bad) + "\n",
        line + 1,
        wrong,
        good[line],
        test_path,
        text,
        {},
        sample,
    )


def _test_for(ctx: Setting, module: Module, func: Func, style: Style, tests: str) -> tuple[str, str]:
    """An existing test of the function, or a new test file."""
    for path in ctx.facts.test_paths():
        text = ctx.facts.files[path]
        calls = all(
            f"{func.name}({', '.join(literal(arg, style) for arg in args)})" in text for args, _ in func.cases
        )
        if f" {func.name}" in text and calls and len(func.cases) <= 3 and f"def test_{func.name}" in text:
            return path, text
    others = [item for item in module.functions if item is not func and _usable(item)][:2]
    kind = ctx.rng.choice(("pytest", "pytest", "unittest"))
    text, _ = test_file(ctx.rng, ctx.words, style, module, [*others, func], module.dotted, kind)
    path = f"{tests}test_{module.stem}.py"
    if path in ctx.facts.files:
        path = f"{tests}test_{func.name}.py"
    if path in ctx.facts.files:
        path = f"{tests}test_{func.name}_more.py"
    return path, text


def draw_several(ctx: Setting) -> list[Broken] | None:
    """Two or three functions of one new module, each with a bug of its own, all under test."""
    rng = ctx.rng
    module, _, style, extra, tests = _fresh_module(ctx)
    while len(module.functions) < 2 or (len(module.functions) < 3 and rng.random() < 0.4):
        module.functions.append(fresh_function(ctx))
    if len({func.name for func in module.functions}) < len(module.functions):
        return None
    text = module.text(style)
    chosen = rng.sample(module.functions, rng.choice((2, 2, 3)) if len(module.functions) > 2 else 2)
    rows = text.split("\n")
    marks: list[tuple[Func, Bug, int, str, str]] = []
    for func in chosen:
        place, bug = _locate(text, style, func), find_bug(func, rng)
        if place is None or bug is None or bug.is_syntax:
            return None
        broken = style.dress(with_bug(func, bug).source(style.doc_quote))
        changed = [index for index, (one, two) in enumerate(zip(place[1], broken, strict=True)) if one != two]
        if len(changed) != 1:
            return None
        line = place[0] + changed[0]
        marks.append((func, bug, line, broken[changed[0]], place[1][changed[0]]))
        rows[line - 1] = broken[changed[0]]
        _failing_first(func, bug)
    kind = rng.choice(("pytest", "pytest", "unittest"))
    test_path = f"{tests}test_{module.stem}.py"
    if test_path in ctx.facts.files or test_path == module.path:
        return None
    test_text, _ = test_file(rng, ctx.words, style, module, chosen, module.dotted, kind)
    bad = "\n".join(rows)
    return [
        Broken(func, bug, module.path, text, bad, line, wrong, right, test_path, test_text, extra)
        for func, bug, line, wrong, right in marks
    ]

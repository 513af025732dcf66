"""Small classes with tests, from classes.txt, for repairs inside methods."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.mutate import ENDLESS, Bug, candidates, limited
from k3agent.backend.training.episodes.pycode import Style
from k3agent.backend.training.episodes.words import Words


@dataclass(frozen=True, slots=True)
class ClassConcept:
    """A class template: names, lines, and tests as (name, statements, expression)."""

    names: tuple[str, ...]
    lines: tuple[str, ...]
    tests: tuple[tuple[str, tuple[str, ...], str], ...]


@dataclass(slots=True)
class ClassSample:
    """A class under its own name, with what every test's expression gives."""

    name: str
    lines: list[str]
    tests: list[tuple[str, list[str], str, Any]]

    def results(self, source: str) -> list[str]:
        """What the tests' expressions give with a source of the class (errors by name)."""
        found: list[str] = []
        for _, statements, expression, _ in self.tests:
            scope: dict[str, Any] = {}
            try:
                exec(source, scope)
                limited(partial(exec, "\n".join(statements), scope))
                found.append(limited(partial(_shown, expression, scope)))
            except Exception as error:
                found.append(type(error).__name__)
        return found

    def works(self, source: str) -> bool:
        """Whether all tests hold."""
        return self.results(source) == [repr(value) for *_, value in self.tests]


def _shown(expression: str, scope: dict[str, Any]) -> str:
    return repr(eval(expression, scope))


@cache
def class_concepts() -> tuple[ClassConcept, ...]:
    """All entries of classes.txt."""
    text = (Path(__file__).parent / "classes.txt").read_text(encoding="utf-8")
    found = []
    for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        head, _, rest = part.partition("\n")
        body, _, tests = rest.partition("tests:\n")
        cases = []
        for row in tests.strip().splitlines():
            name, _, script = row.partition(" | ")
            statements, _, expression = script.partition(" -> ")
            cases.append((name.strip(), tuple(statements.split("; ")), expression))
        found.append(ClassConcept(tuple(head.split()), tuple(body.rstrip().splitlines()), tuple(cases)))
    return tuple(found)


def draw_class_sample(rng: random.Random, words: Words) -> ClassSample:
    """A class with a name of its own and its tests' results."""
    concept = rng.choice(class_concepts())
    name = rng.choice(concept.names)
    if rng.random() < 0.6:
        name = (
            rng.choice((name, concept.names[0])) + words.noun().capitalize()
            if rng.random() < 0.5
            else words.class_name()
        )
    lines = [line.replace("$C", name) for line in concept.lines]
    variable = rng.choice(("x", "item", words.noun(), name.lower()))
    if variable == name or variable in "\n".join(lines):
        variable = "thing"
    tests = []
    for label, statements, expression in concept.tests:
        rename = re.compile(r"\b(x|p)\b(?=( =|\.|\)))")
        done = [rename.sub(variable, item.replace("$C", name)) for item in statements]
        shown = rename.sub(variable, expression.replace("$C", name))
        tests.append((label, done, shown, None))
    sample = ClassSample(name, lines, tests)
    source = "\n".join(lines)
    for index, (label, done, shown, _) in enumerate(tests):
        scope: dict[str, Any] = {}
        exec(source, scope)
        exec("\n".join(done), scope)
        tests[index] = (label, done, shown, eval(shown, scope))
    return sample


def find_class_bug(sample: ClassSample, rng: random.Random) -> Bug | None:
    """A changed line inside a method that a test notices."""
    params = sorted({word for line in sample.lines for word in re.findall(r"def \w+\(self, ([\w, ]+)", line)})
    func = Func(sample.name, [name for text in params for name in text.split(", ")], sample.lines, "")
    for bug in candidates(func, rng)[:25]:
        if bug.right.strip().startswith(("def ", "class ")):
            continue
        lines = [*sample.lines[: bug.index], bug.wrong, *sample.lines[bug.index + 1 :]]
        source = "\n".join(lines)
        try:
            compile(source, "file", "exec")
        except SyntaxError:
            continue
        found = sample.results(source)
        if ENDLESS not in found and found != [repr(value) for *_, value in sample.tests]:
            return bug
    return None


def class_tests(sample: ClassSample, style: Style, dotted: str, kind: str) -> str:
    """A test file for the class."""
    head = f"from {dotted} import {sample.name}"
    lines = ["import unittest", "", head, "", ""] if kind == "unittest" else [head]
    pad = "    " if kind == "unittest" else ""
    if kind == "unittest":
        lines.append(f"class Test{sample.name}(unittest.TestCase):")
    for index, (label, statements, expression, value) in enumerate(sample.tests):
        if kind == "unittest":
            lines += [""] if index else []
            last = f"self.assertEqual({expression}, {value!r})"
        else:
            lines += ["", ""]
            last = (
                f"assert {expression} is {value!r}"
                if value is None or isinstance(value, bool)
                else f"assert {expression} == {value!r}"
            )
        lines += [f"{pad}def test_{label}({'self' if pad else ''}):"]
        lines += [f"{pad}    {statement}" for statement in statements] + [f"{pad}    {last}"]
    return "\n".join(style.dress(lines)) + "\n"

"""Test files as people write them: functions, classes, fixtures, tables of cases, unittest; assertions of
many forms.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from k3agent.backend.training.episodes.mutate import limited
from k3agent.backend.training.episodes.words import Words

KINDS = ("functions", "functions", "class", "fixture", "table", "table", "unittest", "unittest", "setup")
"""How a file is laid out; `setup` is unittest with a setUp."""
OTHERS = ("_again", "_more", "_other", "_twice", "_small", "_large", "_edge_case", "_works", "_basic")
_APPROX = SimpleNamespace(approx=lambda value: value)


@dataclass(slots=True)
class Target:
    """What is tested: `setup` and `call` have `{param}` where a case's argument stands.

    `cases` are (arguments, result), `raising` are (arguments, name of the exception).
    """

    label: str
    params: list[str]
    setup: str
    call: str
    cases: list[tuple[tuple[Any, ...], Any]]
    raising: list[tuple[tuple[Any, ...], str]] = field(default_factory=list)

    def filled(self, pattern: str, args: tuple[Any, ...]) -> str:
        """A pattern with the arguments in it."""
        return pattern.format(**{name: repr(arg) for name, arg in zip(self.params, args, strict=True)})

    @property
    def variable(self) -> str:
        """The name that the setup assigns."""
        return self.setup.split(" = ", 1)[0]


@dataclass(frozen=True, slots=True)
class Claim:
    """`left sign right`: signs are ==, in, is, approx, true, false."""

    left: str
    sign: str
    right: str = ""

    def pytest(self) -> str:
        """As an assert statement."""
        match self.sign:
            case "true":
                return f"assert {self.left}"
            case "false":
                return f"assert not {self.left}"
            case "approx":
                return f"assert {self.left} == pytest.approx({self.right})"
        return f"assert {self.left} {self.sign} {self.right}"

    def unittest(self) -> str:
        """As a method of TestCase."""
        match self.sign:
            case "true" | "false":
                return f"self.assert{self.sign.capitalize()}({self.left})"
            case "in":
                return f"self.assertIn({self.left}, {self.right})"
            case "is" if self.right == "None":
                return f"self.assertIsNone({self.left})"
            case "is":
                return f"self.assertIs({self.left}, {self.right})"
            case "approx":
                return f"self.assertAlmostEqual({self.left}, {self.right})"
        return f"self.assertEqual({self.left}, {self.right})"

    def holds(self, scope: dict[str, Any]) -> bool:
        """Whether it is true where these names are known."""
        try:
            limited(partial(exec, self.pytest(), {**scope, "pytest": _APPROX}))
        except Exception:
            return False
        return True


_COMPARED = re.compile(r" (in|is|and|or|[=!<>]=|<|>) |^not ")


def claim(rng: random.Random, call: str, value: Any) -> Claim:
    """One way to say what a call gives."""
    shown = repr(value)
    if isinstance(value, bool):
        # `3 in x is True` would compare x with True.
        said_is = rng.random() < 0.25 and not _COMPARED.search(call)
        return Claim(call, "is", shown) if said_is else Claim(call, str(value).lower())
    if value is None:
        return Claim(call, "is", "None")
    if isinstance(value, float):
        return Claim(call, "approx" if rng.random() < 0.6 else "==", shown)
    plain = Claim(call, "==", shown)
    if rng.random() < 0.55 or not isinstance(value, str | list | dict | tuple) or not value:
        return plain
    options: list[Claim] = []
    if isinstance(value, str):
        part = value[: max(3, len(value) // 2)]
        options = [Claim(repr(part), "in", call), Claim(f"{call}.startswith({part!r})", "true"), plain]
        options.append(Claim(f"len({call})", "==", str(len(value))))
    elif isinstance(value, dict):
        key = rng.choice(list(value))
        options = [Claim(f"{call}[{key!r}]", "==", repr(value[key])), Claim(repr(key), "in", call), plain]
        options.append(Claim(f"list({call})", "==", repr(list(value))))
    else:
        last = rng.choice((0, -1))
        options = [Claim(f"{call}[{last}]", "==", repr(value[last])), Claim(repr(value[0]), "in", call)]
        options.append(Claim(f"len({call})", "==", str(len(value))))
        if isinstance(value, list):
            options.append(Claim(f"list({call})", "==", shown))
    return rng.choice(options)


@dataclass(slots=True)
class TestText:
    """A test file being written, and what its tests claim: (test, setup, claim) each."""

    __test__ = False

    rng: random.Random
    words: Words
    kind: str
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    claims: list[tuple[str, str, Claim]] = field(default_factory=list)
    needs_pytest: bool = False
    exact: bool = False
    """Whether every case is compared with `==`: then no bug that a case shows goes unnoticed."""

    @property
    def is_unittest(self) -> bool:
        """Whether it is written with unittest."""
        return self.kind in ("unittest", "setup")

    @property
    def pad(self) -> str:
        """The indentation of a test."""
        return "    " if self.kind in ("unittest", "setup", "class") else ""

    def name(self, label: str, number: int) -> str:
        """A fresh name of a test."""
        rng = self.rng
        name = f"test_{label}"
        if number or rng.random() < 0.2:
            name += rng.choice(
                (*OTHERS, f"_{number + 1}", f"_{self.words.noun()}", f"_with_{self.words.noun()}")
            )
        if rng.random() < 0.07:
            name = f"test_{self.words.adjective()}_{self.words.noun()}"
        while name in self.names:
            name += f"_{self.words.noun()}"
        self.names.append(name)
        return name

    def add(self, name: str, body: list[str], *, fixture: str = "", above: list[str] | None = None) -> None:
        """One test."""
        params = ", ".join(item for item in ("self" if self.pad else "", fixture) if item)
        gap = [""] if self.pad else ["", ""]
        if self.lines and self.lines[-1].startswith("class "):
            gap = []
        rows = [*(above or ()), f"def {name}({params}):", *(f"    {line}" for line in body)]
        self.lines += [*gap, *(f"{self.pad}{row}" for row in rows)]

    def said(self, one: Claim) -> str:
        """The claim in this file's way."""
        if one.sign == "approx" and not self.is_unittest:
            self.needs_pytest = True
        return one.unittest() if self.is_unittest else one.pytest()


def _claim(text: TestText, call: str, value: Any) -> Claim:
    """A claim as strict as the file wants it."""
    own = claim(text.rng, call, value)
    return Claim(call, "==", repr(value)) if text.exact and own.left != call else own


def _body(text: TestText, target: Target, args: tuple[Any, ...], value: Any, setup: str) -> list[str]:
    """The lines of one test about one case; `setup` is left out where it stands elsewhere."""
    call = target.filled(target.call, args)
    lines = [setup] if setup else []
    own = _claim(text, call, value)
    known = target.filled(target.setup, args)
    text.claims.append((text.names[-1], known, own))
    if call.count("(") == 1 and own.left == call and text.rng.random() < 0.2 and own.sign in ("==", "approx"):
        local = text.rng.choice(("result", "got", "actual", "answer", "out"))
        return [*lines, f"{local} = {call}", text.said(Claim(local, own.sign, own.right))]
    return [*lines, text.said(own)]


def _raising(text: TestText, target: Target) -> None:
    """Tests that an exception comes."""
    for args, error in target.raising[:1]:
        call, setup = target.filled(target.call, args), target.filled(target.setup, args)
        ending = text.rng.choice(("raises", "fails", "rejects_bad", "invalid"))
        name = text.name(f"{target.label}_{ending}", 0)
        head = f"with self.assertRaises({error}):" if text.is_unittest else f"with pytest.raises({error}):"
        text.needs_pytest |= not text.is_unittest
        text.add(name, [*([setup] if setup else []), head, f"    {call}"])


def _table(text: TestText, target: Target) -> None:
    """All cases in one parametrised test."""
    text.needs_pytest = True
    name = text.name(target.label, 0)
    result = text.rng.choice(("expected", "expected", "wanted", "result", "want"))
    if result in target.params:
        result = "expected_value"
    names = [*target.params, result]
    rows = [", ".join([*map(repr, args), repr(value)]) for args, value in target.cases]
    head = ", ".join(f'"{name}"' for name in names)
    listed = f"({head})" if text.rng.random() < 0.5 else f'"{", ".join(names)}"'
    above = [
        "@pytest.mark.parametrize(",
        f"    {listed},",
        "    [",
        *(f"        ({row})," for row in rows),
        "    ],",
        ")",
    ]
    own = {name: name for name in target.params}
    setup, call = target.setup.format(**own), target.call.format(**own)
    for args, value in target.cases:
        one = Claim(target.filled(target.call, args), "==", repr(value))
        text.claims.append((name, target.filled(target.setup, args), one))
    body = [*([setup] if setup else []), f"assert {call} == {result}"]
    text.add(name, body, fixture=", ".join(names), above=above)


def _with_fixture(text: TestText, target: Target) -> None:
    """The object of the first case comes from a fixture, or from setUp."""
    name = text.name(target.label, 0)
    args, value = target.cases[0]
    made = target.filled(target.setup, args)
    variable, made_of = made.split(" = ", 1)
    if text.kind == "setup":
        text.lines += ["    def setUp(self):", f"        self.{made}"]
        inside = f"self.{variable}"
    else:
        text.needs_pytest = True
        text.lines += ["", "", "@pytest.fixture", f"def {variable}():", f"    return {made_of}"]
        inside = variable
    own = _claim(text, target.filled(target.call, args), value)
    text.claims.append((name, made, own))
    shown = Claim(
        own.left.replace(f"{variable}.", f"{inside}."),
        own.sign,
        own.right.replace(f"{variable}.", f"{inside}."),
    )
    fixture = "" if text.kind == "setup" else variable
    text.add(name, [text.said(shown)], fixture=fixture)
    for number, (others, other) in enumerate(target.cases[1:3], 1):
        name = text.name(target.label, number)
        text.add(name, _body(text, target, others, other, target.filled(target.setup, others)))


def _plain(text: TestText, target: Target) -> None:
    """A test for each case, or all cases in one."""
    cases = target.cases if text.exact else target.cases[:3]
    if len(cases) > 1 and not target.setup and text.rng.random() < 0.4:
        name = text.name(target.label, 0)
        text.add(name, [line for args, value in cases for line in _body(text, target, args, value, "")])
        return
    for number, (args, value) in enumerate(cases):
        name, setup = text.name(target.label, number), target.filled(target.setup, args)
        text.add(name, _body(text, target, args, value, setup))


def write_tests(
    rng: random.Random,
    words: Words,
    targets: list[Target],
    imports: list[str],
    title: str,
    kind: str = "",
    *,
    exact: bool = False,
) -> tuple[str, TestText]:
    """A test file for the targets, and what it holds; `title` is a class's name after `Test`."""
    kind = kind or rng.choice(KINDS)
    if kind in ("fixture", "setup") and not all(target.setup for target in targets):
        kind = "unittest" if kind == "setup" else "functions"
    if kind == "table" and any("{" in name for target in targets for name in target.params):
        kind = "functions"
    text = TestText(rng, words, kind, exact=exact)
    if text.is_unittest:
        text.lines.append(f"class Test{title}(unittest.TestCase):")
    elif kind == "class":
        text.lines.append(f"class Test{title}:")
    write: Callable[[TestText, Target], None] = _plain
    for index, target in enumerate(targets):
        write = _plain
        if kind == "table" and len(target.cases) > 1:
            write = _table
        elif kind in ("fixture", "setup") and index == 0:
            write = _with_fixture
        write(text, target)
        _raising(text, target)
    head = ["import unittest", ""] if text.is_unittest else ["import pytest", ""] if text.needs_pytest else []
    head = [*head, *imports, "", ""] if text.pad else [*head, *imports]
    tail = (
        ["", "", 'if __name__ == "__main__":', "    unittest.main()"]
        if text.is_unittest and rng.random() < 0.4
        else []
    )
    return "\n".join([*head, *text.lines, *tail]) + "\n", text

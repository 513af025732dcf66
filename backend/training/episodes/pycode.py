"""Python modules at random: functions from statement grammars, classes, constants, in many styles,
with an index of what is where.
"""

import random
from dataclasses import dataclass, field

from k3agent.backend.training.episodes import literals
from k3agent.backend.training.episodes.concepts import Func, random_concept
from k3agent.backend.training.episodes.expressions import (
    HINTS,
    Grammar,
    add_cases,
    described_function,
    draw_params,
)
from k3agent.backend.training.episodes.words import Words, pascal, plural

STDLIB_IMPORTS = (
    "import os",
    "import sys",
    "import json",
    "import re",
    "import math",
    "import time",
    "import random",
    "import csv",
    "import logging",
    "from pathlib import Path",
    "from datetime import datetime",
    "from collections import defaultdict",
    "from typing import Any",
    "from dataclasses import dataclass",
    "import itertools",
    "from collections import Counter",
    "import functools",
)


@dataclass(slots=True)
class Style:
    """How a project is written."""

    naming: str = "snake"
    indent: str = "    "
    quote: str = "'"
    hints: bool = False
    doc_share: float = 0.3
    doc_quote: str = '"""'

    @classmethod
    def draw(cls, rng: random.Random) -> "Style":
        """A random style; most are ordinary."""
        return cls(
            naming="camel" if rng.random() < 0.13 else "snake",
            indent=rng.choice(("    ",) * 12 + ("  ", "\t")),
            quote=rng.choice("'\""),
            hints=rng.random() < 0.35,
            doc_share=rng.choice((0.0, 0.3, 0.3, 0.8)),
            doc_quote="'''" if rng.random() < 0.05 else '"""',
        )

    def dress(self, lines: list[str]) -> list[str]:
        """Lines with the style's quotes and indentation."""
        out = []
        for line in lines:
            text = line
            if self.quote == '"' and '"' not in text:
                text = text.replace("'", '"')
            if self.indent != "    ":
                depth = (len(text) - len(text.lstrip(" "))) // 4
                text = self.indent * depth + text.lstrip(" ")
            out.append(text)
        return out


@dataclass(slots=True)
class Const:
    """A constant of a module: its line is `name = value` or with a type."""

    name: str
    value: str
    kind: str
    hinted: bool = False
    comment: str = ""

    def line(self, value: str | None = None) -> str:
        """The assignment."""
        hint = f": {HINTS.get(self.kind, self.kind)}" if self.hinted else ""
        tail = f"  # {self.comment}" if self.comment else ""
        return f"{self.name}{hint} = {value or self.value}{tail}"


@dataclass(slots=True)
class ClassCode:
    """A class: its methods are Funcs whose params lack self."""

    name: str
    base: str
    fields: dict[str, str]
    methods: list[Func]
    doc: str | None = None
    dataclass: bool = False
    enum: dict[str, str] | None = None

    def source(self) -> list[str]:
        """The lines, unindented."""
        base = f"({self.base})" if self.base else ""
        lines = (["@dataclass"] if self.dataclass else []) + [f"class {self.name}{base}:"]
        if self.doc:
            lines.append(f'    """{self.doc}"""')
        if self.enum is not None:
            return lines + [f"    {key} = {value}" for key, value in self.enum.items()]
        if self.dataclass:
            lines += [f"    {name}: {HINTS[kind]}" for name, kind in self.fields.items()]
        elif self.fields:
            lines += [f"    def __init__(self, {', '.join(self.fields)}):"]
            lines += [f"        self.{name} = {name}" for name in self.fields]
        for method in self.methods:
            source = method.source()
            head = next(i for i, line in enumerate(source) if "def " in line)
            comma = "self, " if method.params else "self"
            source[head] = source[head].replace("(", f"({comma}", 1)
            if lines[-1].strip():
                lines.append("")
            lines += ["    " + line for line in source]
        if len(lines) == 1:
            lines.append("    pass")
        return lines


@dataclass(slots=True)
class Module:
    """A Python file's parts, in order, and its text."""

    path: str
    doc: str | None = None
    imports: list[str] = field(default_factory=list)
    consts: list[Const] = field(default_factory=list)
    functions: list[Func] = field(default_factory=list)
    classes: list[ClassCode] = field(default_factory=list)
    shebang: bool = False
    main: list[str] = field(default_factory=list)
    gap: int = 2
    classes_first: bool = False

    @property
    def stem(self) -> str:
        """The file's name without folder and extension."""
        return self.path.rsplit("/", 1)[-1].removesuffix(".py")

    @property
    def dotted(self) -> str:
        """The name under which others import it."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def text(self, style: Style) -> str:
        """The file's text."""
        lines: list[str] = ["#!/usr/bin/env python3"] if self.shebang else []
        if self.doc:
            lines += [f'"""{self.doc}"""', ""]
        if self.imports:
            lines += [*self.imports, ""]
        if self.consts:
            lines += [*(const.line() for const in self.consts), ""]
        blocks = [style.dress(func.source(style.doc_quote)) for func in self.functions]
        classes = [style.dress(item.source()) for item in self.classes]
        for block in (classes + blocks) if self.classes_first else (blocks + classes):
            lines += [""] * (self.gap - 1) if lines else []
            lines += [*block, ""]
        if self.main:
            lines += [""] * (self.gap - 1) + style.dress(self.main) + [""]
        while lines and not lines[-1]:
            lines.pop()
        return "\n".join(lines) + "\n"


def _natural_const(rng: random.Random, words: Words, style: Style) -> Const | None:
    """A constant that programs often have, with a value that suits it; None when its name is taken."""
    quote, number = style.quote, rng.randint
    text = rng.choice
    name, value, kind = rng.choice(
        (
            ("MAX_RETRIES", str(number(1, 10)), "int"),
            ("DEFAULT_TIMEOUT", str(text((5, 10, 15, 30, 60, 120))), "int"),
            ("TIMEOUT_SECONDS", str(number(1, 300)), "int"),
            ("PAGE_SIZE", str(text((10, 20, 25, 50, 100))), "int"),
            ("MAX_CONNECTIONS", str(text((5, 10, 50, 100, 500))), "int"),
            ("PORT", str(text((80, 3000, 5000, 8000, 8080, 5432))), "int"),
            ("CACHE_TTL", str(text((60, 300, 600, 3600, 86400))), "int"),
            ("MIN_PASSWORD_LENGTH", str(number(6, 16)), "int"),
            ("TAX_RATE", str(number(1, 30) / 100), "float"),
            ("DISCOUNT_RATE", str(number(1, 50) / 100), "float"),
            ("SHIPPING_COST", str(number(1, 99) / 10), "float"),
            ("THRESHOLD", str(number(1, 99) / 100), "float"),
            ("API_URL", f"{quote}https://api.{words.noun()}.com/v{number(1, 4)}{quote}", "str"),
            ("BASE_URL", f"{quote}http://localhost:{text((3000, 5000, 8000))}{quote}", "str"),
            ("HOST", f"{quote}{text(('localhost', '127.0.0.1', '0.0.0.0'))}{quote}", "str"),
            ("CURRENCY", f"{quote}{text(('EUR', 'USD', 'GBP', 'CHF'))}{quote}", "str"),
            ("LOG_LEVEL", f"{quote}{text(('DEBUG', 'INFO', 'WARNING'))}{quote}", "str"),
            ("DATE_FORMAT", f"{quote}{text(('%Y-%m-%d', '%d.%m.%Y', '%m/%d/%Y'))}{quote}", "str"),
            ("DEFAULT_LANGUAGE", f"{quote}{text(('en', 'de', 'fr', 'es'))}{quote}", "str"),
            ("VERSION", f"{quote}{number(0, 5)}.{number(0, 20)}.{number(0, 9)}{quote}", "str"),
            ("DB_NAME", f"{quote}{words.noun()}.db{quote}", "str"),
            ("DEBUG", text(("True", "False")), "bool"),
            ("USE_CACHE", text(("True", "False")), "bool"),
            ("ENABLE_EMAILS", text(("True", "False")), "bool"),
            ("SUPPORTED_LANGUAGES", f"[{quote}en{quote}, {quote}{text(('de', 'fr', 'it'))}{quote}]", "strs"),
            ("ALLOWED_EXTENSIONS", f"[{quote}jpg{quote}, {quote}{text(('png', 'pdf'))}{quote}]", "strs"),
            ("RETRY_DELAYS", f"[1, {number(2, 5)}, {number(6, 30)}]", "ints"),
        )
    )
    if name in words.used:
        return None
    words.used.add(name)
    return Const(name, value, kind, hinted=style.hints and rng.random() < 0.4)


def odd_const(rng: random.Random, words: Words, style: Style) -> Const:
    """A constant whose value is a version, a path, an address, an odd number, a tuple."""
    roll = rng.random()
    if roll < 0.6:
        text = literals.odd_text(rng, words)
        value, kind = (f'"{text}"' if "'" in text else f"{style.quote}{text}{style.quote}"), "str"
    elif roll < 0.8:
        value, kind = literals.odd_number(rng), "number"
    else:
        value, kind = literals.odd_code(rng, words, style.quote), "value"
    return Const(words.constant(), value, kind, hinted=kind == "str" and style.hints and rng.random() < 0.4)


def draw_const(rng: random.Random, words: Words, style: Style) -> Const:
    """A constant with a typical value."""
    if rng.random() < (0.4 if words.natural else 0.1) and (known := _natural_const(rng, words, style)):
        return known
    kind = rng.choice(("int", "int", "int", "float", "str", "str", "bool", "strs", "ints"))
    quote = style.quote
    if rng.random() < 0.3:
        return odd_const(rng, words, style)
    match kind:
        case "int":
            value = str(
                rng.choice(
                    (
                        rng.randint(0, 20),
                        rng.randint(1, 999),
                        10 ** rng.randint(1, 4),
                        2 ** rng.randint(3, 12),
                        60,
                    )
                )
            )
        case "float":
            value = str(
                rng.choice(
                    (0.5, 0.1, 1.5, 0.25, 2.0, 0.01, rng.randint(1, 99) / 100, rng.randint(1, 99) / 10)
                )
            )
        case "str":
            value = f"{quote}{words.text_value()}{quote}"
        case "bool":
            value = rng.choice(("True", "False"))
        case "strs":
            value = "[" + ", ".join(f"{quote}{words.noun()}{quote}" for _ in range(rng.randint(1, 4))) + "]"
        case _:
            value = "[" + ", ".join(str(rng.randint(1, 60)) for _ in range(rng.randint(2, 5))) + "]"
    name = words.constant() if rng.random() < 0.9 else words.fresh(words.variable)
    comment = words.phrase() if rng.random() < 0.08 else ""
    return Const(name, value, kind, hinted=style.hints and rng.random() < 0.4, comment=comment)


def statement_function(
    rng: random.Random, words: Words, style: Style, known: dict[str, str], calls: list[Func]
) -> Func:
    """A function of several statements from a grammar: guards, locals, loops, branches, calls, a return."""
    scope = draw_params(rng, words, rng.choice((0, 1, 1, 2, 2, 3)))
    func = Func(
        words.function(style.naming), list(scope), [], "", hints=[HINTS[kind] for kind in scope.values()]
    )
    grammar = Grammar(rng, words, scope, known)
    body: list[str] = []
    kind = rng.choice(("int", "int", "str", "str", "bool", "ints", "strs"))
    if rng.random() < 0.25:
        body += [f"    if {grammar.make('bool', 2).code}:", f"        {_exit(rng, words, grammar, kind)}"]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        body += _statement(rng, words, grammar, scope, calls)
    result = grammar.make(kind, rng.choice((0, 1, 2)))
    body.append(
        f"    return {result.code}" if rng.random() < 0.92 or not body else f"    print({result.code})"
    )
    func.body = body
    return func


def _exit(rng: random.Random, words: Words, grammar: Grammar, kind: str) -> str:
    """What a guard does."""
    if rng.random() < 0.4:
        return (
            f"raise {rng.choice(('ValueError', 'KeyError', 'RuntimeError', 'TypeError'))}('{words.phrase()}')"
        )
    return f"return {grammar.make(kind, 1).code}" if rng.random() < 0.7 else "return None"


def _statement(
    rng: random.Random, words: Words, grammar: Grammar, scope: dict[str, str], calls: list[Func]
) -> list[str]:
    """One statement, one to five lines; new locals enter the scope."""
    kind = rng.choice(("int", "str", "ints", "strs"))
    name = plural(words.noun()) if kind in ("ints", "strs") else words.variable()
    lists = [item for item, of in scope.items() if of in ("ints", "strs")]
    match rng.randrange(9):
        case 0 | 1 | 2:
            code = grammar.make(kind, 2).code
            scope[name] = kind
            return [f"    {name} = {code}"]
        case 3 if lists:
            source = rng.choice(lists)
            inner = rng.choice(("item", "value", "entry", "element"))
            inside = Grammar(
                rng, words, {inner: "int" if scope[source] == "ints" else "str"}, grammar.constants
            )
            total = rng.choice(("total", "result", "count", "amount"))
            lines = [f"    {total} = 0", f"    for {inner} in {source}:"]
            if rng.random() < 0.5:
                lines += [
                    f"        if {inside.make('bool', 1).code}:",
                    f"            {total} += {inside.make('int', 1).code}",
                ]
            else:
                lines.append(f"        {total} += {inside.make('int', 2).code}")
            scope[total] = "int"
            return lines
        case 4:
            test = grammar.make("bool", 1).code
            first, second = grammar.make(kind, 1).code, grammar.make(kind, 1).code
            scope[name] = kind
            return [f"    if {test}:", f"        {name} = {first}", "    else:", f"        {name} = {second}"]
        case 5:
            return [f"    print({grammar.make('str', 1).code})"]
        case 6 if calls:
            other = rng.choice(calls)
            args = ", ".join(
                grammar.leaf("int").code if hint == "int" else grammar.leaf("str").code
                for hint in other.hints
            )
            scope[name] = kind
            return [f"    {name} = {other.name}({args})"]
        case 7:
            return [f"    # {words.phrase()}", *_statement(rng, words, grammar, scope, calls)]
    code = grammar.make("int", 2).code
    name = words.variable()
    scope[name] = "int"
    return [f"    {name} = {code}"]


def draw_function(rng: random.Random, words: Words, style: Style, module: Module) -> Func:
    """Any function for a module; testable ones carry cases."""
    kind = rng.random()
    if kind < (0.65 if words.natural else 0.35):
        func = random_concept(rng, words, style=style.naming)
    elif kind < (0.75 if words.natural else 0.6):
        func = described_function(rng, words, style.naming)
    else:
        known = {const.name: const.kind for const in module.consts if const.kind in HINTS}
        func = statement_function(rng, words, style, known, module.functions)
    func.hinted = style.hints
    if rng.random() < style.doc_share:
        first = rng.choice(("Return ", "Returns ", "Gives ", "Compute "))
        func.doc = f"{first}{func.description}." if func.description else words.phrase().capitalize() + "."
    if not func.cases and rng.random() < 0.05:
        func.is_async = True
    if not func.cases and rng.random() < 0.05:
        func.decorators = [rng.choice(("@functools.cache", "@staticmethod", f"@{words.verb()}"))]
        if func.decorators[0] != "@functools.cache":
            func.decorators = []
    if func.params and rng.random() < 0.1:
        last = func.params[-1]
        func.defaults[last] = rng.choice(("None", "0", "1", "10")) if not func.hinted else "None"
    return func


def draw_class(rng: random.Random, words: Words, style: Style) -> ClassCode:
    """A class with fields and methods, a dataclass or an enum."""
    name = words.class_name()
    doc = words.phrase().capitalize() + "." if rng.random() < style.doc_share else None
    kind = rng.random()
    if kind < 0.1:
        members = {words.noun().upper(): str(number) for number in range(1, rng.randint(3, 5))}
        return ClassCode(name, "Enum", {}, [], doc, enum=members)
    if kind < 0.2:
        base = rng.choice(("Exception", "ValueError", "RuntimeError"))
        return ClassCode(name + "Error", base, {}, [], doc)
    scope = draw_params(rng, words, rng.choice((1, 2, 3)))
    methods = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        fields = {f"self.{item}": of for item, of in scope.items()}
        params = draw_params(rng, words, rng.choice((0, 0, 1, 2)))
        if rng.random() < 0.3:
            params = {}
        grammar = Grammar(rng, words, {**fields, **params})
        result = grammar.make(rng.choice(("int", "str", "bool", "ints")), 2)
        method = Func(
            words.function(style.naming),
            [p for p in params if p in result.code],
            [f"    return {result.code}"],
            "",
        )
        if rng.random() < 0.3:
            target = rng.choice(list(scope))
            value = Grammar(rng, words, {**fields, **params}).make(scope[target], 1)
            method.body.insert(0, f"    self.{target} = {value.code}")
            method.params = list(params)
        if rng.random() < style.doc_share:
            method.doc = words.phrase().capitalize() + "."
        methods.append(method)
    return ClassCode(name, "", scope, methods, doc, dataclass=rng.random() < 0.2)


def draw_module(rng: random.Random, words: Words, style: Style, path: str, *, size: int = 4) -> Module:
    """A module of about `size` definitions."""
    module = Module(path, gap=1 if rng.random() < 0.15 else 2, classes_first=rng.random() < 0.3)
    if rng.random() < 0.4:
        module.doc = words.phrase().capitalize() + "."
    if rng.random() < 0.55:
        module.imports = sorted(rng.sample(STDLIB_IMPORTS, rng.choice((1, 1, 2, 3))))
    if rng.random() < 0.7:
        module.consts = [draw_const(rng, words, style) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
    for _ in range(size):
        if rng.random() < 0.8:
            module.functions.append(draw_function(rng, words, style, module))
        else:
            module.classes.append(draw_class(rng, words, style))
    if (
        any(item.dataclass for item in module.classes)
        and "from dataclasses import dataclass" not in module.imports
    ):
        module.imports.append("from dataclasses import dataclass")
    if any(item.base == "Enum" for item in module.classes):
        module.imports.append("from enum import Enum")
    if (
        any("@functools.cache" in func.decorators for func in module.functions)
        and "import functools" not in module.imports
    ):
        module.imports.append("import functools")
    return module


__all__ = [
    "ClassCode",
    "Const",
    "Module",
    "Style",
    "add_cases",
    "draw_class",
    "draw_const",
    "draw_function",
    "draw_module",
    "pascal",
]

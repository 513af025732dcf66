"""Code in layers: a function or a method that calls a helper of another module, a bug in one of the layers,
and tests that call only the outermost: the place where a test fails is not the place of the bug.
"""

import random
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from k3agent.backend.training.episodes.bugs import Broken, fresh_function
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.mutate import ENDLESS, Bug, candidates, limited
from k3agent.backend.training.episodes.project import layout
from k3agent.backend.training.episodes.pycode import Style
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.testforms import Claim, Target, write_tests
from k3agent.backend.training.episodes.words import RESERVED, Words, pascal

IMPORT = re.compile(r"^(from|import) .*$", re.MULTILINE)
TRIES = 16


@dataclass(slots=True)
class Layer:
    """A file of the code: its lines, and the functions in it that may be broken."""

    path: str
    lines: list[str]
    funcs: list[Func] = field(default_factory=list)

    @property
    def dotted(self) -> str:
        """The name under which it is imported."""
        return self.path.removesuffix(".py").replace("/", ".")

    @property
    def stem(self) -> str:
        """The last part of that name."""
        return self.dotted.rsplit(".", 1)[-1]

    @property
    def text(self) -> str:
        """The file's text."""
        return "\n".join(self.lines) + "\n"


@dataclass(slots=True)
class Layered:
    """The layers, innermost first, and what the tests call."""

    layers: list[Layer]
    target: Target

    def flat(self, source: str) -> str:
        """Code without imports, and without the modules' names before functions and classes."""
        stems = "|".join(re.escape(layer.stem) for layer in self.layers)
        return re.sub(rf"(?<![\w.'\"])(?:{stems})\.(?=\w+\()", "", IMPORT.sub("", source))

    def results(self, texts: dict[str, str]) -> list[str]:
        """What the target's cases give with other texts of some files; exceptions by name."""
        source = "\n".join(texts.get(layer.path, layer.text) for layer in self.layers)
        scope: dict[str, Any] = {}
        try:
            exec(self.flat(source), scope)
        except Exception as error:
            return [type(error).__name__]
        found: list[str] = []
        target = self.target
        for args in [*(args for args, _ in target.cases), *(args for args, _ in target.raising)]:
            own = dict(scope)
            try:
                found.append(limited(partial(self._result, args, own)))
            except Exception as error:
                found.append(type(error).__name__)
        return found

    def _result(self, args: tuple[Any, ...], scope: dict[str, Any]) -> str:
        """What one case gives."""
        exec(self.flat(self.target.filled(self.target.setup, args)), scope)
        return repr(eval(self.flat(self.target.filled(self.target.call, args)), scope))

    @property
    def wanted(self) -> list[str]:
        """What the cases must give."""
        return [*(repr(value) for _, value in self.target.cases), *(name for _, name in self.target.raising)]


@dataclass(frozen=True, slots=True)
class LayeredSample:
    """Judges one file of layered code."""

    layered: Layered
    path: str

    def results(self, source: str) -> list[str]:
        """What the cases give with this text of the file."""
        return self.layered.results({self.path: source})

    def works(self, source: str) -> bool:
        """Whether the cases hold with this text of the file."""
        return self.results(source) == self.layered.wanted


def _name(ctx: Setting, taken: set[str]) -> str:
    """A function's name that is not taken."""
    while True:
        name = ctx.unused(ctx.words.function)
        if name not in taken and name not in RESERVED and not name.startswith("_"):
            taken.add(name)
            return name


def _doc(rng: random.Random, words: Words, what: str) -> list[str]:
    """A docstring of a function's body, or nothing."""
    if rng.random() < 0.45:
        return []
    return [f'    """{what if what and rng.random() < 0.6 else words.phrase().capitalize()}."""']


def _wrapped(ctx: Setting, inner: Func, call: str) -> tuple[list[str], str]:
    """Lines that make something of a call's result; and the constant that they need, if any."""
    rng, words = ctx.rng, ctx.words
    local = rng.choice(("value", "result", words.noun(), f"{words.adjective()}_{words.noun()}"))
    if local in RESERVED or local in inner.params or local in call:
        local = "found_value"
    value = inner.cases[0][1]
    key = words.noun()
    forms: list[list[str]] = [
        [f"    return {call}"],
        [f"    {local} = {call}", f"    return {local}"],
        [f"    return {{'{key}': {call}}}"],
        [f"    return f'{key}: {{{call}}}'"] if "'" not in call else [f"    return [{call}]"],
    ]
    if isinstance(value, int) and not isinstance(value, bool):
        number = rng.randint(2, 40)
        forms += [
            [f"    {local} = {call}", f"    return max({local}, {number})"],
            [
                f"    {local} = {call}",
                f"    if {local} > {number}:",
                f"        return {number}",
                f"    return {local}",
            ],
            [f"    return {call} + {number}"],
        ]
    if isinstance(value, str):
        forms += [
            [f"    {local} = {call}", f"    return {local}.upper()"],
            [f"    {local} = {call}", f"    return '<' + {local} + '>'"],
        ]
    if isinstance(value, list):
        forms += [
            [f"    {local} = {call}", f"    return {local}, len({local})"],
            [f"    {local} = {call}", f"    return {local}[:2]"],
        ]
    return rng.choice(forms), local


def _guard(
    ctx: Setting, inner: Func, names: list[str]
) -> tuple[list[str], list[tuple[tuple[Any, ...], str]]]:
    """A check of the first argument now and then: its lines, and the arguments that it rejects."""
    first = inner.cases[0][0][0] if inner.cases[0][0] else None
    rng, words = ctx.rng, ctx.words
    if rng.random() > 0.3 or not inner.params:
        return [], []
    rest = inner.cases[0][0][1:]
    message = f"'{words.phrase()}'" if rng.random() < 0.7 else f"'no {words.noun()}'"
    error = rng.choice(("ValueError", "ValueError", "KeyError", "RuntimeError"))
    if "'" in message[1:-1]:
        message = f"'no {words.noun()}'"
    if isinstance(first, list | str) and first and all(args[0] for args, _ in inner.cases):
        empty: Any = [] if isinstance(first, list) else ""
        return [f"    if not {names[0]}:", f"        raise {error}({message})"], [((empty, *rest), error)]
    if (
        isinstance(first, int)
        and not isinstance(first, bool)
        and all(args[0] >= 0 for args, _ in inner.cases)
    ):
        return [f"    if {names[0]} < 0:", f"        raise {error}({message})"], [((-1, *rest), error)]
    return [], []


def _helper(ctx: Setting, inner: Func, layer: Layer, into: Layer) -> str:
    """How a layer names the inner function, with the import put in."""
    rng = ctx.rng
    if into is layer:
        return inner.name
    if rng.random() < 0.3 and layer.stem not in inner.params:
        package = layer.dotted.rpartition(".")[0]
        into.lines.insert(0, f"from {package} import {layer.stem}" if package else f"import {layer.stem}")
        return f"{layer.stem}.{inner.name}"
    into.lines.insert(0, f"from {layer.dotted} import {inner.name}")
    return inner.name


def _method(
    ctx: Setting, inner: Func, called: str, taken: set[str], style: Style
) -> tuple[list[str], Func, Target]:
    """A class that keeps the arguments and has a method that calls the function."""
    rng, words = ctx.rng, ctx.words
    name = ctx.unused(words.class_name)
    kept = inner.params if rng.random() < 0.6 or len(inner.params) == 1 else inner.params[:1]
    given = [param for param in inner.params if param not in kept]
    method = _name(ctx, taken)
    args = ", ".join(f"self.{param}" if param in kept else param for param in inner.params)
    body, _ = _wrapped(ctx, inner, f"{called}({args})")
    guard, raising = _guard(
        ctx, inner, [f"self.{param}" if param in kept else param for param in inner.params]
    )
    hints = dict(zip(inner.params, inner.hints, strict=False)) if style.hints else {}

    def said(param: str) -> str:
        return f"{param}: {hints[param]}" if param in hints else param

    func = Func(method, ["self", *given], [*_doc(rng, words, ""), *guard, *body], "")
    head = f"    def {method}({', '.join(['self', *map(said, given)])}):"
    others: list[list[str]] = []
    if rng.random() < 0.5:
        others.append([f"    def {_name(ctx, taken)}(self):", f"        return self.{kept[0]}"])
    if rng.random() < 0.3:
        others.append(["    def __repr__(self):", f"        return '{name}(' + repr(self.{kept[0]}) + ')'"])
    blocks = [[head, *(f"    {line}" if line else "" for line in func.body)], *others]
    rng.shuffle(blocks)
    lines = [
        f"class {name}:",
        *_doc(rng, words, ""),
        f"    def __init__({', '.join(['self', *map(said, kept)])}):",
    ]
    if len(lines) == 3:
        lines.insert(2, "")
    lines += [f"        self.{param} = {param}" for param in kept]
    for block in blocks:
        lines += ["", *block]
    variable = rng.choice((name.lower(), words.noun(), "subject", "thing", name[:1].lower() + name[1:]))
    if variable in inner.params or variable in RESERVED or variable == name or f"{variable}." in called:
        variable = "this_one"
    target = Target(
        method,
        inner.params,
        f"{variable} = {name}({', '.join(f'{{{param}}}' for param in kept)})",
        f"{variable}.{method}({', '.join(f'{{{param}}}' for param in given)})",
        [],
        raising,
    )
    return lines, func, target


def _outer(
    ctx: Setting, inner: Func, called: str, taken: set[str], style: Style
) -> tuple[list[str], Func, Target]:
    """A function that calls the function."""
    rng, words = ctx.rng, ctx.words
    names = list(inner.params)
    if rng.random() < 0.4:
        names = [f"{words.noun()}_{index}" if index else words.noun() for index in range(len(names))]
        if any(name in RESERVED or name in called for name in names):
            names = list(inner.params)
    body, _ = _wrapped(ctx, inner, f"{called}({', '.join(names)})")
    guard, raising = _guard(ctx, inner, names)
    func = Func(_name(ctx, taken), names, [*_doc(rng, words, ""), *guard, *body], "", hints=inner.hints)
    func.hinted = style.hints
    target = Target(
        func.name, names, "", f"{func.name}({', '.join(f'{{{name}}}' for name in names)})", [], raising
    )
    return func.source(), func, target


def draw_layers(ctx: Setting) -> tuple[Layered, str, Style] | None:
    """Correct code in layers, the folder of its tests, and how it is written."""
    rng, words = ctx.rng, ctx.words
    style = replace(Style.draw(rng) if ctx.project is None else ctx.project.style, indent="    ")
    inner = fresh_function(ctx)
    if not inner.params or any("inf" in repr(value) or "{" in repr(args) for args, value in inner.cases):
        return None
    inner.hinted = style.hints
    if inner.description and rng.random() < 0.55 and not inner.doc:
        inner.doc = f"Return {inner.description}."
    folder, _, tests = layout(rng, words)
    stems = [ctx.unused(words.module) for _ in range(2)]
    if stems[0] == stems[1] or set(stems) & set(folder.split("/")):
        # A module named as its package hides it.
        return None
    if any(f"{folder}{stem}.py" in ctx.facts.files for stem in stems):
        return None
    taken = {inner.name, *inner.params}
    low = Layer(f"{folder}{stems[0]}.py", [], [inner])
    is_one = rng.random() < 0.25
    high = low if is_one else Layer(f"{folder}{stems[1]}.py", [])
    called = _helper(ctx, inner, low, high)
    if rng.random() < 0.25:
        middle_lines, middle, _ = _outer(ctx, inner, called, taken, style)
        middle.cases = inner.cases
        called = middle.name
    else:
        middle_lines, middle = [], None
    make = _method if rng.random() < 0.55 else _outer
    base = replace(inner, params=list(middle.params)) if middle else inner
    lines, func, target = make(ctx, base, called, taken, style)
    noise = fresh_function(ctx).source() if rng.random() < 0.4 else []
    blocks = [inner.source(), noise] if not is_one else [inner.source(), noise, middle_lines, lines]
    low.lines = [*low.lines, *_joined(rng, words, [block for block in blocks if block], bool(low.lines))]
    if not is_one:
        blocks = [block for block in (middle_lines, lines) if block]
        high.lines = [*high.lines, *_joined(rng, words, blocks, True)]
    high.funcs += [item for item in (middle, func) if item is not None]
    layers = [low] if is_one else [low, high]
    for layer in layers:
        layer.lines = style.dress(layer.lines)
    layered = Layered(layers, target)
    target.cases = [(args, None) for args, _ in inner.cases]
    raising, target.raising = target.raising, []
    values = layered.results({})
    if len(values) != len(target.cases):
        return None
    target.cases = []
    for (args, _), shown in zip(inner.cases, values, strict=True):
        try:
            target.cases.append((args, eval(shown, {})))
        except Exception:
            return None
    target.raising = raising
    return (layered, tests, style) if layered.results({}) == layered.wanted else None


def _joined(rng: random.Random, words: Words, blocks: list[list[str]], has_import: bool) -> list[str]:
    """Definitions below each other, with a docstring or constant at the top now and then."""
    lines: list[str] = ["", ""] if has_import else []
    if not has_import and rng.random() < 0.4:
        lines += [f'"""{words.phrase().capitalize()}."""', "", ""]
    for index, block in enumerate(blocks):
        lines += [*(["", ""] if index else []), *block]
    return lines


def _place(layer: Layer, func: Func, bug: Bug, style: Style) -> tuple[int, str, str] | None:
    """Line number, wrong and right text of a bug in a layer's file, if its line is clear."""
    right = style.dress([bug.right])[0]
    wrong = style.dress([bug.wrong])[0]
    head = next((i for i, line in enumerate(layer.lines) if re.match(rf"\s*def {func.name}\(", line)), None)
    if head is None:
        return None
    for index in range(head + 1, min(len(layer.lines), head + len(func.body) + 12)):
        line = layer.lines[index]
        if line.strip() == right.strip() and len(line) - len(line.lstrip()) >= len(right) - len(
            right.lstrip()
        ):
            lead = line[: len(line) - len(line.lstrip())]
            return index, lead + wrong.strip(), line
    return None


def draw_layered(ctx: Setting) -> Broken | None:
    """A bug in one layer that the tests of the outermost notice."""
    rng = ctx.rng
    drawn = draw_layers(ctx)
    if drawn is None:
        return None
    layered, tests, style = drawn
    pool = [(layer, func) for layer in layered.layers for func in layer.funcs]
    inner = [item for item in pool if item[1] is layered.layers[0].funcs[0]]
    layer, func = rng.choice(inner if rng.random() < 0.7 else pool)
    for bug in candidates(func, rng)[:TRIES]:
        if bug.right.lstrip() == bug.wrong.lstrip() or bug.right.strip().startswith(('"""', "'''")):
            continue
        place = _place(layer, func, bug, style)
        if place is None:
            continue
        index, wrong, right = place
        bad = "\n".join([*layer.lines[:index], wrong, *layer.lines[index + 1 :]]) + "\n"
        try:
            compile(bad, "file", "exec")
        except SyntaxError:
            continue
        found = layered.results({layer.path: bad})
        if ENDLESS in found or found == layered.wanted:
            continue
        return _broken(ctx, layered, layer, func, bug, (index, wrong, right, bad), tests)
    return None


def _broken(
    ctx: Setting,
    layered: Layered,
    layer: Layer,
    func: Func,
    bug: Bug,
    place: tuple[int, str, str, str],
    tests: str,
) -> Broken | None:
    """The task: files, tests that fail."""
    index, wrong, right, bad = place
    outer = layered.layers[-1]
    target = layered.target
    thing = target.setup.split(" = ", 1)[1].split("(")[0] if target.setup else target.label
    if ctx.rng.random() < 0.2 and outer.stem not in target.params and target.variable != outer.stem:
        package = outer.dotted.rpartition(".")[0]
        head = f"from {package} import {outer.stem}" if package else f"import {outer.stem}"
        if target.setup:
            target.setup = target.setup.replace(f"{thing}(", f"{outer.stem}.{thing}(", 1)
        else:
            target.call = f"{outer.stem}.{target.call}"
    else:
        head = f"from {outer.dotted} import {thing}"
    text, written = write_tests(ctx.rng, ctx.words, [target], [head], pascal(outer.stem.split("_")))
    scope: dict[str, Any] = {}
    exec(layered.flat("\n".join(bad if item is layer else item.text for item in layered.layers)), scope)
    failing = [name for name, setup, one in written.claims if not _holds(layered, setup, one, scope)]
    if not failing:
        return None
    test_path = f"{tests}test_{outer.stem}.py"
    if test_path in ctx.facts.files or test_path == layer.path:
        return None
    extra = {item.path: item.text for item in layered.layers if item is not layer}
    sample = LayeredSample(layered, layer.path)
    return Broken(
        func,
        bug,
        layer.path,
        layer.text,
        bad,
        index + 1,
        wrong,
        right,
        test_path,
        text,
        extra,
        sample,
        failing[0],
    )


def _holds(layered: Layered, setup: str, one: Claim, scope: dict[str, Any]) -> bool:
    """Whether a claim holds in a scope that has all names without their module."""
    own = dict(scope)
    try:
        exec(layered.flat(setup), own)
    except Exception:
        return False
    return replace(one, left=layered.flat(one.left), right=layered.flat(one.right)).holds(own)

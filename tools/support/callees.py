"""Where the functions are that a function of a Python file calls in other files of the workspace.

Read from the imports, nothing is imported or run: what is bound at run time is not found.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k3agent.errors import ToolError
from k3agent.safety.secretfiles import is_secret_file
from k3agent.tools.base import ToolContext
from k3agent.tools.support import paths, testruns, textio
from k3agent.tools.support.mutation import blocks_around

MAX_FILES = 4
MAX_SITES = 6
DEPTH = 2
"""Files behind one another: what the named function calls, and what that calls."""
MAX_CHARS = 200_000
"""A longer file takes too long to parse."""
FOREIGN = ("site-packages", "dist-packages", "node_modules", "__pycache__")


@dataclass(frozen=True, slots=True)
class Callee:
    """A function or class `name` of a module; `level`: the dots before the module in an import."""

    level: int
    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Site:
    """A file, and the line in it where a function or class is defined."""

    place: paths.Place
    line: int


def callees(text: str, line: int) -> list[Callee]:
    """What the function at a line, and what belongs to it in the same file, uses of other modules: what is
    called comes first. A name may stand for a module or for a part of one, so there may be two for one call.
    """
    tree = _parsed(text)
    if tree is None:
        return []
    imported = _imported(tree)
    found: dict[Callee, None] = {}
    blocks = blocks_around(text, line)
    for is_called in (True, False):
        for block in blocks:
            for names in _used(tree, block, is_called=is_called):
                found.update(dict.fromkeys(_meant(imported, names)))
    return list(found)


def sites_behind(place: paths.Place, text: str, line: int, ctx: ToolContext) -> list[Site]:
    """The definitions in other files that may matter for the function at a line, the nearest first. Only
    files of the workspace that may be changed there: no tests, no installed packages, nothing hidden.
    """
    if place.path.suffix != ".py" or not place.path.is_relative_to(ctx.cwd):
        return []
    found: dict[tuple[Path, int], Site] = {}
    files: set[Path] = set()
    front = [(place, text, line)]
    for _ in range(DEPTH):
        behind: list[tuple[paths.Place, str, int]] = []
        for origin, code, at in front:
            for callee in callees(code, at):
                site, inside = _defined(origin, callee, ctx) or (None, "")
                if site is None or site.place.path == place.path or (site.place.path, site.line) in found:
                    continue
                if len(files | {site.place.path}) > MAX_FILES or len(found) == MAX_SITES:
                    continue
                files.add(site.place.path)
                found[site.place.path, site.line] = site
                behind.append((site.place, inside, site.line))
        front = behind
    return list(found.values())


# --- what is used -------------------------------------------------------------------------------------------


def _parsed(text: str) -> ast.Module | None:
    if len(text) > MAX_CHARS:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported(tree: ast.Module) -> dict[str, tuple[int, str, str]]:
    """Level, module and part of it (or none) for each name that an import of the file binds."""
    found: dict[str, tuple[int, str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                found[one.asname or one.name] = (0, one.name, "")
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                found[one.asname or one.name] = (node.level, node.module or "", one.name)
    return found


def _used(tree: ast.Module, block: tuple[int, int], *, is_called: bool) -> Iterator[list[str]]:
    """The dotted names in a block, those that are called or the others, as they stand."""
    nodes = [node for node in ast.walk(tree) if block[0] < getattr(node, "lineno", 0) <= block[1]]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    named = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
    for node in sorted(named, key=lambda node: (node.lineno, node.col_offset)):
        if (id(node) in called) == is_called and (names := _dotted(node)):
            yield names


def _dotted(node: ast.expr) -> list[str]:
    """The parts of `a.b.c`; none where it does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _meant(imported: dict[str, tuple[int, str, str]], names: list[str]) -> Iterator[Callee]:
    for count in range(len(names), 0, -1):
        origin = imported.get(".".join(names[:count]))
        if origin is None:
            continue
        level, module, part = origin
        rest = names[count:]
        if part:
            yield Callee(level, module, part)
            module = f"{module}.{part}" if module else part
        # The rest may go through modules inside of this one.
        for index, name in enumerate(rest):
            yield Callee(level, ".".join([module, *rest[:index]]), name)
        return


# --- where it is --------------------------------------------------------------------------------------------


def _defined(
    origin: paths.Place, callee: Callee, ctx: ToolContext, *, again: bool = True
) -> tuple[Site, str] | None:
    """Where a function or class is defined, and the text of that file. A module that only passes it on is
    followed once.
    """
    place = _file_of(origin, callee, ctx)
    if place is None:
        return None
    try:
        text = textio.load(place.path, place.shown).view
    except (ToolError, OSError):
        return None
    tree = _parsed(text)
    if tree is None:
        return None
    for node in _top(tree.body):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name == callee.name
        ):
            return Site(place, node.lineno), text
    level, module, part = _imported(tree).get(callee.name, (0, "", ""))
    return _defined(place, Callee(level, module, part), ctx, again=False) if part and again else None


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those in its conditions."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top([*node.body, *node.orelse])
            for handler in node.handlers if isinstance(node, ast.Try) else ():
                yield from _top(handler.body)


def _file_of(origin: paths.Place, callee: Callee, ctx: ToolContext) -> paths.Place | None:
    """The file of a module, if it is one of the workspace that may be changed."""
    own = Path(ctx.cwd, origin.shown).parent
    if callee.level:
        folders = [own, *own.parents][callee.level - 1 : callee.level]
    else:
        above = [one for one in (own, *own.parents) if one.is_relative_to(ctx.cwd)]
        folders = list(dict.fromkeys([ctx.cwd, ctx.cwd / "src", *above]))
    inner = Path(*filter(None, callee.module.split(".")))
    for folder in folders:
        for path in (
            folder / inner.with_suffix(".py") if inner.name else None,
            folder / inner / "__init__.py",
        ):
            if path is not None and path.is_file():
                return _usable(path, ctx)
    return None


def _usable(path: Path, ctx: ToolContext) -> paths.Place | None:
    try:
        place = paths.locate(str(path), ctx)
        info = paths.stat_of(place)
    except ToolError:
        return None
    if info is None or info.st_size > textio.LARGE_BYTES or not place.path.is_relative_to(ctx.cwd):
        return None
    for name in (place.path.relative_to(ctx.cwd), Path(place.shown)):
        if name.is_absolute() or any(part in FOREIGN or part.startswith(".") for part in name.parts):
            return None
        if testruns.is_test_file(name.name) or is_secret_file(name.name):
            return None
    return place

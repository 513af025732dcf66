"""Whether a file parses: Python, JSON, TOML by the standard library, others where their grammar is here."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_CHARS = 1_000_000
# Suffix to the package of the grammar and the function in it that gives it.
GRAMMARS = {
    ".sh": ("bash", "language"),
    ".bash": ("bash", "language"),
    ".js": ("javascript", "language"),
    ".jsx": ("javascript", "language"),
    ".mjs": ("javascript", "language"),
    ".ts": ("typescript", "language_typescript"),
    ".tsx": ("typescript", "language_tsx"),
    ".go": ("go", "language"),
    ".rs": ("rust", "language"),
    ".java": ("java", "language"),
    ".rb": ("ruby", "language"),
    ".c": ("c", "language"),
    ".cc": ("cpp", "language"),
    ".cpp": ("cpp", "language"),
}
# JSON by their names, with comments by their use.
LENIENT_JSON = ("tsconfig", "jsconfig", "devcontainer", "settings", "launch", "tasks", "extensions")


def newly_broken(path: Path, before: str, after: str) -> str:
    """A sentence for the model and the user, or "" where the file parses, did not before, or is no Python."""
    if path.suffix != ".py" or len(after) > MAX_CHARS:
        return ""
    found = _python(after)
    if not found or _python(before):
        return ""
    return f"Warning: {path.name} does not parse now: {found}."


def problem(name: str, text: str) -> str | None:
    """Why the text of such a file does not parse; "" where it does, None where that cannot be told."""
    if len(text) > MAX_CHARS:
        return None
    path = PurePath(name)
    match path.suffix:
        case ".py" | ".pyi":
            return _python(text)
        case ".json":
            return None if path.stem.startswith(LENIENT_JSON) else _json(text)
        case ".toml":
            return _toml(text)
        case suffix if suffix in GRAMMARS:
            parser = _parser(*GRAMMARS[suffix])
            return None if parser is None else _tree(parser, text)
        case _:
            return None


def _python(text: str) -> str:
    import ast  # lazy: 5 ms
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return ""


def _json(text: str) -> str:
    import json

    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        return str(error) or type(error).__name__
    return ""


def _toml(text: str) -> str:
    import tomllib  # lazy: only for such a file

    try:
        tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error) or type(error).__name__
    return ""


@cache
def _parser(package: str, function: str) -> Any:
    """None where the grammar is not installed."""
    language = grammar_of(package, function)
    if language is None:
        return None
    from tree_sitter import Parser  # lazy: native, 10 ms

    return Parser(language)


@cache
def grammar_of(package: str, function: str) -> Any:
    """A language of tree-sitter; None where its grammar is not installed."""
    try:
        from tree_sitter import Language  # lazy: native, 10 ms

        grammar = importlib.import_module(f"tree_sitter_{package}")
        return Language(getattr(grammar, function)())
    except (ImportError, AttributeError, TypeError, ValueError):
        return None


def _tree(parser: Any, text: str) -> str:
    root = parser.parse(text.encode("utf-8", "replace")).root_node
    return f"line {_first_error(root)}: invalid syntax" if root.has_error else ""


def _first_error(node: Node) -> int:
    """The line of the first place that is wrong."""
    while not (node.is_error or node.is_missing):
        inner = next((child for child in node.children if child.has_error or child.is_missing), None)
        if inner is None:
            break
        node = inner
    return node.start_point[0] + 1

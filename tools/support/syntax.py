"""Whether a file parses: Python, JSON, TOML by the standard library, others where their grammar is here."""

from __future__ import annotations

import importlib
import re
import threading
import time
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

MAX_CHARS = 1_000_000
# What a parser may take for one file.
LIMIT_S = 2.0
READ_BYTES = 1 << 14
# Deeper is no program that somebody has written, and costs parsers gigabytes.
MAX_DEPTH = 400
MAX_OPEN_ANGLES = 60
_CHAIN = re.compile(rb"(?:[-+!~&*^@]\s*){300}|(?:\b(?:not|await|typeof|void|delete|new|lambda:)\s+){300}")
_BRACKETS = re.compile(rb"[(\[{}\])<>;]")
# A parser serves one text at a time.
_LOCK = threading.Lock()
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
            return None if parser is None else _tree(parser, text.encode("utf-8", "replace"))
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


def parsed(parser: Any, data: bytes) -> Tree | None:
    """None where it takes too long: texts can be made so that time and memory grow with the square of their
    length, and while a parser works nothing else does.
    """
    if _is_nested(data):
        return None
    end = time.monotonic() + LIMIT_S
    with _LOCK:
        try:
            # Only such a way of reading can be ended.
            return parser.parse(
                lambda at, _: data[at : at + READ_BYTES],
                progress_callback=lambda *_: time.monotonic() > end,
            )
        except ValueError:
            parser.reset()
            return None


def _is_nested(data: bytes) -> bool:
    """Whether brackets are deeper, or more signs follow each other, than in any program."""
    if _CHAIN.search(data) is not None:
        return True
    depth = angles = 0
    for sign in _BRACKETS.findall(data):
        angles = angles + 1 if sign == b"<" else 0
        if sign in b"([{":
            depth += 1
        elif sign in b")]}" and depth:
            depth -= 1
        if depth > MAX_DEPTH or angles > MAX_OPEN_ANGLES:
            return True
    return False


def _tree(parser: Any, data: bytes) -> str | None:
    tree = parsed(parser, data)
    if tree is None:
        return None
    root = tree.root_node
    return f"line {_first_error(root)}: invalid syntax" if root.has_error else ""


def _first_error(node: Node) -> int:
    """The line of the first place that is wrong."""
    while not (node.is_error or node.is_missing):
        inner = next((child for child in node.children if child.has_error or child.is_missing), None)
        if inner is None:
            break
        node = inner
    return node.start_point[0] + 1

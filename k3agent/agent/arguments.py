"""From a call's argument string to checked arguments; what can be repaired is repaired and said.

The stored string is never changed: a repair is only about what runs. Repairs never invent content: an
answer that was cut off inside a text is not completed.
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

from k3agent.types import JsonObject

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Args

# Python's own limit depends on how deep the caller stands; this one is the same everywhere.
MAX_DEPTH = 64
CLOSERS = {"{": "}", "[": "]"}


class ArgumentsInvalid(Exception):
    """The text says what is wrong, without the tool's name."""


def parse_object(text: str) -> tuple[JsonObject, str]:
    """The JSON object in `text`, and what was repaired ('' if nothing). An empty text is an empty object."""
    if not text.strip():
        return {}, ""
    try:
        value: Any = json.loads(text)
        note = ""
    except RecursionError as error:
        raise ArgumentsInvalid("nested too deeply; the tools take flat objects") from error
    except ValueError as error:
        repaired = _repair(text)
        if repaired is None:
            raise ArgumentsInvalid(f"not valid JSON: {error}") from error
        value, note = repaired
    if isinstance(value, str):
        # The whole object as a JSON string: a known habit of some servers.
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            inner = value
        if isinstance(inner, dict):
            value, note = inner, "an object inside a string"
    if not isinstance(value, dict):
        raise ArgumentsInvalid(f"must be a JSON object, not {_kind(value)}")
    if is_deep(value):
        raise ArgumentsInvalid("nested too deeply; the tools take flat objects")
    return value, note


def is_deep(value: Any) -> bool:
    """Without recursion: whether anything lies below `MAX_DEPTH` lists and objects."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _repair(text: str) -> tuple[Any, str] | None:
    """The value after the first repair that makes `text` valid."""
    stripped = text.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*)\n?```", stripped, re.DOTALL)
    if fenced is not None:
        value = _loads(fenced.group(1))
        if value is not None:
            return value, "a code fence around it"
    value = _loads(stripped, strict=False)
    if value is not None:
        return value, "line breaks or control characters inside strings"
    candidate = _without_trailing_commas(stripped)
    value = _loads(candidate, strict=False)
    if value is not None:
        return value, "a trailing comma"
    closed = _closed(candidate)
    if closed is not None:
        value = _loads(_without_trailing_commas(closed), strict=False)
        if value is not None:
            return value, "missing closing brackets"
    if stripped.startswith("{") and len(stripped) < 100_000:
        try:
            value = ast.literal_eval(stripped)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return value, "Python quotes"
    return None


def _loads(text: str, *, strict: bool = True) -> Any:
    try:
        return json.loads(text, strict=strict)
    except (ValueError, RecursionError):
        return None


def _without_trailing_commas(text: str) -> str:
    """Commas before a closing bracket go, but not inside strings."""
    pieces = re.split(r'("(?:[^"\\]|\\.)*")', text, flags=re.DOTALL)
    pieces[::2] = [re.sub(r",(\s*[}\]])", r"\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def _closed(text: str) -> str | None:
    """`text` with the brackets that are open at its end closed; None when it ends inside a string."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)
    if '"' in bare:
        return None
    stack: list[str] = []
    for char in bare:
        if char in CLOSERS:
            stack.append(CLOSERS[char])
        elif char in "}]" and (not stack or stack.pop() != char):
            return None
    return text.rstrip().rstrip(",") + "".join(reversed(stack)) if stack else None


def validate(kind: type[Args], value: JsonObject) -> Args:
    """The tool's arguments. Raises ArgumentsInvalid: `FIELD: reason; FIELD: reason`."""
    from pydantic import ValidationError  # lazy: loaded with the tools already

    try:
        return kind.model_validate(value)
    except ValidationError as error:
        fields = list(kind.model_fields)
        raise ArgumentsInvalid("; ".join(_problem(item, fields) for item in error.errors())) from error


def _problem(item: Any, fields: list[str]) -> str:
    name = ".".join(str(part) for part in item["loc"]) or "arguments"
    kind = item["type"]
    if kind == "missing":
        return f"{name}: missing"
    if kind == "extra_forbidden":
        return f"{name}: unknown; the fields are {', '.join(fields)}"
    message = str(item["msg"])
    return f"{name}: {message[:1].lower()}{message[1:]}"


def canonical(text: str) -> str:
    """Arguments for comparison: order of keys and white space around JSON do not matter."""
    try:
        return json.dumps(parse_object(text)[0], sort_keys=True)
    except ArgumentsInvalid:
        return " ".join(text.split())

"""Path patterns as regular expressions, in two dialects.

`compile_glob` is for patterns that a model writes: `*`, `?`, `[...]`, `{a,b}`, `**` as a whole segment; a
backslash is a plain character. `compile_ignore` is one line of a .gitignore file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from k3agent.errors import ToolError

MAGIC = re.compile(r"[*?\[{]")


@lru_cache(maxsize=256)
def compile_glob(pattern: str, *, hidden: bool = False) -> re.Pattern[str]:
    """Matches whole relative paths. Unless `hidden`, wildcards do not stand for names with a dot first."""
    no_dot = "" if hidden else r"(?!\.)"
    alternatives = []
    for variant in _braces(pattern):
        segments = [segment for segment in variant.split("/") if segment not in ("", ".")]
        regex = ""
        for index, segment in enumerate(segments):
            is_last = index == len(segments) - 1
            if segment == "**":
                regex += rf"(?:{no_dot}[^/]+/)*" + (rf"{no_dot}[^/]+" if is_last else "")
            else:
                guard = no_dot if segment[0] in "*?[" else ""
                regex += guard + _segment(segment, escapes=False) + ("" if is_last else "/")
        alternatives.append(regex)
    try:
        return re.compile("|".join(f"(?:{regex})" for regex in alternatives))
    except re.error as error:
        raise ToolError(f"glob pattern {pattern!r} is not usable: {error}.") from error


def _braces(pattern: str, depth: int = 0) -> list[str]:
    """`a{b,c}d` as `abd`, `acd`; nested and repeated. Unbalanced braces are plain characters."""
    start = pattern.find("{")
    if start < 0 or depth > 8:
        return [pattern]
    level, parts, begin = 0, list[str](), start + 1
    for index in range(start, len(pattern)):
        char = pattern[index]
        if char == "{":
            level += 1
        elif char == "," and level == 1:
            parts.append(pattern[begin:index])
            begin = index + 1
        elif char == "}":
            level -= 1
            if level == 0:
                parts.append(pattern[begin:index])
                head, tail = pattern[:start], pattern[index + 1 :]
                return [item for part in parts for item in _braces(head + part + tail, depth + 1)][:200]
    return [pattern]


def _segment(text: str, *, escapes: bool) -> str:
    """One path segment as a regular expression; `escapes`: a backslash takes away a special meaning."""
    regex, index = "", 0
    while index < len(text):
        char = text[index]
        index += 1
        if char == "*":
            regex += "" if regex.endswith("[^/]*") else "[^/]*"
        elif char == "?":
            regex += "[^/]"
        elif char == "\\" and escapes and index < len(text):
            regex += re.escape(text[index])
            index += 1
        elif char == "[" and (end := _class_end(text, index)) > 0:
            body = text[index:end]
            negated = body[0] in "!^"
            body = body[1:] if negated else body
            body = body if escapes else body.replace("\\", "\\\\")
            body = body.replace("[", "\\[").replace("&&", "&\\&").replace("||", "|\\|").replace("~~", "~\\~")
            body = "\\]" + body[1:] if body.startswith("]") else body
            body = "\\^" + body[1:] if body.startswith("^") else body
            regex += f"(?!/)[{'^' if negated else ''}{body}]"
            index = end + 1
        else:
            regex += re.escape(char)
    return regex


def _class_end(text: str, index: int) -> int:
    start = index + 1 if index < len(text) and text[index] in "!^" else index
    return text.find("]", start + 1)


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """`keeps` is a line with `!`; `regex` matches a whole path relative to the folder of the ignore file."""

    regex: re.Pattern[str]
    keeps: bool
    folders_only: bool


@lru_cache(maxsize=2048)
def compile_ignore(line: str) -> IgnoreRule | None:
    """The rule of one line, or None for blank lines, comments and broken patterns."""
    line = line.rstrip("\r\n")
    if line.startswith("#"):
        return None
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    keeps = line.startswith("!")
    line = line[1:] if keeps else line
    folders_only = line.endswith("/")
    line = line.rstrip("/") if folders_only else line
    if not line:
        return None
    anchored = "/" in line
    segments = line.lstrip("/").split("/")
    regex = "" if anchored else "(?:.*/)?"
    for index, segment in enumerate(segments):
        is_last = index == len(segments) - 1
        if segment == "**":
            regex += ".+" if is_last else "(?:.*/)?"
        else:
            regex += _segment(segment, escapes=True) + ("" if is_last else "/")
    try:
        return IgnoreRule(re.compile(regex, re.DOTALL), keeps, folders_only)
    except re.error:
        return None

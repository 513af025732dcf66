"""The lines between `---` that open a command or a skill: `key: value`, and lists of words.

Not a whole YAML: what people write there fits on a line, and a library would cost each start.
"""

from __future__ import annotations

import re

_KEY = re.compile(r"([A-Za-z][\w-]*)\s*:(?:\s+(.*))?$")
_FOLDED = ("|", ">", "|-", ">-", "|+", ">+")


def split(text: str) -> tuple[dict[str, str], str]:
    """(front matter, the text below it). Without front matter all is text. A list becomes its items, one a
    line.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}, text.strip()
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), None)
    if end is None:
        return {}, text.strip()
    return _fields(lines[1:end]), "\n".join(lines[end + 1 :]).strip()


def _fields(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    key = ""
    for line in lines:
        match = _KEY.match(line)
        if match is not None:
            key = match[1].lower()
            value = (match[2] or "").strip()
            found[key] = [] if not value or value in _FOLDED else _values(value)
        elif key and line.strip() and not line.lstrip().startswith("#"):
            found[key].append(_plain(line.strip().removeprefix("- ").strip()))
    return {name: "\n".join(values) for name, values in found.items()}


def _values(value: str) -> list[str]:
    if value.startswith("[") and value.endswith("]"):
        return [_plain(item.strip()) for item in split_list(value[1:-1])]
    return [_plain(value)]


def split_list(text: str) -> list[str]:
    """The items between commas or line ends; commas in brackets or quotes part nothing."""
    items: list[str] = []
    depth, quote, item = 0, "", ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if sign in ",\n" and depth <= 0 and not quote:
            items.append(item.strip())
            item = ""
        else:
            item += sign
    return [item for item in (*items, item.strip()) if item]


def _plain(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value

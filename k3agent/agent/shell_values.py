"""What the unknown words of a shell command may be, as far as its own text shows: `x=~/.ssh; cat $x/id_rsa`.

This is no shell: it guesses too much rather than too little, and what it finds makes a verdict stricter only.
"""

from __future__ import annotations

import re
from typing import Any

from k3agent.agent.shell_texts import nodes_of, text_of

Values = dict[str, list[str]]
"""Names of variables with the texts, as they are written, that they are given anywhere in the command."""

MAX_TEXTS = 32
MAX_CHARS = 4096
MAX_ROUNDS = 6
# The second plus signs: one look, also where the closing brace is missing.
_VARIABLE = re.compile(r"\$(?:(\w+|[@*])|\{!?(\w++|[@*])([^{}]*+)\})")
_BRACES = re.compile(r"\{([^{},]*+,[^{}]*+)\}")
_DEFAULT = re.compile(r":?[-=+]")


def collect(root: Any, values: Values) -> None:
    """Add what assignments, loops, `set`, calls of functions and `read x <<< TEXT` below `root` say."""
    functions = {_name(node) for node in nodes_of(root) if node.type == "function_definition"}
    read: list[str] = []
    given: list[str] = []
    for node in nodes_of(root):
        match node.type:
            case "variable_assignment":
                value = node.child_by_field_name("value")
                parts = [] if value is None else value.named_children if value.type == "array" else [value]
                _add(values, _name(node).partition("[")[0], parts)
            case "for_statement":
                variable = node.child_by_field_name("variable")
                parts = node.children_by_field_name("value")
                _add(values, "" if variable is None else text_of(variable), parts)
            case "herestring_redirect":
                given += [text_of(part) for part in node.named_children]
            case "command" if (name := _name(node)) in ("set", "read") or name in functions:
                words = [part for part in node.named_children if part.type != "command_name"]
                if name == "read":
                    read += [text_of(word) for word in words]
                    continue
                for position in ("@", "*", *(str(at) for at in range(1, 10))):
                    _add(values, position, words)
            case _:
                pass
    for name in read if given else ():
        kept = values.setdefault(name, [])
        kept += given[: max(0, MAX_TEXTS - len(kept))]


def expand(text: str, values: Values) -> tuple[str, ...]:
    """What `text`, a word as it is written, may be with these values: quotes removed, the first ones of many.
    Nothing where it holds neither a variable nor braces.
    """
    found = [text[:MAX_CHARS]]
    for _ in range(MAX_ROUNDS):
        after = [one for before in found for one in _replaced(before, values)][:MAX_TEXTS]
        if after == found:
            break
        found = after
    plain = dict.fromkeys(re.sub(r"[\"'\\]", "", one) for one in found)
    return tuple(one for one in plain if one != text)


def texts_of(values: Values) -> list[str]:
    return list(dict.fromkeys(text for given in values.values() for text in given))


def may_be(values: Values) -> list[str]:
    """All paths that variables may hold."""
    words = [word for text in texts_of(values) for word in (text.strip("\"'"), *expand(text, values))]
    return list(dict.fromkeys(word for word in words if "/" in word))


def _replaced(text: str, values: Values) -> list[str]:
    """`text` with its first variable, or else its first pair of braces, replaced."""
    for match in _VARIABLE.finditer(text):
        name, rest = match[1] or match[2], match[3] or ""
        texts = ["~"] if name == "HOME" else values.get(name, [])[:MAX_TEXTS]
        default = _DEFAULT.match(rest)
        if default is not None:
            texts = [*texts, rest[default.end() :]]
        if texts:
            return [_within(text, match, one) for one in texts]
    braces = _BRACES.search(text)
    if braces is None:
        return [text]
    return [_within(text, braces, one) for one in braces[1].split(",")[:MAX_TEXTS]]


def _within(text: str, match: re.Match[str], value: str) -> str:
    return (text[: match.start()] + value + text[match.end() :])[:MAX_CHARS]


def _add(values: Values, name: str, nodes: list[Any]) -> None:
    kept = values.setdefault(name, [])
    kept += [text_of(node) for node in nodes[: max(0, MAX_TEXTS - len(kept))]]


def _name(node: Any) -> str:
    name = node.child_by_field_name("name")
    return "" if name is None else text_of(name)

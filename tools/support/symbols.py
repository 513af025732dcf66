"""What a source file defines, by the grammars of tree-sitter, and which names it mentions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

from k3agent.tools.support.syntax import GRAMMARS, grammar_of, parsed

# Raised with each change of what is found: symbols that were kept with another one are found anew.
FINDER_VERSION = 1
MAX_FILE_BYTES = 400_000
MAX_DEFINITIONS = 300
MAX_MENTIONS = 200
MAX_TEXT = 120
MIN_NAME = 3
_NAME = re.compile(rb"[A-Za-z_]\w{2,60}")
# In what nobody ends, a search from each beginning to the end of the file would take minutes: comments then
# go to the end, texts have at most so many escapes.
_STRINGS = rb""" | '[^'\\\n]*(?:\\.[^'\\\n]*){0,99}' | "[^"\\\n]*(?:\\.[^"\\\n]*){0,99}" """
# Comments and texts, by how comments begin: what they mention is no use of it.
_ASIDE = {
    b"#": re.compile(rb"(?xs) \"{3}.*?(?:\"{3}|\Z) | '{3}.*?(?:'{3}|\Z) | \#[^\n]*" + _STRINGS),
    b"//": re.compile(rb"(?xs) //[^\n]* | /\*.*?(?:\*/|\Z)" + _STRINGS),
}
_JAVASCRIPT = """
(function_declaration name: (identifier) @function)
(generator_function_declaration name: (identifier) @function)
(method_definition name: (property_identifier) @method)
(variable_declarator name: (identifier) @function value: [(arrow_function) (function_expression)])
"""
# What is captured are the names of definitions; the capture's name is their kind.
QUERIES = {
    "python": """
(class_definition name: (identifier) @class)
(function_definition name: (identifier) @function)
(module (expression_statement (assignment left: (identifier) @constant)))
""",
    "javascript": _JAVASCRIPT + "(class_declaration name: (identifier) @class)",
    "typescript": _JAVASCRIPT
    + """
(class_declaration name: (type_identifier) @class)
(abstract_class_declaration name: (type_identifier) @class)
(interface_declaration name: (type_identifier) @interface)
(type_alias_declaration name: (type_identifier) @type)
(enum_declaration name: (identifier) @enum)
""",
    "go": """
(function_declaration name: (identifier) @function)
(method_declaration name: (field_identifier) @method)
(type_spec name: (type_identifier) @type)
""",
    "rust": """
(function_item name: (identifier) @function)
(struct_item name: (type_identifier) @struct)
(enum_item name: (type_identifier) @enum)
(trait_item name: (type_identifier) @trait)
(macro_definition name: (identifier) @macro)
""",
    "java": """
(class_declaration name: (identifier) @class)
(interface_declaration name: (identifier) @interface)
(enum_declaration name: (identifier) @enum)
(record_declaration name: (identifier) @class)
(method_declaration name: (identifier) @method)
""",
    "bash": "(function_definition name: (word) @function)",
}
KNOWN = tuple(suffix for suffix, (package, _) in GRAMMARS.items() if package in QUERIES)
SUFFIXES = (".py", ".pyi", *KNOWN)


@dataclass(frozen=True, slots=True)
class Definition:
    """`text` is the line on which it stands, `line` its number from 1."""

    line: int
    kind: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class FileSymbols:
    definitions: tuple[Definition, ...]
    mentions: tuple[str, ...]

    def dump(self) -> str:
        """One line of mentions, then one for each definition: quicker to read back than JSON."""
        rows = [f"{item.line}\t{item.kind}\t{item.name}\t{item.text}" for item in self.definitions]
        return "\n".join([" ".join(self.mentions), *rows])

    @classmethod
    def load(cls, text: str) -> FileSymbols:
        """Raises ValueError for what `dump` has not written."""
        mentions, *rows = text.split("\n")
        found: list[Definition] = []
        for row in rows:
            line, kind, name, shown = row.split("\t", 3)
            found.append(Definition(int(line), kind, name, shown))
        return cls(tuple(found), tuple(mentions.split()))


NOTHING = FileSymbols((), ())


def symbols_of(name: str, data: bytes) -> FileSymbols:
    """What stands in a file of this name; nothing for one in an unknown language, or a very long one."""
    suffix = name[name.rfind(".") :] if "." in name else ""
    if len(data) > MAX_FILE_BYTES or b"\0" in data[:8000]:
        return NOTHING
    package, function = GRAMMARS.get(suffix) or ("python", "language")
    reader = _reader(package, function)
    if reader is None:
        return NOTHING
    parser, cursor = reader
    tree = parsed(parser, data)
    if tree is None:
        return NOTHING
    lines = data.split(b"\n")
    found: dict[tuple[int, str], Definition] = {}
    for kind, nodes in cursor.captures(tree.root_node).items():
        for node in nodes:
            row = node.start_point[0]
            named = data[node.start_byte : node.end_byte].decode("utf-8", "replace")
            if len(named) >= MIN_NAME:
                # Python has one kind for both.
                is_inner = kind == "function" and lines[row][:1] in (b" ", b"\t")
                found[row, named] = Definition(
                    row + 1, "method" if is_inner else kind, named, _shown(lines[row])
                )
    hashes = b"#" if package in ("python", "bash") else b"//"
    counts = Counter(_NAME.findall(_ASIDE[hashes].sub(b" ", data)))
    mentions = [word.decode("ascii", "ignore") for word, _ in counts.most_common(MAX_MENTIONS)]
    ordered = [found[key] for key in sorted(found)][:MAX_DEFINITIONS]
    return FileSymbols(tuple(ordered), tuple(sorted(mentions)))


def _shown(line: bytes) -> str:
    text = " ".join(line.decode("utf-8", "replace").split()).rstrip("{").rstrip()
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


@cache
def _reader(package: str, function: str) -> tuple[Any, Any] | None:
    """(parser, query) of a language; None where its grammar is not installed or has another shape."""
    language = grammar_of(package, function)
    if language is None or package not in QUERIES:
        return None
    from tree_sitter import Parser, Query, QueryCursor, QueryError  # lazy: native, 10 ms

    try:
        return Parser(language), QueryCursor(Query(language, QUERIES[package]))
    except (QueryError, ValueError):
        return None

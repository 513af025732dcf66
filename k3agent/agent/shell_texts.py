"""Commands in a shell line that are plain text to the grammar: values and names that bash evaluates.

Bash runs what stands in the subscript of a name (`test -v 'a[$(id)]'`), in a value that arithmetic reads
(`x='a[$(id)]'; echo $((x))`) and in some expansions (`${x@P}`).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import Any

# Builtins that evaluate names among their words.
EVALUATING = frozenset(
    (
        *("test", "[", "read", "declare", "typeset", "local", "export", "readonly", "unset", "wait", "let"),
        *("getopts", "mapfile", "readarray", "printf", "shift", "exit", "return", "break", "continue"),
    )
)
READING = ("read", "mapfile", "readarray", "getopts")
STARTS = re.compile(rb"\$\(|`|[<>]\(|\$\{\s|\$\{\|")
RUNS = re.compile(r"\$[({\[]|`")
SUBSTITUTIONS = ("command_substitution", "process_substitution", "arithmetic_expansion")
TEXTS = ("raw_string", "comment", "ansi_c_string")
ARITHMETIC = ("arithmetic_expansion", "test_command", "subscript", "c_style_for_statement", "expansion")
# What may stand between a program such as `env` and the one that it runs.
PASSED = re.compile(r"-|\d|\w+=")
MAX_LEVELS = 500
NUMBER = re.compile(r"[-+]?\d*")


def text_of(node: Any) -> str:
    """What a node of the grammar stands for."""
    return str(node.text.decode("utf-8", "replace"))


def nodes_of(node: Any) -> Iterator[Any]:
    """The node and all below it, in the order of the text."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += reversed(found.children)


def are_all_seen(root: Any, command: bytes) -> bool:
    """Whether everything that looks like a substitution is one to the grammar too, or plain text."""
    starts: set[int] = set()
    texts: list[tuple[int, int]] = []
    for node in nodes_of(root):
        if node.type in SUBSTITUTIONS:
            # The second one is where `...` ends.
            starts |= {node.start_byte, node.end_byte - 1}
        elif node.type in TEXTS or (node.type == "heredoc_body" and _is_quoted(node)):
            texts.append((node.start_byte, node.end_byte))
    texts.sort()
    begins = [start for start, _ in texts]
    for match in STARTS.finditer(command):
        at = match.start()
        if at in starts or _is_escaped(command, at):
            continue
        # A text holds no other text, so that only the last one that begins before can be around it.
        text = bisect.bisect_right(begins, at) - 1
        if text < 0 or at >= texts[text][1]:
            return False
    return True


def _is_escaped(command: bytes, at: int) -> bool:
    before = at
    while before and command[before - 1] == ord("\\"):
        before -= 1
    return (at - before) % 2 == 1


def is_deep(root: Any) -> bool:
    """Whether looking at each part with all that it holds would take too long."""
    level = [root]
    for _ in range(MAX_LEVELS):
        level = [child for node in level for child in node.children]
        if not level:
            return False
    return True


def is_braced(text: str) -> bool:
    """Whether the shell makes several words of it: `{a,b}`, `{1..9}`. One look, however many braces."""
    for part in text.split("}")[:-1]:
        at = part.find("{")
        if at >= 0 and ("," in part[at:] or ".." in part[at:]):
            return True
    return False


def _is_quoted(body: Any) -> bool:
    """Whether the end mark of a here-document is quoted, so that nothing in it is expanded."""
    start = next((part for part in body.parent.children if part.type == "heredoc_start"), None)
    return start is not None and re.search(rb"[\'\"\\\\]", start.text) is not None


def hidden(root: Any) -> str:
    """Why a value may be run as a command, or ""."""
    unsafe: set[str] = set()
    for node in nodes_of(root):
        if node.type == "variable_assignment":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if value is not None and _holds_text(value):
                return "a value holds a command that bash may run later"
            is_number = value is None or NUMBER.fullmatch(text_of(value).strip("\"'"))
            unsafe |= set() if name is None or is_number else {text_of(name)}
        elif node.type == "for_statement":
            unsafe |= _name_of_loop(node)
        elif node.type in ("command", "declaration_command", "unset_command", "test_command"):
            if _evaluates(node):
                return "a name holds a command that bash runs"
            unsafe |= _read_names(node)
    is_read = any(node.type in ARITHMETIC and unsafe & _names(node) for node in nodes_of(root))
    return "arithmetic with a value that is known only at run time" if is_read else ""


def _holds_text(node: Any) -> bool:
    """Whether quoted text in `node` looks like a substitution, and so is none yet."""
    for part in nodes_of(node):
        if part.type in TEXTS and RUNS.search(part.text.decode("utf-8", "replace")):
            return True
        if part.type in ("string_content", "word") and re.search(rb"\\[$`]", part.text):
            return True
    return False


def _evaluates(node: Any) -> bool:
    words = [word for word in node.children if word.type != "variable_assignment"]
    texts = [re.sub(r"[\\\"']", "", text_of(word)) for word in words]
    passed = ("command", "builtin", "env", "exec", "time", "nice", "timeout")
    at = next((at for at, text in enumerate(texts) if text not in passed and not PASSED.match(text)), 0)
    is_one = texts[at : at + 1] and (texts[at] in EVALUATING or texts[at] == "[[")
    return bool(is_one) and any(_holds_text(word) for word in words[at + 1 :])


def _name_of_loop(node: Any) -> set[str]:
    variable = node.child_by_field_name("variable")
    values = [
        part for part in node.children_by_field_name("value") if not NUMBER.fullmatch(part.text.decode())
    ]
    return {variable.text.decode("utf-8", "replace")} if variable is not None and values else set()


def _read_names(node: Any) -> set[str]:
    name = node.child_by_field_name("name")
    if name is None or name.text.decode("utf-8", "replace") not in (
        "read",
        "mapfile",
        "readarray",
        "getopts",
    ):
        return set()
    return {part.text.decode("utf-8", "replace") for part in node.children[1:] if part.type == "word"}


def _names(node: Any) -> set[str]:
    """Names in arithmetic, where a `$` is not needed, and in tests of numbers and expansions."""
    text = text_of(node)
    if node.type == "test_command" and not re.search(r"-(eq|ne|lt|le|gt|ge|v)\b|\(\(", text):
        return set()
    if node.type == "expansion" and not re.search(r"@[PQEAKa]|:[^-=?+]|\[|!", text):
        return set()
    return set(re.findall(r"[A-Za-z_]\w*", text))

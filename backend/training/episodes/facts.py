"""What is true of a project's files: definitions, constants, keys, items. Tasks draw their slots from
it and checkers compare with it.
"""

import ast
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, method or class and where it stands."""

    name: str
    kind: str  # function | method | class
    path: str
    line: int
    end: int
    params: tuple[str, ...] = ()
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """A constant or key: its whole line's text, and the value as written."""

    name: str
    value: str
    path: str
    line: int
    text: str


ASSIGN = re.compile(
    r"^([A-Za-z_]\w*)(?:: [\w\[\], ]+)? = ((?:'[^'\n]*'|\"[^\"\n]*\"|[^#'\"\n])+?)(?:\s+#.*)?$"
)
JS_FUNCTION = re.compile(
    r"^\s*(?:export\s+)?(?:async\s+)?function (\w+)\(([^)]*)\)|^const (\w+) = \(([^)]*)\) =>"
)
JS_CONST = re.compile(r"^(?:export )?(?:const|let) (\w+)(?:: \w+)? = ('[^']*'|\"[^\"]*\"|[^(;]+);$")
GO_CONST = re.compile(r"^(?:const|var) (\w+) = (\"[^\"]*\"|[^({\"]+)$")
SHELL_CONST = re.compile(r"^(?:export |readonly )?([A-Z][A-Z0-9_]*)=(\"[^\"$]*\"|[^\s\"'$(]+)$")
DOCKER_KEY = re.compile(r"^(?:ARG|ENV) (\w+)=(\S+)$")
GO_FUNCTION = re.compile(r"^func (\w+)\(([^)]*)\)")
SHELL_FUNCTION = re.compile(r"^(\w+)\(\) \{")
CLASS = re.compile(r"^(?:export )?class (\w+)")
ASSIGNMENTS = {"py": ASSIGN, "js": JS_CONST, "ts": JS_CONST, "go": GO_CONST, "sh": SHELL_CONST}
KEYS = {
    "json": re.compile(r'^\s*"([\w-]+)": ("[^"]*"|-?[\d.]+(?:e-?\d+)?|true|false|null),?$'),
    "toml": re.compile(r"^([\w-]+) = (\"[^\"]*\"|-?[\d._]+(?:e-?\d+)?|[\d-]{10}|true|false|\[[^\[\]]*\])$"),
    "yaml": re.compile(r"^\s*([\w-]+): ([^\s{\[][^#]*)$"),
    "yml": re.compile(r"^\s*([\w-]+): ([^\s{\[][^#]*)$"),
    "ini": re.compile(r"^([\w-]+) = (.+)$"),
    "cfg": re.compile(r"^([\w-]+) = (.+)$"),
    "conf": re.compile(r"^([A-Z_]+)=(.+)$"),
}
SIMPLE_VALUE = re.compile(
    r"^(-?\d[\d_]*(\.\d+)?(e-?\d+)?|0x[\da-fA-F]+|\d+( \*\*? \d+)+|'[^'\\]*'|\"[^\"\\]*\""
    r"|True|False|None|\[[^\[\]{}()]*\]|\([^\[\]{}()]*,[^\[\]{}()]*\)|\{[^\[\]{}()]*\})$"
)


def extension(path: str) -> str:
    """The extension without dot, or an empty string."""
    base = path.rsplit("/", 1)[-1]
    return base.rsplit(".", 1)[1] if "." in base else ""


@lru_cache(maxsize=4096)
def python_definitions(path: str, text: str) -> tuple[Definition, ...]:
    """Functions, methods and classes of a Python file."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    found: list[Definition] = []

    def visit(body: list[ast.stmt], owner: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
                kind = "method" if owner else "function"
                params = tuple(name for name in names if not (owner and name in ("self", "cls")))
                found.append(
                    Definition(
                        node.name, kind, path, node.lineno, node.end_lineno or node.lineno, params, owner
                    )
                )
            elif isinstance(node, ast.ClassDef):
                found.append(
                    Definition(node.name, "class", path, node.lineno, node.end_lineno or node.lineno)
                )
                if not owner:
                    visit(node.body, node.name)

    visit(tree.body, "")
    return tuple(found)


@lru_cache(maxsize=4096)
def other_definitions(path: str, text: str) -> tuple[Definition, ...]:
    """Functions and classes of other languages, by line patterns."""
    kind = extension(path)
    found: list[Definition] = []
    for number, line in enumerate(text.splitlines(), 1):
        if kind in ("js", "ts"):
            if match := JS_FUNCTION.match(line):
                names = (match[2] or match[4] or "").split(",")
                params = tuple(name.split(":")[0].strip() for name in names if name.strip())
                found.append(
                    Definition(
                        match[1] or match[3], "function", path, number, _brace_end(text, number), params
                    )
                )
            elif match := CLASS.match(line):
                found.append(Definition(match[1], "class", path, number, _brace_end(text, number)))
        elif kind == "go" and (match := GO_FUNCTION.match(line)):
            params = tuple(name.split()[0] for name in match[2].split(",") if name.strip())
            found.append(Definition(match[1], "function", path, number, _brace_end(text, number), params))
        elif kind == "sh" and (match := SHELL_FUNCTION.match(line)):
            found.append(Definition(match[1], "function", path, number, _brace_end(text, number)))
    return tuple(found)


def _brace_end(text: str, start: int) -> int:
    """The line of the closing brace in column 0 after a line."""
    lines = text.splitlines()
    for number in range(start, len(lines)):
        if lines[number].startswith("}"):
            return number + 1
    return start


@lru_cache(maxsize=4096)
def constants_of(path: str, text: str) -> tuple[Setting, ...]:
    """Assignments at the top level with a simple value."""
    kind = extension(path)
    pattern = ASSIGNMENTS.get(kind)
    found: list[Setting] = []
    if pattern is None:
        return ()
    for number, line in enumerate(text.splitlines(), 1):
        match = pattern.match(line)
        if match and (kind == "sh" or SIMPLE_VALUE.match(match[2].strip())):
            found.append(Setting(match[1], match[2].strip(), path, number, line))
    return tuple(found)


@lru_cache(maxsize=4096)
def keys_of(path: str, text: str) -> tuple[Setting, ...]:
    """Keys of a settings file with simple values."""
    pattern = DOCKER_KEY if path.endswith("Dockerfile") else KEYS.get(extension(path))
    found: list[Setting] = []
    for number, line in enumerate(text.splitlines(), 1):
        if pattern and (match := pattern.match(line)):
            found.append(Setting(match[1], match[2].strip(), path, number, line))
    return tuple(found)


class Facts:
    """Lookups over the files of a project."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    @cached_property
    def definitions(self) -> list[Definition]:
        """All definitions of all files."""
        found: list[Definition] = []
        for path, text in self.files.items():
            found += python_definitions(path, text) if path.endswith(".py") else other_definitions(path, text)
        return found

    @cached_property
    def constants(self) -> list[Setting]:
        """All simple constants."""
        return [item for path, text in self.files.items() for item in constants_of(path, text)]

    @cached_property
    def keys(self) -> list[Setting]:
        """All keys of settings files."""
        return [item for path, text in self.files.items() for item in keys_of(path, text)]

    @cached_property
    def folders(self) -> list[str]:
        """All folders."""
        found: set[str] = set()
        for path in self.files:
            parts = path.split("/")[:-1]
            found |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
        return sorted(found)

    def defined(self, name: str) -> list[Definition]:
        """The definitions of a name."""
        return [item for item in self.definitions if item.name == name]

    def word_lines(self, name: str) -> list[tuple[str, int, str]]:
        """Every line with the whole word."""
        pattern = re.compile(rf"\b{re.escape(name)}\b")
        return [
            (path, number, line)
            for path, text in sorted(self.files.items())
            if name in text
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]

    def with_text(self, text: str) -> list[tuple[str, int, str]]:
        """Every line that contains a text."""
        return [
            (path, number, line)
            for path, body in sorted(self.files.items())
            if text in body
            for number, line in enumerate(body.splitlines(), 1)
            if text in line
        ]

    def paths(self, *extensions: str) -> list[str]:
        """Files with one of the extensions (all without any)."""
        return [path for path in self.files if not extensions or extension(path) in extensions]

    def code_paths(self) -> list[str]:
        """Python files that are not tests and not empty."""
        return [
            p
            for p in self.paths("py")
            if not p.rsplit("/", 1)[-1].startswith("test_") and self.files[p].strip()
        ]

    def test_paths(self) -> list[str]:
        """Python test files."""
        return [path for path in self.paths("py") if path.rsplit("/", 1)[-1].startswith("test_")]

"""Excerpts of the standard library of the running Python (licence: PSF) as files of a project: real
code in small pieces.
"""

import ast
import random
import sysconfig
import zlib
from functools import cache, lru_cache
from pathlib import Path

from k3agent.backend.training.episodes.openwords import FOLDERS

MODULES = [
    "textwrap",
    "shlex",
    "string",
    "bisect",
    "heapq",
    "fnmatch",
    "glob",
    "calendar",
    "colorsys",
    "copy",
    "csv",
    "configparser",
    "contextlib",
    "difflib",
    "filecmp",
    "fractions",
    "getopt",
    "getpass",
    "gettext",
    "graphlib",
    "hmac",
    "imghdr",
    "inspect",
    "keyword",
    "linecache",
    "mimetypes",
    "netrc",
    "numbers",
    "operator",
    "optparse",
    "pathlib",
    "pprint",
    "queue",
    "quopri",
    "random",
    "reprlib",
    "sched",
    "secrets",
    "shelve",
    "shutil",
    "sndhdr",
    "statistics",
    "stringprep",
    "tabnanny",
    "tempfile",
    "timeit",
    "token",
    "tokenize",
    "trace",
    "traceback",
    "types",
    "uuid",
    "warnings",
    "weakref",
    "zipapp",
    "argparse",
    "ast",
    "base64",
    "cmd",
    "code",
    "codeop",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "functools",
    "gzip",
    "html/parser",
    "http/cookies",
    "json/decoder",
    "json/encoder",
    "logging/handlers",
    "mailbox",
    "nturl2path",
    "poplib",
    "posixpath",
    "pstats",
    "pydoc",
    "rlcompleter",
    "selectors",
    "smtplib",
    "socketserver",
    "subprocess",
    "tarfile",
    "telnetlib",
    "threading",
    "turtle",
    "unittest/case",
    "unittest/mock",
    "urllib/parse",
    "wave",
    "zipfile",
]
MAX_LINES = 34


@cache
def _pieces(name: str) -> tuple[str, ...]:
    """The source of every top-level function and class of moderate size of a module."""
    path = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
    if not path.exists():
        return ()
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            start = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            piece = lines[start - 1 : node.end_lineno]
            if 3 <= len(piece) <= MAX_LINES and all(len(line) < 100 for line in piece) and text.isascii():
                found.append("\n".join(piece))
    return tuple(found)


@cache
def _names(held_out: bool) -> tuple[str, ...]:
    """Modules of one split that have usable pieces."""
    return tuple(
        name for name in MODULES if (zlib.crc32(name.encode()) % 8 == 0) == held_out and _pieces(name)
    )


def excerpt(rng: random.Random, held_out: bool = False) -> tuple[str, str]:
    """A file name and a text: up to three definitions from one module."""
    name = rng.choice(_names(held_out))
    pieces = rng.sample(_pieces(name), min(len(_pieces(name)), rng.choice((1, 1, 2, 3))))
    stem = name.rsplit("/", 1)[-1]
    return f"{stem}_part.py", "\n\n\n".join(pieces) + "\n"


@cache
def _files(held_out: bool) -> tuple[Path, ...]:
    """All files of the library of one split."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = (path for folder in FOLDERS for path in sorted((root / folder).glob("*.py")))
    return tuple(path for path in paths if (zlib.crc32(path.stem.encode()) % 8 == 0) == held_out)


@lru_cache(maxsize=64)
def _definitions(path: Path) -> tuple[str, ...]:
    """The functions of a file, methods below the line of their class."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not text.isascii():
        return ()
    lines, found = text.splitlines(), []
    for node in ast.parse(text).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        head = [f"class {node.name}:"] if isinstance(node, ast.ClassDef) else []
        for item in inside:
            if isinstance(item, ast.FunctionDef) and not item.decorator_list:
                piece = [*head, *lines[item.lineno - 1 : item.end_lineno]]
                if 3 <= len(piece) <= MAX_LINES and all(len(line) < 100 for line in piece):
                    found.append("\n".join(piece))
    return tuple(found)


def one_definition(rng: random.Random, held_out: bool = False) -> tuple[str, str] | None:
    """A file name and one or two functions of any file of the library; None where that has none."""
    path = rng.choice(_files(held_out))
    pieces = _definitions(path)
    if not pieces:
        return None
    chosen = rng.sample(pieces, min(len(pieces), rng.choice((1, 1, 1, 2))))
    return f"{path.stem.lstrip('_')}_part.py", "\n\n\n".join(chosen) + "\n"

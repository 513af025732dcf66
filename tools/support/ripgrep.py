"""Searching file contents: ripgrep as a subprocess, or the same in Python. Both give the same hits.

A line ends where `read` ends it. Files for secrets, hidden, ignored and binary ones (those with a NUL) and
those above the size limit of `textio` are passed over; files that are no valid UTF-8 show U+FFFD.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import os
import re
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.errors import ToolError
from k3agent.safety.secretfiles import is_secret_file
from k3agent.tools.support import opening, textio
from k3agent.tools.support.globs import compile_glob
from k3agent.tools.support.ignore import is_regular, walk

MAX_LINE_CHARS = 300
POSIX_CLASSES = {
    "[:alpha:]": "a-zA-Z",
    "[:digit:]": "0-9",
    "[:alnum:]": "a-zA-Z0-9",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:space:]": r"\s",
    "[:xdigit:]": "0-9a-fA-F",
    "[:word:]": r"\w",
    "[:punct:]": r"!-/:-@\[-`{-~",
}


@dataclass(frozen=True, slots=True)
class Hit:
    path: str
    line: int
    text: str


@dataclass(slots=True)
class Hits:
    """The first hits by path and line, and how many lines matched in all."""

    first: list[Hit] = field(default_factory=list)
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to look for. `root` is a resolved file or folder; `prefix` goes before the relative paths that are
    shown (the whole path when `root` is a file); `glob` narrows the files down.
    """

    pattern: str
    root: Path
    prefix: str = ""
    glob: str | None = None
    ignore_case: bool = False
    limit: int = 100

    def wants(self, inside: str) -> bool:
        """Whether the file, relative to `root`, is meant by `glob`: by its name, from `root` or from the
        workspace.
        """
        if is_secret_file(inside):
            return False
        if self.glob is None:
            return True
        glob = self.glob.lstrip("/")
        regex = compile_glob(glob, hidden=True)
        if "/" not in glob:
            return regex.fullmatch(inside.rsplit("/", 1)[-1]) is not None
        return any(regex.fullmatch(path) for path in (inside, self.prefix + inside))


class PythonSearch:
    """The search without ripgrep. Compiling raises `ToolError` for a pattern that is no Python regex."""

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        for name, chars in POSIX_CLASSES.items():
            pattern = pattern.replace(name, chars)
        flags = re.IGNORECASE if ignore_case else re.NOFLAG
        try:
            self._line = re.compile(pattern, flags)
            # Tells for most files in one go that no line matches; not sound for look-arounds and the like.
            simple = not re.search(r"\(\?|\\[AZz]|[+*?}]\+|\^|\$", pattern)
            self._whole = self._line if simple else None
        except (re.error, OverflowError, RecursionError) as error:
            raise regex_error(pattern, str(error)) from error

    def lines(self, data: bytes) -> Iterator[tuple[int, str]]:
        """Number and text of each matching line of a file; none of a binary file."""
        text = _text(data)
        if text is None or (self._whole is not None and not self._whole.search(text)):
            return
        search = self._line.search
        for number, line in enumerate(textio.split_lines(text), 1):
            if search(line):
                yield number, shorten(line)

    def run(self, query: Query) -> Hits:
        """All of `query`, in this thread."""
        hits = Hits()
        for path, shown in files(query):
            try:
                data = textio.read_bytes(Path(path), shown)
            except ToolError:
                continue
            for number, text in self.lines(data):
                hits.total += 1
                if len(hits.first) < query.limit:
                    hits.first.append(Hit(shown, number, text))
        return hits


def _text(data: bytes) -> str | None:
    """The view of a file's text, or None when it is binary."""
    for bom, encoding in textio.BOMS:
        if encoding.startswith("utf-16") and data.startswith(bom):
            text = data[len(bom) :].decode(encoding, "replace")
            break
    else:
        if b"\0" in data:
            return None
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    return textio.normalise(text)


def shorten(line: str) -> str:
    return line.rstrip()[:MAX_LINE_CHARS]


def files(query: Query) -> Iterator[tuple[str, str]]:
    """Real path and shown path of each file to search, sorted by the latter."""
    if not query.root.is_dir():
        yield str(query.root), query.prefix
        return
    for entry in walk(query.root):
        if not entry.is_dir and not entry.is_link and query.wants(entry.shown) and is_regular(entry.path):
            yield entry.path, query.prefix + entry.shown


def regex_error(pattern: str, reason: str) -> ToolError:
    return ToolError(
        f"pattern {pattern!r} is no valid regular expression: {reason}. "
        f"To look for it literally, escape it: {re.escape(pattern)}"
    )


@functools.cache
def find_ripgrep() -> str | None:
    """The `rg` program: next to this Python (the wheel puts it there), else on PATH."""
    beside = Path(sys.executable).parent / "rg"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("rg")


async def run_ripgrep(program: str, query: Query) -> Hits | None:
    """The hits of `query`, whose root is a folder; None when ripgrep does not take the pattern."""
    size = f"{textio.MAX_BYTES // (1 << 20)}M"
    command = [program, "--json", "--no-config", "--no-ignore-global", "--no-require-git", "--no-messages"]
    command += ["--crlf", "--max-filesize", size, *(["--ignore-case"] if query.ignore_case else [])]
    command += ["-e", query.pattern, "--", "."]
    with _held(query.root) as folder:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, limit=1 << 20
        )
    assert process.stdout is not None
    reader = _JsonReader(query)
    try:
        pending = bytearray()
        while piece := await process.stdout.read(1 << 18):
            pending += piece
            *rows, rest = bytes(pending).split(b"\n") if b"\n" in piece else (bytes(pending),)
            if b"\n" in piece:
                for row in rows:
                    reader.feed(row)
                pending = bytearray(rest)
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code == 2 and not reader.has_ended:
        return None
    return reader.result()


@contextlib.contextmanager
def _held(root: Path) -> Iterator[Path]:
    """The folder by another name, under which no link can take its place until the search has begun."""
    try:
        fd = opening.open_folder(root)
    except OSError as error:
        raise ToolError(f"{root} cannot be searched: {error.strerror}.") from error
    try:
        here = Path(f"/proc/self/fd/{fd}")
        yield here if here.exists() else root
    finally:
        os.close(fd)


class _JsonReader:
    """Gathers ripgrep's messages: per file the count and the first lines."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.has_ended = False
        self._open: list[bytes] = []
        self._count = 0
        self._files: list[tuple[str, str, int, list[bytes]]] = []

    def feed(self, row: bytes) -> None:
        if row.startswith(b'{"type":"match"'):
            self._count += 1
            if len(self._open) < self.query.limit:
                self._open.append(row)
        elif row.startswith(b'{"type":"begin"'):
            self._open, self._count = [], 0
        elif row.startswith(b'{"type":"end"'):
            data = json.loads(row)["data"]
            name = os.fsdecode(_bytes(data["path"])).removeprefix("./")
            shown = os.fsencode(name).decode("utf-8", "replace")
            if data["binary_offset"] is None and self.query.wants(shown):
                self._files.append((self.query.prefix + shown, name, self._count, self._open))
        elif row.startswith(b'{"data"') or row.startswith(b'{"type":"summary"'):
            self.has_ended = True

    def result(self) -> Hits:
        hits = Hits(total=sum(count for _, _, count, _ in self._files))
        python: PythonSearch | None = None
        for shown, name, count, rows in sorted(self._files):
            if len(hits.first) >= self.query.limit:
                break
            try:
                data = textio.read_bytes(self.query.root / name, shown)
            except ToolError:
                # It has gone, or a link on the way has led ripgrep elsewhere.
                hits.total -= count
                continue
            if b"\r" in data.replace(b"\r\n", b""):
                # ripgrep knows no line that ends with a lone carriage return.
                python = python or PythonSearch(self.query.pattern, ignore_case=self.query.ignore_case)
                found = list(python.lines(data))
                hits.total += len(found) - count
            else:
                found = [_match(row) for row in rows]
            hits.first += [Hit(shown, number, text) for number, text in found]
        hits.first = hits.first[: self.query.limit]
        return hits


def _match(row: bytes) -> tuple[int, str]:
    data = json.loads(row)["data"]
    return data["line_number"], shorten(_bytes(data["lines"]).decode("utf-8", "replace"))


def _bytes(value: dict[str, str]) -> bytes:
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])

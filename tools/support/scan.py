"""The symbols of all files of a folder: what is known of before, and what time allows to read now."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.errors import ToolError
from k3agent.safety.secretfiles import is_secret_file
from k3agent.tools.support import textio
from k3agent.tools.support.ignore import walk
from k3agent.tools.support.knowledge import SymbolStore
from k3agent.tools.support.symbols import FINDER_VERSION, MAX_FILE_BYTES, SUFFIXES, FileSymbols, symbols_of

MAX_FILES = 20_000
BATCH = 100


@dataclass(slots=True)
class Scan:
    """`files`: path in the folder to symbols; `waiting`: files that were not read yet; `num_left_out`: files
    beyond MAX_FILES.
    """

    files: dict[str, FileSymbols] = field(default_factory=dict)
    waiting: int = 0
    num_left_out: int = 0


def scan(root: Path, store: SymbolStore | None, patience_s: float) -> Scan:
    """For a worker thread. Files that changed last are read first."""
    end = time.monotonic() + patience_s
    found = Scan()
    stamps = _stamps(root, found)
    known = {} if store is None else store.known(str(root))
    unread: list[str] = []
    for path, (stamp, _) in stamps.items():
        before = known.get(f"{root}/{path}")
        symbols = None if before is None or before[0] != stamp else _loaded(before[1])
        if symbols is None:
            unread.append(path)
        else:
            found.files[path] = symbols
    gone = [path for path in known if path.removeprefix(f"{root}/") not in stamps]
    unread.sort(key=lambda path: -stamps[path][1])
    for at in range(0, len(unread), BATCH):
        if time.monotonic() > end:
            found.waiting = len(unread) - at
            break
        batch = unread[at : at + BATCH]
        left = _read(root, {path: stamps[path][0] for path in batch}, store, found, end)
        if left:
            found.waiting = len(unread) - at - len(batch) + left
            break
    # At the end: a file that was only moved has been found by its content meanwhile.
    if store is not None and gone and not found.num_left_out:
        store.keep((), gone)
    return found


def _stamps(root: Path, found: Scan) -> dict[str, tuple[str, int]]:
    """Path to (stamp, time of the last change) of the files in languages that are known."""
    stamps: dict[str, tuple[str, int]] = {}
    for entry in walk(root):
        if entry.is_dir or entry.is_link or not entry.shown.endswith(SUFFIXES):
            continue
        name = entry.shown.rsplit("/", 1)[-1]
        if is_secret_file(name):
            continue
        try:
            info = Path(entry.path).lstat()
        except OSError:
            continue
        if info.st_size > MAX_FILE_BYTES:
            continue
        if len(stamps) == MAX_FILES:
            found.num_left_out += 1
            continue
        stamps[entry.shown] = (f"{FINDER_VERSION}-{info.st_mtime_ns}-{info.st_size}", info.st_mtime_ns)
    return stamps


def _read(root: Path, batch: dict[str, str], store: SymbolStore | None, found: Scan, end: float) -> int:
    """How many of the batch time did not allow; one is always read."""
    contents = dict(_contents(root, batch))
    hashes = {path: _digest(path, data) for path, data in contents.items()}
    known = {} if store is None else store.by_hash(list(hashes.values()))
    rows: list[tuple[str, str, str, str]] = []
    for path, digest in hashes.items():
        if rows and time.monotonic() > end:
            break
        symbols = _loaded(known[digest]) if digest in known else None
        if symbols is None:
            symbols = symbols_of(path, contents[path])
        found.files[path] = symbols
        rows.append((f"{root}/{path}", batch[path], digest, symbols.dump()))
    if store is not None:
        store.keep(rows)
    return len(hashes) - len(rows)


def _digest(path: str, data: bytes) -> str:
    """Of all that the symbols depend on."""
    head = f"{FINDER_VERSION}{Path(path).suffix}\n".encode()
    return hashlib.sha256(head + data).hexdigest()


def _contents(root: Path, paths: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for path in paths:
        try:
            yield path, textio.read_bytes(root / path, path)
        except ToolError:
            continue


def _loaded(text: str) -> FileSymbols | None:
    try:
        return FileSymbols.load(text)
    except ValueError:
        return None

"""How a tree of files is written for git: names, contents, and what git's trees have no place for."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from k3agent.safety.paths import is_at
from k3agent.store import filetree
from k3agent.store.filetree import Entry, Tree

CHUNK = 1 << 20
SPECIAL_NAMES = frozenset((".git", ".gitmodules"))


class FileChanged(Exception):
    """A file became shorter while it was read: the attempt is made again."""


def build(meta: Any, listing: bytes) -> Tree:
    """The tree that `describe` and git's list of all blobs tell of. Its entries have no signs."""
    plain, executable, folder_mode = (int(mode) for mode in meta["modes"])
    odd: dict[str, int] = meta["odd"]
    tree = Tree(left_out=meta["left_out"], whole=meta["whole"])
    for record in listing.split(b"\0"):
        head, _, name = record.partition(b"\t")
        if not name.startswith(b"files/"):
            continue
        mode, _, blob = head.decode().split()
        path = decoded(name)
        usual = executable if mode == "100755" else plain
        tree.files[path] = Entry(mode == "120000", odd.get(path, usual), blob)
        for parent in filetree.parents_of(path):
            tree.folders.setdefault(parent, odd.get(parent, folder_mode))
    for path in meta["folders"]:
        for parent in (*filetree.parents_of(path), path):
            tree.folders.setdefault(parent, odd.get(parent, folder_mode))
    return tree


def describe(tree: Tree) -> bytes:
    """What git's trees cannot say: all mode bits, empty folders, and what is not covered."""
    usual = (
        _most(entry.mode for entry in tree.files.values() if not entry.is_link and not entry.mode & 0o100),
        _most(entry.mode for entry in tree.files.values() if not entry.is_link and entry.mode & 0o100),
        _most(tree.folders.values()),
    )
    odd = {
        path: entry.mode
        for path, entry in tree.files.items()
        if not entry.is_link and entry.mode != usual[1 if entry.mode & 0o100 else 0]
    }
    odd.update((path, mode) for path, mode in tree.folders.items() if mode != usual[2])
    implied = {path.rsplit("/", 1)[0] for path in tree.files if "/" in path}
    implied |= {path.rsplit("/", 1)[0] for path in tree.folders if "/" in path}
    body = {
        "version": 1,
        "modes": usual,
        "odd": odd,
        # Those without anything in them; a folder in an empty folder brings it back.
        "folders": sorted(path for path in tree.folders if path not in implied),
        "left_out": tree.left_out,
        "whole": sorted(tree.whole),
    }
    return json.dumps(body, sort_keys=True).encode()


def _most(modes: Iterable[int]) -> int:
    counted = Counter(modes).most_common(1)
    return counted[0][0] if counted else 0o644


def link_target(place: Path) -> bytes:
    # Path.readlink would tidy the text up.
    return os.fsencode(os.readlink(place))  # noqa: PTH115


def open_file(root: Path, path: str) -> int:
    """A file below `root`. Neither follows a link, also one that has just taken the place of a folder on the
    way, nor waits for somebody at the other end of a pipe.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    # Joining paths would take longer than opening the file.
    place = f"{str(root).rstrip('/')}/{path}"
    fd = os.open(place, flags)
    if is_at(fd, place):
        return fd
    # The root itself may be reached by a link, or the system does not tell.
    os.close(fd)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, name = path.split("/")
        for part in folders:
            inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)


def quoted(path: str) -> bytes:
    """`path` below `files`, as fast-import reads it. Names that git refuses get a sign in front."""
    parts = [
        "%" + part if part.startswith("%") or part.casefold() in SPECIAL_NAMES else part
        for part in path.split("/")
    ]
    raw = os.fsencode("/".join(("files", *parts)))
    raw = raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + raw + b'"'


def decoded(name: bytes) -> str:
    parts = os.fsdecode(name).split("/")[1:]
    return "/".join(part.removeprefix("%") for part in parts)


def chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Exactly `size` bytes: what is appended meanwhile belongs to the next state."""
    left = size
    while left:
        piece = file.read(min(CHUNK, left))
        if not piece:
            raise FileChanged
        left -= len(piece)
        yield piece


def blob_id(size: int, pieces: Any, write: Callable[[bytes], Any] | None) -> str:
    """The id that git gives this content; it is handed on to `write` on the way."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
        if write is not None:
            write(piece)
    return digest.hexdigest()


def identify(root: Path, path: str, tree: Tree) -> None:
    """Read a file of `tree` for the id of its content. One that has gone is taken out, one that cannot be
    read is left out.
    """
    entry = tree.files[path]
    try:
        if entry.is_link:
            data = link_target(root / path)
            entry.blob = blob_id(len(data), [data], None)
            return
        with os.fdopen(open_file(root, path), "rb", buffering=0) as file:
            entry.blob = blob_id(entry.size, chunks(file, entry.size), None)
    except (FileNotFoundError, FileChanged):
        del tree.files[path]
    except OSError:
        del tree.files[path]
        tree.left_out[path] = filetree.UNREADABLE


def settle(entry: Entry, before: os.stat_result, after: os.stat_result) -> None:
    """The sign under which the content is known, unless the file may change again under the same one."""
    sign = (after.st_size, after.st_mtime_ns, after.st_ctime_ns, after.st_ino)
    is_same = sign == (before.st_size, before.st_mtime_ns, before.st_ctime_ns, before.st_ino)
    newest = max(after.st_mtime_ns, after.st_ctime_ns)
    entry.sign = sign if is_same and time.time_ns() - newest > filetree.RACY_NS else None
    entry.mode, entry.size = stat.S_IMODE(after.st_mode), after.st_size

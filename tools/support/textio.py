"""Text files in and out without losing a byte: encoding, BOM and every line end are kept.

A file is decoded to text that keeps its own line ends. Tools look at the *view*, where every line end is
`\\n`, and `splice` brings changes of the view back to the text: only what differs is replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from bisect import bisect_left
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from k3agent.errors import ToolError
from k3agent.tools.support import opening
from k3agent.tools.support.freshness import digest

MAX_BYTES = 50 * 1024 * 1024
# Work on files above this size is moved off the event loop.
LARGE_BYTES = 1 << 20
# Development code that writes thousands of throw-away files turns this off: no fsync then.
durable_writes = True

BOMS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
UNKNOWN = "unknown 8-bit"
_HIGH_RUN = re.compile(rb"[\x80-\xff]+")
_NEWLINE = re.compile(r"\r\n|\r|\n")


class Buffers(Protocol):
    """Texts that somebody else holds, such as an editor: what is on the disk may be older."""

    def read(self, path: Path) -> bytes | None: ...

    def write(self, path: Path, data: bytes) -> bool:
        """Whether it takes the new content."""
        ...


# Of the running call; None: the disk alone counts.
buffers: ContextVar[Buffers | None] = ContextVar("buffers", default=None)


class BinaryFileError(ToolError):
    """The file is not text."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """`text` has the file's own line ends and no BOM; `view` has only `\\n`. `encoding` is a codec name or
    `UNKNOWN` (then `text` is its bytes as Latin-1 and only ASCII may be added).
    """

    text: str
    view: str
    encoding: str = "utf-8"
    bom: bytes = b""
    digest: str = ""

    @property
    def lines(self) -> list[str]:
        return split_lines(self.view)


def split_lines(view: str) -> list[str]:
    """Lines of a view, without their ends; a final line end starts no further line."""
    lines = view.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def normalise(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_bytes(path: Path, shown: str) -> bytes:
    """All bytes of a regular file. Fifos and devices are refused without waiting for them."""
    opening.check(path, shown)
    held = buffers.get()
    if held is not None and (unsaved := held.read(path)) is not None:
        return unsaved
    try:
        fd = opening.open_read(path)
    except IsADirectoryError as error:
        raise ToolError(f"{shown} is a folder. Use glob to list it.") from error
    except OSError as error:
        raise ToolError(f"{shown} cannot be opened: {error.strerror}.") from error
    with os.fdopen(fd, "rb") as stream:
        info = os.fstat(stream.fileno())
        if stat.S_ISDIR(info.st_mode):
            raise ToolError(f"{shown} is a folder. Use glob to list it.")
        if not stat.S_ISREG(info.st_mode):
            raise ToolError(f"{shown} is {_kind(info.st_mode)}, not a regular file.")
        data = b"" if info.st_size > MAX_BYTES else _read_up_to(stream.fileno(), shown)
    if info.st_size > MAX_BYTES or len(data) > MAX_BYTES:
        size = max(info.st_size, len(data)) // 1_000_000
        raise ToolError(f"{shown} is too large ({size} MB). Look into it with grep or shell.")
    return data


def _read_up_to(fd: int, shown: str) -> bytes:
    pieces, total = [], 0
    try:
        while total <= MAX_BYTES and (piece := os.read(fd, 1 << 20)):
            pieces.append(piece)
            total += len(piece)
    except OSError as error:
        raise ToolError(f"{shown} cannot be read: {error.strerror}.") from error
    return b"".join(pieces)


def _kind(mode: int) -> str:
    for test, name in (
        *((stat.S_ISFIFO, "a fifo"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device")),
        (stat.S_ISLNK, "a link since a moment ago"),
    ):
        if test(mode):
            return name
    return "a special file"


def load(path: Path, shown: str) -> TextFile:
    """The text file at `path`; `BinaryFileError` when it is none."""
    return decode(read_bytes(path, shown), shown)


def decode(data: bytes, shown: str) -> TextFile:
    bom, encoding = next(((mark, name) for mark, name in BOMS if data.startswith(mark)), (b"", "utf-8"))
    body = data[len(bom) :]
    if (not bom or encoding == "utf-8") and b"\0" in body:
        raise BinaryFileError(f"{shown} is a binary file.")
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        if bom:
            raise BinaryFileError(f"{shown} is no valid {encoding.upper()} although it says so.") from error
        encoding = _guess(body, shown)
        text = body.decode("latin-1" if encoding == UNKNOWN else encoding, _errors(encoding))
    return TextFile(text, normalise(text), encoding, bom, digest(data))


def _errors(encoding: str) -> str:
    # Stray bytes in a UTF-8 file travel as lone surrogates, which only this codec gives and takes.
    return "surrogateescape" if encoding == "utf-8" else "strict"


def _guess(data: bytes, shown: str) -> str:
    """The encoding of bytes that are no UTF-8. Each answer decodes and encodes back to the same bytes, so a
    wrong guess harms no byte that is already there.
    """
    control = sum(data.count(bytes((code,))) for code in range(32) if code not in (8, 9, 10, 12, 13, 27))
    if control * 100 > len(data):
        raise BinaryFileError(f"{shown} is a binary file.")
    escaped = data.decode("utf-8", "surrogateescape")
    stray = sum("\udc80" <= char <= "\udcff" for char in escaped)
    if sum(char > "\x7f" for char in escaped) - stray > stray:
        return "utf-8"
    runs = [run.group() for run in _HIGH_RUN.finditer(data)]
    pairs = [run for run in runs if len(run) % 2 == 0]
    high = sum(map(len, runs))
    if len(pairs) == len(runs) and high >= 4 * len(runs):
        common = sum(0xB0 <= lead <= 0xD7 or 0xA1 <= lead <= 0xA3 for run in runs for lead in run[::2])
        if common * 2 >= high * 0.7 and _round_trips(data, "gb18030"):
            return "gb18030"
    if high < 3 * len(runs) and _round_trips(data, "cp1252"):
        return "cp1252"
    return UNKNOWN


def _round_trips(data: bytes, encoding: str) -> bool:
    try:
        return data.decode(encoding).encode(encoding) == data
    except UnicodeError:
        return False


def encode(text: str, like: TextFile, shown: str) -> bytes:
    """The bytes of `text` in the encoding of `like`, whose text it was made from."""
    codec = "ascii" if like.encoding == UNKNOWN else like.encoding
    for char in sorted(set(text) - set(like.text)):
        if char == "\ufffd":
            raise ToolError(
                f"The new text for {shown} contains U+FFFD, the sign of a lost character. "
                "Write the real character, or an escape of the language."
            )
        try:
            char.encode(codec)
        except UnicodeEncodeError as error:
            raise ToolError(
                f"{shown} is {like.encoding} and cannot hold U+{ord(char):04X}. "
                "Use an escape, or convert the file with shell first."
            ) from error
    if text.count("\ufffd") > like.text.count("\ufffd"):
        raise ToolError(f"The new text for {shown} adds U+FFFD, the sign of a lost character.")
    if like.encoding == UNKNOWN:
        return text.encode("latin-1")
    return like.bom + text.encode(like.encoding, _errors(like.encoding))


def splice(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """`text` with each `(start, end, new)` applied; offsets are in the view, ascending, not overlapping.

    What `new` has in common with the old text at both ends is not touched; line ends in between become
    those of the line where they are put in.
    """
    if "\r" not in text:
        pieces, position = [], 0
        for start, end, new in edits:
            pieces += [text[position:start], normalise(new)]
            position = end
        return "".join([*pieces, text[position:]])
    view = normalise(text)
    shifts = [match.start() - index for index, match in enumerate(re.finditer(r"\r\n", text))]
    pieces, position = [], 0
    for start, end, new in edits:
        new = normalise(new)
        old = view[start:end]
        head = _common(old, new)
        tail = _common(old[head:][::-1], new[head:][::-1])
        first = start + head
        last = end - tail
        raw_first = first + bisect_left(shifts, first)
        raw_last = last + bisect_left(shifts, last)
        middle = new[head : len(new) - tail].replace("\n", newline_at(text, raw_first))
        pieces += [text[position:raw_first], middle]
        position = raw_last
    return "".join([*pieces, text[position:]])


def newline_at(text: str, position: int) -> str:
    """The line end of the line at `position`, else of the one before, else `\\n`."""
    match = _NEWLINE.search(text, position)
    if match:
        return match.group()
    if text[:position].endswith("\r\n"):
        return "\r\n"
    start = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position))
    if start < 0:
        return "\n"
    return "\r\n" if text[start] == "\n" and text[start - 1 : start] == "\r" else text[start]


def _common(a: str, b: str) -> int:
    """How many characters `a` and `b` share at their start."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a.startswith(b[low:middle], low) else (low, middle - 1)
    return low


def write_atomic(path: Path, data: bytes, shown: str) -> None:
    """Put `data` at `path` at once or not at all, keeping its mode bits; parents are made. `path` is
    resolved, so a link's target is written and the link stays; links that came later are not followed.
    """
    opening.check(path, shown)
    held = buffers.get()
    if held is not None and held.write(path, data):
        return
    try:
        with opening.parent_of(path, is_made=True) as (folder, name):
            info = _stat_of(name, folder)
            if info is not None and stat.S_ISDIR(info.st_mode):
                raise ToolError(f"{shown} is a folder and cannot be written.")
            if info is not None and not stat.S_ISREG(info.st_mode):
                raise ToolError(f"{shown} is {_kind(info.st_mode)}, not a regular file.")
            _replace(name, folder, data, info)
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror or error}.") from error


def remove(path: Path, shown: str) -> None:
    """Delete the file at this resolved path, if it is there."""
    opening.check(path, shown)
    try:
        with opening.parent_of(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ToolError(f"{shown} cannot be deleted: {error.strerror}.") from error


def _stat_of(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _replace(name: str, folder: int, data: bytes, info: os.stat_result | None) -> None:
    if info is not None and not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(13, "Permission denied")
    temporary = f".k3agent-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o666, dir_fd=folder)
    except PermissionError:
        if info is None:
            raise
        # The folder takes no new files but the file itself may be written: in place then.
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=folder), "wb") as stream:
            stream.write(data)
        return
    try:
        with os.fdopen(fd, "wb") as stream:
            if info is not None:
                with contextlib.suppress(PermissionError):
                    if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
                        os.fchown(fd, info.st_uid, info.st_gid)
                os.fchmod(fd, stat.S_IMODE(info.st_mode))
            stream.write(data)
            if durable_writes:
                stream.flush()
                os.fsync(fd)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    if durable_writes:
        _sync_folder(folder)


def remove_leftovers(folder: Path) -> None:
    """Delete half-written files of `write_atomic` whose process is gone."""
    for path in folder.glob(".k3agent-*-*.tmp"):
        pid = path.name.split("-")[1]
        with contextlib.suppress(OSError):
            if pid.isdigit() and not _is_running(int(pid)):
                path.unlink()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _sync_folder(folder: int) -> None:
    # One that is only gone through cannot be synced, and one that cannot be listed cannot be opened.
    with contextlib.suppress(OSError):
        fd = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

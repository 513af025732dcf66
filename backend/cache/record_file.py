"""The files of the disk tier: a run of pages or one state, each with a header that says what it is.

    magic, header length, header CRC | header (JSON) | per part: its tokens, its bytes

Parts carry a CRC of their own, so one page of a run is read and checked alone. A file is written under
another name and renamed, so it is whole or absent; what a power cut tears fails a CRC.
"""

import json
import os
import struct
import zlib
from array import array
from dataclasses import dataclass, replace
from pathlib import Path

from k3agent.backend.cache.interfaces import Buffer
from k3agent.backend.cache.radix import Tokens

MAGIC = b"K3CACHE1"
SUFFIX = ".k3c"
_PREAMBLE = struct.Struct("<8sII")
_MAX_HEADER = 1 << 20
_TOKEN_BYTES = 8


class TornFileError(ValueError):
    """The file is not whole, or not one of ours."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a file: tokens and the bytes that belong to them."""

    key: str
    """Hex of the content key: of a page its own, of a state that of its last whole page."""
    num_tokens: int
    num_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds. `kind` is "pages" (a part per page) or "state" (state, then the page it ends in)."""

    kind: str
    fingerprint: str
    start: int
    """The position of the first page's first token; of a state, its own position."""
    is_exact: list[bool]
    parts: list[Part]
    tail: Tokens = ()
    """Of a state: its tokens past the last whole page."""
    saved_tokens: int = 0


def encode_tokens(tokens: Tokens) -> bytes:
    return array("q", tokens).tobytes()


def make_part(key: str, tokens: Tokens, data: Buffer) -> Part:
    """A part whose checksum `write_file` fills in: it takes long, and the writer has the time."""
    return Part(key, len(tokens), len(data), 0)


def _checksum(tokens: bytes, data: Buffer) -> int:
    return zlib.crc32(data, zlib.crc32(tokens))


def part_offsets(header: Header) -> list[int]:
    """Where each part begins, and the size of the whole file."""
    offsets = [_PREAMBLE.size + len(_encode(header))]
    for part in header.parts:
        offsets.append(offsets[-1] + part.num_tokens * _TOKEN_BYTES + part.num_bytes)
    return offsets


def write_file(path: Path, temporary: Path, header: Header, contents: list[tuple[Tokens, Buffer]]) -> Header:
    """Write beside, then rename: a reader sees all of it or nothing. Returns the header with checksums."""
    encoded_tokens = [encode_tokens(tokens) for tokens, _ in contents]
    checksums = [_checksum(tokens, data) for tokens, (_, data) in zip(encoded_tokens, contents, strict=True)]
    parts = [replace(part, crc=crc) for part, crc in zip(header.parts, checksums, strict=True)]
    header = replace(header, parts=parts)
    encoded = _encode(header)
    try:
        # what is in a cache was in somebody's prompt
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_PREAMBLE.pack(MAGIC, len(encoded), zlib.crc32(encoded)))
            file.write(encoded)
            for tokens, (_, data) in zip(encoded_tokens, contents, strict=True):
                file.write(tokens)
                file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return header


def read_header(path: Path) -> Header:
    """Raises TornFileError unless the file is whole by its header and size."""
    with path.open("rb") as file:
        preamble = file.read(_PREAMBLE.size)
        if len(preamble) < _PREAMBLE.size:
            raise TornFileError(f"{path.name} ends in its preamble")
        magic, length, crc = _PREAMBLE.unpack(preamble)
        if magic != MAGIC or length > _MAX_HEADER:
            raise TornFileError(f"{path.name} is no cache file")
        encoded = file.read(length)
        size = os.fstat(file.fileno()).st_size
    if len(encoded) < length or zlib.crc32(encoded) != crc:
        raise TornFileError(f"{path.name} has a damaged header")
    try:
        header = _decode(encoded)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TornFileError(f"{path.name} has a header of another form: {error}") from None
    if size != (wanted := part_offsets(header)[-1]):
        raise TornFileError(f"{path.name} has {size} bytes, its header says {wanted}")
    return header


def read_part(path: Path, part: Part, offset: int) -> tuple[Tokens, bytearray]:
    """Tokens and bytes of one part; TornFileError when its CRC says that it is not what was written."""
    data = bytearray(part.num_bytes)
    with path.open("rb") as file:
        file.seek(offset)
        encoded = file.read(part.num_tokens * _TOKEN_BYTES)
        num_read = file.readinto(data)
    if num_read != part.num_bytes or _checksum(encoded, data) != part.crc:
        raise TornFileError(f"{path.name}: the part at {offset} is damaged")
    tokens = array("q")
    tokens.frombytes(encoded)
    return tuple(tokens), data


def _encode(header: Header) -> bytes:
    # of fixed width, so that the size is known before the checksum is
    parts = [[part.key, part.num_tokens, part.num_bytes, f"{part.crc:08x}"] for part in header.parts]
    first = [header.kind, header.fingerprint, header.start, header.is_exact]
    fields = [*first, header.tail, header.saved_tokens, parts]
    return json.dumps(fields, separators=(",", ":")).encode()


def _decode(encoded: bytes) -> Header:
    kind, fingerprint, start, is_exact, tail, saved_tokens, parts = json.loads(encoded)
    if kind not in ("pages", "state") or not isinstance(fingerprint, str) or not parts:
        raise ValueError("unknown kind")
    decoded = [Part(key, int(tokens), int(size), int(crc, 16)) for key, tokens, size, crc in parts]
    for part in decoded:
        bytes.fromhex(part.key)
        if part.num_tokens < 0 or part.num_bytes < 0:
            raise ValueError("negative sizes")
    if len(is_exact) != (len(decoded) if kind == "pages" else 1):
        raise ValueError("as many classes as pages are wanted")
    exact = [bool(flag) for flag in is_exact]
    return Header(kind, fingerprint, int(start), exact, decoded, tuple(map(int, tail)), int(saved_tokens))

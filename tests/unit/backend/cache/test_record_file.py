"""A file of the disk tier is whole or is not used: any cut and any changed bit is noticed."""

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.backend.cache.record_file import (
    MAGIC,
    Header,
    Part,
    TornFileError,
    make_part,
    part_offsets,
    read_header,
    read_part,
    write_file,
)

TOKENS = [(1, 2, 3, 1 << 62), (5, 6, 7, 8)]
DATA = [b"first page", b"second"]


def write(folder: Path) -> Path:
    parts = [
        make_part(f"{i:040x}", tokens, data)
        for i, (tokens, data) in enumerate(zip(TOKENS, DATA, strict=True))
    ]
    path = folder / "file.k3c"
    write_file(
        path,
        folder / "tmp-1",
        Header("pages", "mark", 0, [True, False], parts),
        list(zip(TOKENS, DATA, strict=True)),
    )
    return path


def read_all(path: Path) -> list[tuple[tuple[int, ...], bytes]]:
    header = read_header(path)
    offsets = part_offsets(header)
    return [
        (tokens, bytes(data))
        for tokens, data in (read_part(path, p, o) for p, o in zip(header.parts, offsets, strict=False))
    ]


def test_round_trip(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert read_all(path) == list(zip(TOKENS, DATA, strict=True))
    header = read_header(path)
    assert (header.kind, header.is_exact, path.stat().st_size) == (
        "pages",
        [True, False],
        part_offsets(header)[-1],
    )
    assert [p.name for p in tmp_path.iterdir()] == ["file.k3c"]


@settings(max_examples=80, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_noticed(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    path = write(tmp_path_factory.mktemp("cut"))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut)])
    with pytest.raises(TornFileError):
        read_all(path)


@settings(max_examples=150, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, place: float, bit: int) -> None:
    path = write(tmp_path_factory.mktemp("flip"))
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1 << bit
    path.write_bytes(content)
    with pytest.raises(TornFileError):
        read_all(path)


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "any.k3c"
    path.write_bytes(content)
    with pytest.raises(TornFileError):
        read_header(path)


@pytest.mark.parametrize(
    "encoded",
    [
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'["pages","mark",0,[true],[],0,[["zz",1,1,"01"]]]',
        b'["pages","mark",0,[true],[],0,[["00",-1,1,"01"]]]',
        b'["pages","mark",0,[],[],0,[["00",1,1,"01"]]]',
        b'["pages","mark",Infinity,[true],[],0,[["00",1,1,"01"]]]',
        b'["state","mark",0,[true],["x"],0,[["00",0,1,"01"]]]',
        b'["other","mark",0,[true],[],0,[["00",0,1,"01"]]]',
        b'["state",7,0,[true],[],0,[["00",0,1,"01"]]]',
        b'["state","mark",0,[true],[],0,[[5,0,1,"01"]]]',
        b'["state","mark",0,[true],[],0,[["00",0,99999999999999,"01"]]]',
    ],
)
def test_odd_headers_are_refused(tmp_path: Path, encoded: bytes) -> None:
    path = tmp_path / "odd.k3c"
    path.write_bytes(struct.pack("<8sII", MAGIC, len(encoded), zlib.crc32(encoded)) + encoded)
    with pytest.raises(TornFileError):
        read_header(path)


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    assert write(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    header = Header("state", "mark", 4, [True], [Part("00", 0, 3, 0)])
    with pytest.raises(OSError):
        write_file(tmp_path / "gone" / "x.k3c", tmp_path / "tmp-1", header, [((), b"abc")])
    assert list(tmp_path.iterdir()) == []

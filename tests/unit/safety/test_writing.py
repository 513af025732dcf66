"""Files are whole, keep their mode and their links, and leave no drafts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3agent.safety.writing import replace_text


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_file_is_its_owner_s_alone_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    replace_text(path, "ä")
    assert (path.read_bytes(), mode(path)) == ("ä".encode(), 0o600)
    path.chmod(0o644)
    replace_text(path, "b")
    assert (path.read_text(), mode(path)) == ("b", 0o644)
    replace_text(path, "c", mode=0o600)
    assert mode(path) == 0o600


def test_a_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    replace_text(link, "x")
    assert link.is_symlink() and real.read_text() == "x"


def test_what_cannot_be_written_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a"
    replace_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "x" * 100_000 + "\ud800")
    assert [file.name for file in tmp_path.iterdir()] == ["a"] and path.read_text() == "old"

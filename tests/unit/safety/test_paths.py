"""Small files that somebody else has named: nothing is waited for, and nothing without end is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from k3agent.safety.paths import MAX_SMALL, is_at, small_text


def test_a_small_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    assert small_text(tmp_path / "HEAD") == "ref: refs/heads/main\n"


def test_what_is_no_small_text_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "long").write_bytes(b"x" * (MAX_SMALL + 1))
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name in ("pipe", "endless", "gone", "."):
        with pytest.raises(OSError):
            small_text(tmp_path / name)
    for name in ("long", "bytes"):
        with pytest.raises(ValueError):
            small_text(tmp_path / name)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not tell")
def test_a_link_on_the_way_is_seen(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "a").mkdir()
    (root / "a/b").write_text("")
    (root / "link").symlink_to("a")
    with (root / "link/b").open() as file:
        assert is_at(file.fileno(), root / "a/b") and not is_at(file.fileno(), root / "link/b")
    assert not is_at(10**6, root / "a/b")

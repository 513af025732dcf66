"""Where prefixes are kept, and what a folder that cannot be used costs."""

from pathlib import Path

import pytest

from k3agent.backend.disk_cache import DiskCache, default_folder
from k3agent.backend.errors import BackendError


def test_a_named_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    found = DiskCache.of_flag(str(tmp_path / "a" / "b"), 5)
    assert found is not None
    assert (found.folder, found.quota_bytes) == (tmp_path / "a" / "b", 5)
    assert found.folder.stat().st_mode & 0o077 == 0
    assert found.answers_file.parent == found.prefixes_dir.parent == found.folder


def test_off() -> None:
    assert DiskCache.of_flag("off", 5) is None
    assert DiskCache.of_flag(None, 0) is None


def test_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = DiskCache.of_flag(None, 5)
    assert found is not None and found.folder == tmp_path / "k3agent" / "prefixes" == default_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "k3agent" / "prefixes"


def test_a_folder_that_cannot_be_made_is_an_error_only_if_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(BackendError, match="give a folder"):
        DiskCache.of_flag(str(file / "x"), 5)
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert DiskCache.of_flag(None, 5) is None

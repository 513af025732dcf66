"""What a repository brings acts only as it was trusted: any change to any of it takes the trust away."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from k3agent.config import trust
from k3agent.config.trust import covered, is_trusted, set_trust
from k3agent.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "repo" / ".k3agent"
    (made / "hooks").mkdir(parents=True)
    (made / "skills" / "deploy").mkdir(parents=True)
    (made / "config.toml").write_text('model = "a"\n')
    (made / "hooks" / "pre.sh").write_text("echo hi\n")
    (made / "skills" / "deploy" / "SKILL.md").write_text("# Deploy\n")
    (tmp_path / "repo" / ".mcp.json").write_text("{}")
    return made


def rewrite(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path).write_text("changed")  # type: ignore[return-value]


CHANGES: dict[str, Callable[[Path], object]] = {
    "configuration": rewrite("config.toml"),
    "local configuration": rewrite("config.local.toml"),
    "hook": rewrite("hooks/pre.sh"),
    "new hook": rewrite("hooks/post.sh"),
    "skill": rewrite("skills/deploy/SKILL.md"),
    "script of a skill": rewrite("skills/deploy/run.py"),
    "servers": rewrite("mcp.json"),
    "servers beside": rewrite("../.mcp.json"),
    "renamed": lambda folder: (folder / "hooks/pre.sh").rename(folder / "hooks/post.sh"),
    "executable": lambda folder: (folder / "hooks/pre.sh").chmod(0o755),
    "gone": lambda folder: (folder / "hooks/pre.sh").unlink(),
    "moved content": lambda folder: (folder / "config.local.toml").write_text('model = "a"\n'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_takes_the_trust_away(tmp_path: Path, folder: Path, change: str) -> None:
    home = tmp_path / "home"
    assert not is_trusted(home, folder)
    set_trust(home, folder, is_trusted=True)
    assert is_trusted(home, folder)
    CHANGES[change](folder)
    assert not is_trusted(home, folder)
    set_trust(home, folder, is_trusted=True)
    assert is_trusted(home, folder)
    set_trust(home, folder, is_trusted=False)
    assert not is_trusted(home, folder)


def test_a_link_counts_with_what_it_leads_to(tmp_path: Path, folder: Path) -> None:
    outside = tmp_path / "outside.sh"
    outside.write_text("one")
    (folder / "hooks" / "linked.sh").symlink_to(outside)
    set_trust(tmp_path / "home", folder, is_trusted=True)
    outside.write_text("two")
    assert not is_trusted(tmp_path / "home", folder)


def test_other_folders_with_the_same_content_are_not_trusted(tmp_path: Path, folder: Path) -> None:
    set_trust(tmp_path / "home", folder, is_trusted=True)
    other = tmp_path / "other"
    folder.parent.rename(other)
    assert not is_trusted(tmp_path / "home", other / ".k3agent")


def test_what_is_trusted_is_private_and_listed(tmp_path: Path, folder: Path) -> None:
    set_trust(tmp_path / "home", folder, is_trusted=True)
    assert stat.S_IMODE((tmp_path / "home" / "trusted.json").stat().st_mode) == 0o600
    names = {path.name for path in covered(folder)}
    assert names == {"config.toml", "pre.sh", "SKILL.md", ".mcp.json"}


def test_more_than_anybody_reads_is_not_trusted(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "MAX_FILES", 3)
    with pytest.raises(ConfigError, match="more than 3 files"):
        set_trust(tmp_path / "home", folder, is_trusted=True)


def test_a_link_to_a_trusted_folder_is_not_trusted(tmp_path: Path) -> None:
    good, evil = tmp_path / "good" / ".k3agent", tmp_path / "evil" / ".k3agent"
    good.mkdir(parents=True)
    evil.parent.mkdir()
    (good / "config.toml").write_text("x = 1\n")
    evil.symlink_to(good)
    set_trust(tmp_path / "home", good, is_trusted=True)
    assert is_trusted(tmp_path / "home", good) and not is_trusted(tmp_path / "home", evil)


def test_a_folder_behind_a_link_is_no_blind_spot(tmp_path: Path) -> None:
    folder = tmp_path / ".k3agent"
    (folder / "skills").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (folder / "skills" / "x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="link to a folder"):
        set_trust(tmp_path / "home", folder, is_trusted=True)

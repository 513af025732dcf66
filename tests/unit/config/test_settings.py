"""Layers, precedence, and errors that name file, line and the nearest right key."""

from pathlib import Path

import pytest

from k3agent.config.edit import set_value
from k3agent.config.paths import data_home, repository_configs, user_config
from k3agent.config.settings import SPECS, Settings, line_of, load_settings
from k3agent.config.trust import is_trusted, set_trust
from k3agent.errors import ConfigError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "K3AGENT_HOME": str(tmp_path / "data"),
    }


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / ".k3agent").mkdir()
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_each_layer_wins_over_the_one_before(environ: dict[str, str], repository: Path) -> None:
    assert load_settings(environ, repository) == Settings()
    write(user_config(environ), 'model = "user"\neffort = "low"\n[limits]\nmax_turns = 3\n')
    assert load_settings(environ, repository).model == "user"
    write(repository / ".k3agent" / "config.toml", 'model = "repository"\n')
    untrusted = load_settings(environ, repository)
    assert untrusted.model == "user"
    assert untrusted.untrusted == repository / ".k3agent" / "config.toml"
    paths = repository_configs(repository)
    assert paths is not None
    set_trust(data_home(environ), paths[0].parent, is_trusted=True)
    assert load_settings(environ, repository / ".k3agent").model == "repository"
    local = write(repository / ".k3agent" / "config.local.toml", 'model = "local"\n')
    assert load_settings(environ, repository).model == "user", "any change takes the trust away"
    set_trust(data_home(environ), paths[0].parent, is_trusted=True)
    settings = load_settings(environ, repository)
    assert settings.model == "local"
    assert settings.origin("model") == str(local)
    assert settings.limits_max_turns == 3
    environ["K3AGENT_MODEL"] = "environment"
    settings = load_settings(environ, repository)
    assert (settings.model, settings.origin("model")) == ("environment", "$K3AGENT_MODEL")
    settings = load_settings(environ, repository, {"model": "flag", "effort": None})
    assert (settings.model, settings.origin("model"), settings.effort) == ("flag", "flag", "low")
    set_trust(data_home(environ), paths[0].parent, is_trusted=False)
    assert not is_trusted(data_home(environ), paths[0].parent)


def test_configuration_above_the_repository_does_not_count(environ: dict[str, str], repository: Path) -> None:
    write(repository.parent / ".k3agent" / "config.toml", 'model = "above"\n')
    assert repository_configs(repository) is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('model = "x"\n\nefort = "low"\n', ("line 3", "'efort'", "Did you mean effort?")),
        ("[limits]\nmax_turns = 3\nmax_turn = 4\n", ("line 3", "limits.max_turn'", "limits.max_turns")),
        ('effort = "hihg"\n', ("line 1", "'hihg'", "Did you mean high?")),
        ("[limits]\n# a comment\nmax_turns = 0\n", ("line 3", "0 is less than 1")),
        ("[limits]\nmax_turns = true\n", ("line 2", "True is no whole number")),
        ("[retry]\nmax_time_s = nan\n", ("line 2", "nan")),
        ('allow = "x"\n', ("line 1", "no list of strings")),
        ("model = 3\n", ("line 1", "no string")),
        ('[providers.mine]\nbase_url = "x"\nkey = "y"\n', ("line 3", "'key'", "[providers.mine]")),
        ("model = \n", ("line 1",)),
        ("providers = 3\n", ("line 1", "tables")),
    ],
)
def test_wrong_files_are_explained(environ: dict[str, str], tmp_path: Path, text: str, parts: tuple) -> None:
    path = write(user_config(environ), text)
    with pytest.raises(ConfigError) as caught:
        load_settings(environ, tmp_path)
    assert str(path) in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("value", ["many", "0", "1.5"])
def test_wrong_environment_is_explained(environ: dict[str, str], tmp_path: Path, value: str) -> None:
    environ["K3AGENT_LIMITS_MAX_TURNS"] = value
    with pytest.raises(ConfigError, match="K3AGENT_LIMITS_MAX_TURNS"):
        load_settings(environ, tmp_path)


def test_lists_in_the_environment(environ: dict[str, str], tmp_path: Path) -> None:
    environ["K3AGENT_DENY"] = '["a", "b"]'
    environ["K3AGENT_ALLOW"] = "one rule\ntwo"
    settings = load_settings(environ, tmp_path)
    assert settings.deny == ("a", "b")
    assert settings.allow == ("one rule", "two")


def test_set_keeps_comments_and_checks(environ: dict[str, str], tmp_path: Path) -> None:
    path = write(user_config(environ), '# mine\nmodel = "a"  # why\n')
    set_value(path, "limits.max_turns", "7")
    set_value(path, "model", "b")
    set_value(path, "providers.mine.base_url", "http://127.0.0.1:1/v1")
    set_value(path, "deny", '["shell(rm *)"]')
    text = path.read_text()
    assert "# mine" in text
    assert "# why" in text
    settings = load_settings(environ, tmp_path)
    assert (settings.model, settings.limits_max_turns, settings.deny) == ("b", 7, ("shell(rm *)",))
    assert settings.providers["mine"].base_url == "http://127.0.0.1:1/v1"
    for key, value in (
        ("limits.max_turns", "x"),
        ("modle", "x"),
        ("effort", "medium"),
        ("providers.mine.key", "x"),
    ):
        with pytest.raises(ConfigError):
            set_value(path, key, value)
    assert path.read_text() == text


def test_every_setting_has_a_line_of_help() -> None:
    assert len(SPECS) > 20
    assert all(item.metadata["help"] and "\n" not in item.metadata["help"] for item in SPECS.values())


def test_relative_xdg_folders_do_not_count() -> None:
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "x", "XDG_DATA_HOME": "y"}
    assert user_config(environ) == Path("/h/.config/k3agent/config.toml")
    assert data_home(environ) == Path("/h/.local/share/k3agent")


def test_line_of_quoted_and_dotted_keys() -> None:
    text = '"model" = 1\nlimits.max_turns = 2\n[ retry ]\nmax_time_s = 3\n'
    assert [line_of(text, key) for key in ("model", "limits.max_turns", "retry.max_time_s")] == [1, 2, 4]

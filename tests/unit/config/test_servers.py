"""Which MCP servers count: files, tables, trust, variables, and what is said of mistakes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from k3agent.config.servers import Configured, load_servers, read_file, write_server
from k3agent.config.settings import load_settings
from k3agent.config.trust import set_trust
from k3agent.errors import ConfigError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("config/k3agent", "home", "repo/.git"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def environ(place: Path, **more: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(place / "config"), "HOME": str(place / "home"), **more}


def put(path: Path, **servers: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))


def load(place: Path, **more: Any) -> Configured:
    settings = load_settings(environ(place), place / "repo")
    variables = more.pop("variables", {})
    return load_servers(
        environ(place, **variables), place / "repo", place / "data", tables=settings.mcp, **more
    )


def test_without_any_file_there_are_none(place: Path) -> None:
    assert load(place) == Configured()


def test_later_places_win_and_a_repository_waits_for_trust(place: Path) -> None:
    (place / "config/k3agent/config.toml").write_text(
        '[mcp.a]\ncommand = "table"\n[mcp.only-table]\nurl = "https://example.org/mcp"\n'
    )
    put(place / "config/k3agent/mcp.json", a={"command": "user"}, b={"command": "user"})
    put(place / "repo/.mcp.json", b={"command": "repo"})
    put(place / "extra.json", c={"command": "flag"})
    found = load(place, files=[place / "extra.json"])
    assert [(server.name, server.command) for server in found.servers] == [
        ("a", "user"), ("b", "user"), ("c", "flag"), ("only-table", ""),
    ]  # fmt: skip
    assert found.untrusted == (place / "repo/.mcp.json",)
    set_trust(place / "data", place / "repo/.k3agent", is_trusted=True)
    found = load(place)
    assert {server.name: server.command for server in found.servers}["b"] == "repo"
    put(place / "repo/.mcp.json", b={"command": "changed"})
    assert load(place).untrusted


def test_variables_are_put_in_and_missing_ones_are_a_problem_of_that_server(place: Path) -> None:
    put(
        place / "config/k3agent/mcp.json",
        a={"command": "x", "args": ["${WHERE}", "${GONE:-else}"], "env": {"K": "${KEY}"}},
        b={"url": "https://example.org", "headers": {"Authorization": "Bearer ${NONE}"}},
    )
    a, b = load(place, variables={"WHERE": "here", "KEY": "k"}).servers
    assert (a.args, a.env, a.problem) == (("here", "else"), {"K": "k"}, "")
    assert "NONE" in b.problem


@pytest.mark.parametrize(
    ("name", "entry", "words"),
    [
        ("a__b", {"command": "x"}, "a__b"),
        ("a b", {"command": "x"}, "a b"),
        ("a", {}, "either a command"),
        ("a", {"command": "x", "url": "https://y"}, "either a command"),
        ("a", {"command": "x", "args": "y"}, "args"),
        ("a", {"command": ["x"]}, "command must be a string"),
        ("a", {"command": "x", "env": {"A": 1}}, "env"),
        ("a", {"url": "ftp://x"}, "ftp://x"),
        ("a", {"command": "x", "start_timeout_s": -1}, "start_timeout_s"),
        ("a", "x", "a table"),
    ],
)
def test_mistakes_are_named(place: Path, name: str, entry: Any, words: str) -> None:
    put(place / "config/k3agent/mcp.json", **{name: entry})
    with pytest.raises(ConfigError) as error:
        load(place)
    assert words in str(error.value)
    assert "mcp.json" in str(error.value)


def test_keys_of_other_programs_are_left_alone_also_when_a_file_is_written(place: Path) -> None:
    path = place / "config/k3agent/mcp.json"
    path.write_text(json.dumps({"inputs": [1], "mcpServers": {"a": {"command": "x", "alwaysAllow": ["y"]}}}))
    assert load(place).servers[0].command == "x"
    assert not write_server(path, "b", {"command": "z"})
    assert write_server(path, "b", None)
    assert not write_server(path, "b", None)
    data = json.loads(path.read_text())
    assert data == {"inputs": [1], "mcpServers": {"a": {"command": "x", "alwaysAllow": ["y"]}}}
    path.write_text("[]")
    with pytest.raises(ConfigError):
        read_file(path)


def test_a_new_file_is_for_its_owner_alone(place: Path) -> None:
    path = place / "config/k3agent/mcp.json"
    write_server(path, "a", {"command": "x", "env": {"KEY": "secret"}})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_behind_a_link_stays_there_and_is_never_open_to_others(place: Path) -> None:
    real, link = place / "dotfiles.json", place / "mcp.json"
    link.symlink_to(real)
    old = os.umask(0)
    try:
        write_server(link, "a", {"command": "x", "env": {"KEY": "secret"}})
    finally:
        os.umask(old)
    assert link.is_symlink() and list(read_file(real)) == ["a"]
    assert real.stat().st_mode & 0o777 == 0o600

"""The list of all commands: complete, made without running one, and fit to be written into shell scripts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from k3agent.cli import COMMANDS
from k3agent.headless.arguments import Parser, parser_of
from k3agent.reference.tree import Place, places


@cache
def found() -> Mapping[str, Place]:
    return {place.path: place for place in places()}


def test_every_command_and_action_is_there() -> None:
    assert [path for path in found() if path and " " not in path] == list(COMMANDS)
    for place in found().values():
        if place.words:
            assert all(f"{place.path} {action}" in found() for action in place.actions)
    assert {"sessions uncompact", "mcp serve", "bench load", "config trust"} <= set(found())


@pytest.mark.parametrize("path", ["run", "sessions rm", "memory add", "serve", "bench model", "mcp add"])
def test_flags_are_those_of_the_help(path: str) -> None:
    command = [sys.executable, "-P", "-m", "k3agent", *path.split(), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    listed = re.findall(r"^  (-.*?)(?:  |$)", shown, re.M)
    told = {name for row in listed for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", row)}
    assert told == {name for flag in found()[path].flags for name in flag.names}


def test_nothing_is_run(tmp_path: Path) -> None:
    code = (
        "import sys; from k3agent.reference.tree import places; print(len(places()));"
        "assert not {'torch', 'textual', 'uvicorn'} & set(sys.modules), sys.modules"
    )
    environ = {"HOME": str(tmp_path), "K3AGENT_HOME": str(tmp_path / "data"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path, check=False)
    assert ran.returncode == 0, ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_names_and_words_need_no_quotes_in_a_shell() -> None:
    for place in found().values():
        values = [flag.value for flag in place.flags if flag.value] + [one.value for one in place.operands]
        names = [name for flag in place.flags for name in flag.names]
        for word in [
            *place.words,
            *place.actions,
            *names,
            *(word for value in values for word in value.words),
        ]:
            assert re.fullmatch(r"[\w.-]+", word), (place.path, word)


def test_help_has_its_values_and_is_one_line() -> None:
    for place in found().values():
        for flag in place.flags:
            assert flag.help, (place.path, flag.names)
            assert "%(" not in flag.help
            assert "\n" not in flag.help


def test_kinds_of_values() -> None:
    kinds = {name: flag.value for flag in found()["run"].flags for name in flag.names}
    shown = {name: value.kind for name, value in kinds.items() if value is not None}
    assert shown["--effort"] == "words"
    assert shown["--cwd"] == "folder"
    assert shown["--receipt"] == "file"
    assert shown["--resume"] == "session"
    assert shown["--model"] == ""
    assert kinds["--stdin"] is None
    (client,) = [flag for flag in found()["mcp add"].flags if "--client-id" in flag.names]
    assert client.value is not None and client.value.kind == ""
    assert found()["memory edit"].operands[0].value.kind == ""


def test_a_command_that_checks_no_arguments_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"must call Parser\.parse first"):
        parser_of(lambda: 0)


def test_after_that_commands_parse_again() -> None:
    parser = Parser("x", "")
    assert parser_of(lambda: parser.parse(["--nonsense"])) is parser
    assert vars(parser.parse([])) == {}

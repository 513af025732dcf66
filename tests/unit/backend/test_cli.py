"""Flags of `k3agent serve`: sizes, counts, keys, and what stands in for a wrong one."""

import argparse
import sys

import pytest

from k3agent.backend import cli
from k3agent.backend.errors import BackendError, MissingPackageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("123", 123), ("1K", 1024), ("64M", 64 << 20), ("1.5g", 3 << 29), ("2 GiB", 2 << 30), ("1TB", 1 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert cli.byte_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1X", "1e9", "M"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="size"):
        cli.byte_size(text)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--maxrunning", "3"], "did you mean --max-running?"),
        (["--max-running", "0"], "at least 1"),
        (["--disk-cache-bytes", "lots"], "no size"),
        (["--exactness", "perhaps"], "always"),
        (["--tp", "two"], "at least 1"),
        (["--port", "99999"], "65535"),
        (["--port", "-1"], "65535"),
        (["--client-timeout", "0"], "above 0"),
        (["--client-timeout", "nan"], "above 0"),
        (["--idle-timeout", "-1"], "above 0"),
        (["--device", "tpu"], "cpu, cuda and cuda:N"),
        (["--device", "cuda:x"], "cpu, cuda and cuda:N"),
    ],
)
def test_wrong_flags_are_explained(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parser().parse_args(flags)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_every_flag_has_a_line_of_help() -> None:
    for action in cli.parser()._actions:
        assert action.help, action.option_strings


def test_where_the_key_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("K3AGENT_API_KEY", "K3AGENT_SERVER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert cli._api_key(None, None) is None
    monkeypatch.setenv("K3AGENT_API_KEY", "usual")
    monkeypatch.setenv("MINE", "mine")
    assert cli._api_key(None, None) == "usual"
    assert cli._api_key(None, "MINE") == "mine"
    assert cli._api_key("given", "MINE") == "given"
    with pytest.raises(BackendError, match="NOWHERE"):
        cli._api_key(None, "NOWHERE")
    with pytest.raises(BackendError, match="empty"):
        cli._api_key(" ", None)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_this_machine_needs_no_key(host: str) -> None:
    cli.check_exposure(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_others_need_one(host: str) -> None:
    with pytest.raises(BackendError, match="--api-key"):
        cli.check_exposure(host, None)
    cli.check_exposure(host, "key")


def test_a_missing_package_names_the_extra(monkeypatch, capsys) -> None:
    monkeypatch.delitem(sys.modules, "k3agent.backend.serve", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["--port", "0"]) == 1
    error = capsys.readouterr().err
    assert error == "k3agent serve: the package uvicorn is not installed: pip install 'k3agent[local]'\n"


def test_a_missing_module_of_ours_is_no_missing_package() -> None:
    with pytest.raises(ModuleNotFoundError, match="gone"):
        MissingPackageError(ModuleNotFoundError("gone", name="k3agent.backend.gone"))

"""`k3agent login` and `logout` as processes: with a keyring, without one, and what a run makes of the key."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from support.headless import Bench
from support.runs import served
from support.secret_shapes import text

from k3agent.providers.scripted import Step

pytest.importorskip("keyring")
KEY = f"sk-{text(950, 48)}"
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "workspace").mkdir()
    made = Bench(tmp_path)
    path = os.pathsep.join([str(TESTS), made.environ.get("PYTHONPATH", "")])
    made.extra |= {"PYTHONPATH": path, "KEYRING_TEST_FILE": str(tmp_path / "ring.json")}
    made.extra |= {"PYTHON_KEYRING_BACKEND": "support.keyring_file.FileKeyring"}
    return made


def run(bench: Bench, *flags: str, said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        bench.command(*flags), input=said, cwd=bench.workspace, env=bench.environ,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def kept(bench: Bench) -> dict[str, dict[str, str]]:
    path = bench.home / "keys.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return json.loads(path.read_text())


def test_the_keyring_has_the_key_and_no_file(bench: Bench) -> None:
    done = run(bench, "login", said=f"{KEY}\n")
    assert (done.returncode, done.stderr) == (0, "") and "The system keyring has the key." in done.stdout
    assert kept(bench) == {"moonshot": {"variable": "MOONSHOT_API_KEY", "where": "keyring"}}
    assert KEY in (bench.root / "ring.json").read_text()
    assert KEY not in done.stdout
    models = run(bench, "models")
    assert "MOONSHOT_API_KEY is set" in models.stdout
    gone = run(bench, "logout")
    assert gone.returncode == 0 and "removed" in gone.stdout
    assert KEY not in (bench.root / "ring.json").read_text() and kept(bench) == {}
    again = run(bench, "logout")
    assert again.returncode == 2 and "no key of moonshot is stored. Stored: none." in again.stderr


@pytest.mark.parametrize("backend", ["keyring.backends.fail.Keyring", "keyring.backends.null.Keyring"])
def test_without_a_keyring_the_key_is_in_a_private_file_and_that_is_said(bench: Bench, backend: str) -> None:
    bench.extra["PYTHON_KEYRING_BACKEND"] = backend
    done = run(bench, "login", "openrouter", said=f"  {KEY}  \n")
    assert done.returncode == 0 and str(bench.home / "keys.json") in done.stdout
    assert kept(bench)["openrouter"] == {"variable": "OPENROUTER_API_KEY", "where": "file", "key": KEY}
    assert run(bench, "logout", "openrouter").returncode == 0 and KEY not in json.dumps(kept(bench))


def test_a_run_uses_the_key_and_shows_it_nowhere(bench: Bench) -> None:
    config = bench.root / "config" / "k3agent"
    config.mkdir(parents=True)
    with served(bench, [Step(text=f"Your key is {KEY}.")], api_key=KEY) as server:
        table = f'[providers.mine]\nbase_url = "{server.url}"\napi_key_env = "MY_API_KEY"\nmodel = "m"\n'
        (config / "config.toml").write_text(f'provider = "mine"\n{table}')
        assert run(bench, "login", "mine", said=KEY).returncode == 0
        bench.url = ""
        done = run(bench, "run", "hi", "--output-format", "stream-json", "--include-partial-messages")
        heads = [request.headers.get("authorization") for request in server.requests]
    assert done.returncode == 0, done.stderr
    assert f"Bearer {KEY}" in heads
    assert KEY not in done.stdout + done.stderr and "[masked: MY_API_KEY]" in done.stdout
    for path in bench.home.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_locked_keyring_is_an_error_of_the_configuration_with_a_remedy(bench: Bench) -> None:
    assert run(bench, "login", said=KEY).returncode == 0
    bench.extra["KEYRING_TEST_FILE"] = str(bench.root / "locked")
    done = run(bench, "run", "hi", "--output-format", "json")
    assert done.returncode == 52 and json.loads(done.stdout)["exit_code"] == 52
    assert "the keyring is locked; unlock it" in done.stderr
    assert run(bench, "login", "--file", said=KEY).returncode == 0
    assert kept(bench)["moonshot"]["where"] == "file"


@pytest.mark.parametrize(
    ("flags", "said", "error"),
    [
        (("login", "moonshoot"), KEY, "provider 'moonshoot' is unknown"),
        (("login",), "\n", "no key was given for moonshot"),
        (("login",), "two words\n", "holds spaces"),
        (("login", "--key", "x"), KEY, "--key"),
    ],
)
def test_wrong_use_is_said(bench: Bench, flags: tuple[str, ...], said: str, error: str) -> None:
    done = run(bench, *flags, said=said)
    assert done.returncode == 2 and error in done.stderr
    assert not (bench.home / "keys.json").exists()

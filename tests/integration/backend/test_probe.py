"""Asking a real server what it can do: ours, with tiny K3, whose random weights call no tools."""

import subprocess
import sys

import pytest
from support.serving import KEY, Running

from k3agent.backend.handover import probe


def findings(server: Running, key: str | None = KEY, model: str | None = None) -> dict[str, probe.Finding]:
    return {finding.name: finding for finding in probe.probe(f"{server.url}/v1", key, model)}


@pytest.fixture(autouse=True)
def short_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """tiny K3's window is small."""
    monkeypatch.setattr(probe, "REPEATED_WORDS", 60)


def test_what_it_finds(server: Running) -> None:
    found = findings(server)
    assert list(found) == ["version", "models", "tool call", "reasoning", "prefix cache"]
    assert found["version"].text.startswith("k3agent ")
    assert found["models"].is_good and "tiny-k3 with a window of" in found["models"].text
    assert found["prefix cache"].is_good, found["prefix cache"].text
    assert "of a repeated prompt reused" in found["prefix cache"].text


def test_a_wrong_key_and_a_wrong_model(server: Running) -> None:
    assert "status 401" in findings(server, key="wrong")["models"].text
    wrong = findings(server, model="other")
    assert list(wrong) == ["version", "models"]
    assert "no 'other' among tiny-k3" in wrong["models"].text


def test_nobody_there() -> None:
    found = list(probe.probe("http://127.0.0.1:9/v1", None, None))
    assert [finding.is_good for finding in found][-1] is False
    assert "no answer" in found[-1].text


def test_the_command(server: Running) -> None:
    command = [sys.executable, "-P", "-m", "k3agent.backend.cli", "--probe", server.url, "--api-key", "wrong"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert "FAIL models: status 401" in ran.stdout


def test_texts_of_servers_are_made_harmless() -> None:
    assert probe.plain("a\x1b[31mb\n" + "c" * 500) == "a [31mb " + "c" * 192 + "..."

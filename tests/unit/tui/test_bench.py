"""The measurements' own parts: what counts as text, and the figures of a program that is known."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

import pytest

from k3agent.tui import benchpeers
from k3agent.tui.benchpeers import measure_peer
from k3agent.tui.benchstream import TOKEN_CHARS, pieces
from k3agent.tui.benchterm import Terminal, visible

ECHOING = """
import os, sys, termios, time
mode = termios.tcgetattr(0)
mode[3] &= ~(termios.ECHO | termios.ICANON)
termios.tcsetattr(0, termios.TCSANOW, mode)
os.write(1, b"\\x1b[6n")
assert os.read(0, 20) == b"\\x1b[1;1R"
os.write(1, b"\\x1b[31ma frame of more than twenty letters\\x1b[0m")
while (key := os.read(0, 1)) != b"\\x04":
    os.write(1, b"\\x1b[2K" + key * ECHOES)
"""


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m and\r\n more", "redandmore"),
        (b"\x1b]8;;http://x.y/q\x1b\\link\x1b]8;;\x07", "link"),
        (b"\x1b]0;title q\x07x", "x"),
        (b"\x1bP>|q\x1b\\x\x1b7\x1b(B", "x"),
        (b"x\x1b[1;3", "x"),
        (b"x\x1b]0;half a title", "x"),
        (b"x\x1b", "x"),
        ("é\x1b[K▀".encode(), "é▀"),
        (b"\xff", "\ufffd"),
    ],
)
def test_only_text_counts(output: bytes, text: str) -> None:
    assert visible(output) == text


def test_a_program_that_echoes_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchpeers, "QUIET_S", 0.3)
    found = measure_peer(python(ECHOING.replace("ECHOES", "1")), 1, 0.2)
    assert 0 < found["first_frame_s"] <= found["settled_s"] and found["first_frame_cpu_s"] >= 0
    assert found["echo_ms"] > 0 and found["pss_mb"] > 1 and found["idle_percent"] >= 0


def test_a_program_without_echo_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchpeers, "QUIET_S", 0.3)
    monkeypatch.setattr(benchpeers, "ECHO_LIMIT_S", 0.3)
    assert math.isnan(measure_peer(python(ECHOING.replace("ECHOES", "0")), 1, 0.1)["echo_ms"])


@pytest.mark.parametrize("command", ["/no/such/program", python("print('short')")])
def test_a_program_that_ends_is_told(command: str) -> None:
    with pytest.raises(SystemExit, match=r"it said: (/no/such/program:Nosuchfile|short)"):
        measure_peer(command, 1, 0.1)


def test_a_family_is_the_program_and_what_it_started(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(\"up\"); input()'])"
    terminal = Terminal([sys.executable, "-c", program], {}, tmp_path)
    try:
        terminal.until(b"up")
        assert len(terminal.family()) == 2 and terminal.family()[0] == terminal.pid
    finally:
        terminal.end()


def test_pieces_are_as_many_as_asked_for() -> None:
    found = pieces(1_000)
    assert len(found) == 1_000 and {len(piece) for piece in found} == {TOKEN_CHARS}

"""What is written to the terminal: in order, and nothing waits for a terminal that is gone or stalled."""

from __future__ import annotations

import os
import threading
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from k3agent.tui.output import MAX_BEHIND_BYTES, Output

PATIENCE_S = 60.0


@dataclass
class Terminal:
    """Both ends of one; `output` writes to it."""

    master: int
    slave: int
    gone: threading.Event = field(default_factory=threading.Event)
    caught_up: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.file = open(self.slave, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - closed by the fixture
        self.output = Output(self.file, self.gone.set, self.caught_up.set)

    def read(self, until: bytes) -> bytes:
        found = bytearray()
        while until not in found:
            found += os.read(self.master, 1 << 16)
        return bytes(found)

    def hang_up(self) -> None:
        os.close(self.master)
        self.master = -1


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    master, slave = os.openpty()
    tty.setraw(slave)
    terminal = Terminal(master, slave)
    yield terminal
    if terminal.master >= 0:
        terminal.hang_up()
    terminal.output.stop()
    os.close(slave)


def test_all_arrives_in_order(terminal: Terminal) -> None:
    words = [f"{number} äöü\n" for number in range(20_000)]
    writing = threading.Thread(target=lambda: [terminal.output.write(word) for word in words])
    writing.start()
    assert terminal.read(words[-1].encode()).decode() == "".join(words)
    writing.join(PATIENCE_S)
    terminal.output.stop()
    assert not terminal.output.is_lost and not terminal.caught_up.is_set()


def test_a_terminal_that_is_gone_is_told_and_holds_up_nobody(terminal: Terminal) -> None:
    terminal.hang_up()
    terminal.output.write("x")
    assert terminal.gone.wait(PATIENCE_S)
    for _ in range(200):
        terminal.output.write("x" * MAX_BEHIND_BYTES)
    terminal.output.stop()
    assert terminal.output.is_lost


def test_a_terminal_that_stalls_holds_up_nobody_and_goes_on(terminal: Terminal) -> None:
    for _ in range(200):
        terminal.output.write("x" * MAX_BEHIND_BYTES)
    assert terminal.output.is_lost and not terminal.gone.is_set()
    reading = threading.Thread(target=terminal.read, args=(b"again",), daemon=True)
    reading.start()
    assert terminal.caught_up.wait(PATIENCE_S)
    assert not terminal.output.is_lost
    terminal.output.write("again")
    reading.join(PATIENCE_S)
    assert not reading.is_alive()


def test_the_end_does_not_wait_for_a_stalled_terminal(terminal: Terminal) -> None:
    terminal.output.write("x" * MAX_BEHIND_BYTES)
    terminal.output.stop()
    assert terminal.output.is_lost

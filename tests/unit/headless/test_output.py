"""The pipe writer: order, bound, slow readers, readers that leave."""

import os
import threading
import time

from k3agent.headless import output
from k3agent.headless.output import PipeWriter


def test_slow_reader_gets_everything_in_order() -> None:
    reading, writing = os.pipe()
    writer = PipeWriter(writing, is_lossless=True)
    lines = [f"{number} {'x' * 5000}\n" for number in range(200)]
    for line in lines:
        writer.write(line)
    assert not writer.flush(0.2), "nobody has read yet"
    got = bytearray()
    while len(got) < sum(map(len, lines)):
        got += os.read(reading, 65536)
    assert got.decode() == "".join(lines)
    assert writer.flush(5)


def test_lossless_waits_at_the_bound_and_lossy_drops(monkeypatch) -> None:
    monkeypatch.setattr(output, "_MAX_WAITING_BYTES", 100_000)
    _, writing = os.pipe()
    lossy = PipeWriter(writing, is_lossless=False)
    for _ in range(100):
        lossy.write("y" * 10_000)
    assert lossy._waiting_bytes < 200_000
    _, writing = os.pipe()
    lossless = PipeWriter(writing, is_lossless=True)
    done = threading.Event()

    def fill() -> None:
        for _ in range(100):
            lossless.write("y" * 10_000)
        done.set()

    threading.Thread(target=fill, daemon=True).start()
    assert not done.wait(0.5)
    lossless.is_urgent = True
    assert done.wait(2)


def test_reader_that_leaves_is_told_once() -> None:
    reading, writing = os.pipe()
    told = []
    writer = PipeWriter(writing, is_lossless=True, on_broken=lambda: told.append(1))
    os.close(reading)
    writer.write("x")
    assert not writer.flush(5)
    for _ in range(3):
        writer.write("x")
    time.sleep(0.05)
    assert told == [1]
    assert writer.is_broken


def test_non_blocking_descriptor() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    writer = PipeWriter(writing, is_lossless=True)
    writer.write("z" * 300_000)
    got = 0
    while got < 300_000:
        got += len(os.read(reading, 65536))
    assert writer.flush(5)

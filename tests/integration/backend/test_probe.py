"""Asking a real server what it can do: ours, with tiny K3, whose random weights call no tools."""

import gzip
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

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


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"


def sized(body: bytes, more: bytes = b"") -> bytes:
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def endless(piece: bytes, pause_s: float) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        for _ in range(20_000):
            connection.sendall(piece)
            time.sleep(pause_s)

    return answer


def read_request(connection: socket.socket) -> None:
    """All of it: closing a connection with something unread resets it, and the answer may be lost."""
    data = b""
    while b"\r\n\r\n" not in data and (piece := connection.recv(65536)):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    missing = int(length[1]) - len(body) if length else 0
    while missing > 0 and (piece := connection.recv(65536)):
        missing -= len(piece)


@contextmanager
def hostile(head: bytes, then: Callable[[socket.socket], None] = lambda _: None) -> Iterator[str]:
    """A server that answers everything with `head`, then does `then`."""
    listening = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            read_request(connection)
            connection.sendall(head)
            then(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


SHAPES = b'{"version": ["\\u001b[31m"], "data": [{"id": "m\\u001b", "max_model_len": 1%s}],' % (b"0" * 4000)
HOSTILE: dict[str, tuple[bytes, Callable[[socket.socket], None], str]] = {
    "endless": (HEAD + b"\r\n", endless(b"[1," * 30_000, 0), "more than 4 MB"),
    "headers": (HEAD, endless(b"X-A: " + b"a" * 60_000 + b"\r\n", 0), "no answer"),
    "slow": (HEAD + b"\r\n", endless(b" ", 0.05), "no end within"),
    "redirect": (
        b"HTTP/1.1 302 F\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        lambda _: None,
        "302",
    ),
    "bomb": (
        sized(gzip.compress(b" " * 30_000_000), b"Content-Encoding: gzip\r\n"),
        lambda _: None,
        "more than 4 MB",
    ),
    "deep": (sized(b"[" * 100_000), lambda _: None, "another form"),
    "shapes": (
        sized(SHAPES + b'"choices": [{"message": "x"}], "usage": []}'),
        lambda _: None,
        "another form",
    ),
    "infinite": (
        sized(b'{"data": [{"id": "m"}], "choices": [{"message": {}}], "usage": {"prompt_tokens": 1e999}}'),
        lambda _: None,
        "another form",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_server_breaks_it_or_holds_it_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, then, said = HOSTILE[name]
    monkeypatch.setattr(probe, "QUESTION_LIMIT_S", 2.0 if name == "slow" else 60.0)
    with hostile(head, then) as url:
        found = list(probe.probe(url, None, None))
    assert found[-1].is_good is False and said in found[-1].text
    assert all("\x1b" not in str(one) and len(str(one)) < 400 for one in found)

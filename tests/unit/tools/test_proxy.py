"""The proxy to named hosts: what fits a name, where names may lead, what passes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3agent.tools.sandbox import proxy as proxy_module
from k3agent.tools.sandbox.proxy import Proxy, Refused, address_of, check_pattern, fits


@pytest.mark.parametrize(
    ("pattern", "host", "port", "fitting"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "pypi.org", 80, True),
        ("pypi.org", "pypi.org", 22, False),
        ("pypi.org", "evil-pypi.org", 443, False),
        ("pypi.org", "files.pypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.com", 443, False),
        ("*.pypi.org", "files.pypi.org", 443, True),
        ("*.pypi.org", "a.b.pypi.org", 443, True),
        ("*.pypi.org", "pypi.org", 443, False),
        ("*.pypi.org", "evilpypi.org", 443, False),
        ("PyPI.org", "pypi.org", 443, True),
        ("pypi.org:8443", "pypi.org", 8443, True),
        ("pypi.org:8443", "pypi.org", 443, False),
    ],
)
def test_what_fits(pattern: str, host: str, port: int, fitting: bool) -> None:
    assert fits(pattern, host, port) is fitting


def test_patterns_are_checked() -> None:
    assert all(map(check_pattern, ("a.b", "*.a.b", "a.b:99", "127.0.0.1", "[::1]:80", "localhost:1")))
    assert not any(map(check_pattern, ("", "*", "a*.b", "http://a.b", "a b", "a/b", "a..b")))


@pytest.mark.parametrize(
    ("address", "pattern", "allowed"),
    [
        ("93.184.216.34", "*.a.b", True),
        ("10.0.0.1", "*.a.b", False),
        ("10.0.0.1", "x.a.b", True),
        ("127.0.0.1", "x.a.b", False),
        ("169.254.169.254", "x.a.b", False),
        ("::ffff:169.254.169.254", "x.a.b", False),
        ("::1", "x.a.b", False),
        ("0.0.0.0", "x.a.b", False),
        # the same in other clothes, and the addresses at which other clouds keep their keys
        ("64:ff9b::a9fe:a9fe", "x.a.b", False),
        ("2002:7f00:1::", "x.a.b", False),
        ("::127.0.0.1", "x.a.b", False),
        ("fd00:ec2::254", "x.a.b", False),
        ("100.100.100.200", "x.a.b", False),
        ("192.0.0.192", "*.a.b", False),
        ("64:ff9b::5db8:d822", "*.a.b", True),
        ("2606:2800:220:1::1", "*.a.b", True),
    ],
)
def test_where_names_may_lead(
    monkeypatch: pytest.MonkeyPatch, address: str, pattern: str, allowed: bool
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 443))])
    if allowed:
        assert address_of("x.a.b", 443, [pattern]) == (address, 443)
    else:
        with pytest.raises(Refused):
            address_of("x.a.b", 443, [pattern])


def test_a_name_does_not_lead_to_another_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[tuple[str, int]] = []
    monkeypatch.setattr(socket.socket, "bind", lambda _, place: bound.append(place))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("192.168.1.5", 443))])
    with pytest.raises(Refused):
        address_of("x.a.b", 443, ["x.a.b"])
    assert bound == [("192.168.1.5", 0)]


def test_many_connections_take_few_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(proxy_module, "PLACE_S", 0.01)
    proxy = Proxy(["a.b"], tmp_path / "p")
    proxy.start()
    clients = [socket.socket(socket.AF_UNIX) for _ in range(12)]
    try:
        for client in clients:
            client.settimeout(30)
            client.connect(str(proxy.path))
        # Those beyond the limit are closed; the first ones are still waited for.
        assert [client.recv(1) for client in clients[3:]] == [b""] * 9
        clients[0].sendall(b"CONNECT x.y:443 HTTP/1.1\r\n\r\n")
        assert b" 403 " in clients[0].recv(65536)
    finally:
        for client in clients:
            client.close()
        proxy.close()


@pytest.fixture
def upstream() -> Iterator[tuple[int, list[bytes]]]:
    """A server that notes what it gets, answers and closes."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    seen.append(connection.recv(65536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)


def ask(proxy: Proxy, request: bytes, then: bytes = b"") -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(proxy.path))
        client.sendall(request)
        answer = b""
        if then:
            answer = client.recv(65536)
            client.sendall(then)
        while piece := client.recv(65536):
            answer += piece
        return answer


def test_what_passes(tmp_path: Path, upstream: tuple[int, list[bytes]]) -> None:
    port, seen = upstream
    proxy = Proxy([f"127.0.0.1:{port}"], tmp_path / "p")
    proxy.start()
    try:
        head = "Host: evil.example\r\nProxy-Authorization: x"
        request = f"GET http://127.0.0.1:{port}/x?y HTTP/1.1\r\n{head}\r\n\r\n"
        assert ask(proxy, request.encode()).endswith(b"hi")
        assert (
            seen.pop() == f"GET /x?y HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        tunnel = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode()
        assert ask(proxy, tunnel, b"anything").endswith(b"hi") and seen.pop() == b"anything"
        assert b" 403 " in ask(proxy, b"CONNECT example.invalid:443 HTTP/1.1\r\n\r\n")
        assert b" 403 " in ask(proxy, f"CONNECT 127.0.0.1:{port + 1} HTTP/1.1\r\n\r\n".encode())
        assert b" 403 " in ask(proxy, b"GET http://user@example.invalid/ HTTP/1.1\r\n\r\n")
        for wrong in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\r\n\r\n", b"CONNECT a:b:c HTTP/1.1\r\n\r\n"):
            assert b" 400 " in ask(proxy, wrong) or b" 403 " in ask(proxy, wrong)
        assert not seen
        assert "example.invalid:443" in proxy.take_refused() and proxy.take_refused() == []
    finally:
        proxy.close()

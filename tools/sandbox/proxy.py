"""A proxy for HTTP that lets commands reach named hosts only. It listens on a socket with a path.

Commands have no network of their own: their HTTP_PROXY leads to a relay inside the sandbox (launcher.py),
which passes bytes to this socket. The proxy looks up names itself, so a command cannot even ask a DNS server.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import socketserver
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WEB_PORTS = (80, 443)
MAX_HEAD_BYTES = 1 << 16
MAX_CONNECTIONS = 64
CONNECT_S, IDLE_S = 20.0, 300.0
# So long a connection waits for a free place among MAX_CONNECTIONS; `close` may wait as long.
PLACE_S = 2.0
PIECE_BYTES = 1 << 16
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# IPv6 that is translated to the IPv4 address at its end.
V4_NETS = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")


class Refused(Exception):
    """Why a connection is not made; the text is sent to the command."""


def split_port(text: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[v6]:port` or `v6`, in small letters and without the dot at the end."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*):(\d{1,5})", text)
    host, port = (match[1], int(match[2])) if match else (text, None)
    return host.strip("[]").rstrip(".").lower(), port


def fits(pattern: str, host: str, port: int) -> bool:
    """`pattern`: `example.org`, `*.example.org` (every name below it), with `:port` if not 80 or 443."""
    name, wanted = split_port(pattern)
    if port != wanted if wanted is not None else port not in WEB_PORTS:
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def check_pattern(pattern: str) -> bool:
    """Whether it can be a pattern: a name, `*.` and a name, or an address."""
    host, _ = split_port(pattern)
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return HOST.fullmatch(host) is not None


def address_of(host: str, port: int, patterns: Sequence[str]) -> tuple[str, int]:
    """Where to connect for `host`. Raises Refused for one that is not named, or that leads to this machine.

    A name that was given in full may lead into a private network, one that only fits a `*.` may not.
    """
    fitting = [pattern for pattern in patterns if fits(pattern, host, port)]
    if not fitting:
        raise Refused(f"{host}:{port} is not among network.hosts ({', '.join(patterns)})")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Refused(f"{host} was not found: {error}") from error
    is_exact = any(not pattern.startswith("*") for pattern in fitting)
    for *_, place in found:
        address = ipaddress.ip_address(str(place[0]).partition("%")[0])
        inner = _inner(address)
        if str(address) == host or (not _is_own(inner) and (is_exact or inner.is_global)):
            return str(place[0]), port
    raise Refused(f"{host} leads to an address of this machine or of a private network")


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, if it does, else itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    found = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
    if not found and any(address in net for net in V4_NETS) and int(address) > 1:
        found = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return found or address


def _is_own(address: Address) -> bool:
    """Of this machine or its link, or where clouds keep their keys."""
    kinds = (address.is_loopback, address.is_link_local, address.is_unspecified, address.is_multicast)
    if any(kinds) or address in METADATA:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Only an address of this machine can be bound.
        probe.bind((str(address), 0))
        return True
    return False


class Proxy:
    """Runs in threads of its own from `start` to `close`. `refused`: hosts that were asked for in vain."""

    def __init__(self, hosts: Sequence[str], path: Path) -> None:
        self.hosts = tuple(hosts)
        self.path = path
        self.refused: set[str] = set()
        self._server: _Server | None = None

    def start(self) -> None:
        if self._server is None:
            self.path.unlink(missing_ok=True)
            self._server = _Server(str(self.path), self)
            threading.Thread(target=self._server.serve_forever, name="k3agent-proxy", daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def take_refused(self) -> list[str]:
        found, self.refused = sorted(self.refused), set()
        return found


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(self, path: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self.free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(path, _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Each one costs the agent a thread and open files, of which it has few."""
        if self.free.acquire(timeout=PLACE_S):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that breaks is the command's affair; nothing is printed into the agent's screen."""


class _Connection(socketserver.BaseRequestHandler):
    request: socket.socket

    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        self._proxy = self.server.proxy
        self.request.settimeout(CONNECT_S)
        try:
            head, rest = self._read_head()
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
            if method == "CONNECT":
                self._tunnel(target, rest)
            else:
                self._forward(method, target, head, rest)
        except Refused as error:
            self._answer(403, str(error))
        except (ValueError, UnicodeDecodeError):
            self._answer(400, "the request is not understood")
        except OSError as error:
            self._answer(502, f"no connection: {error}")

    def _read_head(self) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.request.recv(PIECE_BYTES)
            if not piece or len(data) > MAX_HEAD_BYTES:
                raise ValueError("no request")
            data += piece
        head, _, rest = data.partition(b"\r\n\r\n")
        return head, rest

    def _connect(self, host: str, port: int) -> socket.socket:
        try:
            place = address_of(host, port, self._proxy.hosts)
        except Refused:
            self._proxy.refused.add(f"{host}:{port}")
            raise
        return socket.create_connection(place, timeout=CONNECT_S)

    def _tunnel(self, target: str, rest: bytes) -> None:
        host, port = split_port(target)
        with self._connect(host, port or 443) as upstream:
            self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            upstream.sendall(rest)
            pump(self.request, upstream)

    def _forward(self, method: str, target: str, head: bytes, rest: bytes) -> None:
        url = urlsplit(target)
        if url.scheme != "http" or not url.hostname:
            raise ValueError("not a request to a proxy")
        host, port = url.hostname.rstrip(".").lower(), url.port or 80
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        kept = [
            f"{method} {path} HTTP/1.1".encode("ascii"),
            f"Host: {url.netloc.rpartition('@')[2]}".encode("ascii"),
        ]
        for line in head.split(b"\r\n")[1:]:
            name = line.partition(b":")[0].strip().lower()
            # The host is the one that was judged; a second request on this connection could name another.
            if name not in (b"host", b"connection", b"keep-alive") and not name.startswith(b"proxy-"):
                kept.append(line)
        with self._connect(host, port) as upstream:
            upstream.sendall(b"\r\n".join([*kept, b"Connection: close", b"", b""]) + rest)
            pump(self.request, upstream)

    def _answer(self, code: int, text: str) -> None:
        body = f"k3agent: {text}\n".encode("utf-8", "replace")
        length = f"Content-Length: {len(body)}"
        head = f"HTTP/1.1 {code} Refused by the sandbox\r\n{length}\r\nConnection: close\r\n\r\n"
        with contextlib.suppress(OSError):
            self.request.sendall(head.encode("ascii") + body)


def pump(first: socket.socket, second: socket.socket) -> None:
    """Pass bytes both ways until both sides have ended, or nothing has come for long."""
    for side in (first, second):
        side.settimeout(IDLE_S)
    back = threading.Thread(target=_copy, args=(second, first), daemon=True)
    back.start()
    _copy(first, second)
    back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

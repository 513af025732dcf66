"""Connections to endpoints: one that is gone is noticed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from k3agent.providers import transport


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "through a proxy"])
async def test_the_kernel_looks_after_silent_connections(
    proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a sleep of the machine or a change of the network nobody tells that the other end is gone."""
    asked, done = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        await done.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    base = address
    if proxied:
        monkeypatch.setenv("HTTP_PROXY", address)
        for name in ("http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        base = "http://endpoint.example"
    opened: list[socket.socket] = []
    create = socket.socket.setsockopt

    def noted(self: socket.socket, *arguments: int) -> None:
        create(self, *arguments)
        if arguments[:2] == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            opened.append(self)

    client = transport.make_client(base, 5.0)
    monkeypatch.setattr(socket.socket, "setsockopt", noted)
    request = asyncio.create_task(client.get(f"{base}/models"))
    await asyncio.wait_for(asked.wait(), 30)
    (connection,) = opened
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    if hasattr(socket, "TCP_KEEPIDLE"):
        idle = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        count = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert (idle, count) == (transport.KEEPALIVE_IDLE_S, transport.KEEPALIVE_COUNT)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await client.aclose()
    done.set()
    server.close()
    await server.wait_closed()

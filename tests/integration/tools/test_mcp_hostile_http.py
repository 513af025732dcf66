"""Servers with an address that answer with what nobody can hold, or lead elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from k3agent.tools.mcp import oauth
from k3agent.tools.mcp.http import HttpTransport
from k3agent.tools.mcp.oauth import AuthError, discover
from k3agent.types import ServerSpec

Answer = Callable[[str, asyncio.StreamWriter], Any]


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """A server whose `answer` writes all of an answer to the request for a path; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = next(
                (row[15:] for row in head.splitlines() if row.lower().startswith("content-length")), "0"
            )
            await reader.readexactly(int(size))
            await answer(head.split(" ")[1], writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def whole(body: bytes, kind: str = "application/json", status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def packed(layers: int) -> bytes:
    body = b"\0" * (1 << 24)
    for _ in range(layers):
        body = gzip.compress(body)
    return whole(body, more=f"content-encoding: {', '.join(['gzip'] * layers)}\r\n")


ANSWERS = [
    (packed(2), "compressed"),
    (whole(b"", status="307 Moved", more="location: file:///etc/passwd\r\n"), "leads to file:///etc/passwd"),
    (whole(json.dumps({"jsonrpc": "2.0", "id": 99, "result": {}}).encode()), "none to this request"),
    (whole(b'{"jsonrpc": "2.0", "id": "1", "result": {}}'), "none to this request"),
    (whole(b"[" * 900 + b'{"id": 1, "result": {}}' + b"]" * 900), "none to this request"),
    (whole(b"[" * 100_000), "no JSON"),
    (whole(b"{}", more=f"x: {'h' * 3_000_000}\r\n"), "cannot be reached"),
    (whole(b"data:\n" * 12_000_000, kind="text/event-stream"), "cut before the answer"),
]


@pytest.mark.parametrize("number", range(len(ANSWERS)))
async def test_an_answer_that_is_none_ends_the_request_at_once(number: int) -> None:
    data, words = ANSWERS[number]

    async def answer(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    got: asyncio.Queue[Any] = asyncio.Queue()
    async with serving(answer) as base:
        spec = ServerSpec(name="far", url=f"{base}/mcp")
        transport = HttpTransport(spec, got.put_nowait, lambda reason: None, None)
        await transport.start()
        transport.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}})
        while True:
            said = await asyncio.wait_for(got.get(), 120)
            if isinstance(said, dict) and said.get("id") == 1 and "error" in said:
                break
        await transport.aclose()
    assert words in said["error"]["message"]


async def endless(writer: asyncio.StreamWriter, kind: str) -> None:
    writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n".encode())
    while not writer.is_closing():
        writer.write(b": x\n\n" * 8192)
        await writer.drain()


@pytest.mark.parametrize("issuer", ["http://[", "file:///etc/passwd", "http://example.org", "https://"])
async def test_an_issuer_that_is_no_place_for_tokens_is_refused_in_words(issuer: str) -> None:
    async def answer(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(json.dumps({"authorization_servers": [issuer]}).encode()))
        await writer.drain()

    async with serving(answer) as base:
        with pytest.raises(AuthError, match="address"):
            await discover(ServerSpec(name="far", url=f"{base}/mcp"))


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"resource": "http://["}', packed(2)])
async def test_metadata_that_nobody_can_read_is_refused_in_words(body: bytes) -> None:
    async def answer(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(body if body.startswith(b"HTTP") else whole(body))
        await writer.drain()

    async with serving(answer) as base:
        with pytest.raises(AuthError):
            endpoints = await discover(ServerSpec(name="far", url=f"{base}/mcp"))
            # As for a server of before the discovery: then its token is none.
            await oauth.request_token(endpoints.token, {}, {"client_id": "c"})


async def test_metadata_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "HTTP_S", 5.0)

    async def answer(path: str, writer: asyncio.StreamWriter) -> None:
        await endless(writer, "text/event-stream" if path == "/mcp" else "application/json")

    async with serving(answer) as base:
        with pytest.raises(AuthError):
            endpoints = await asyncio.wait_for(discover(ServerSpec(name="far", url=f"{base}/mcp")), 100)
            await asyncio.wait_for(oauth.request_token(endpoints.token, {}, {"client_id": "c"}), 100)

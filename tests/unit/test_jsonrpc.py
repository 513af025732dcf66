"""JSON-RPC between two peers in one process: answers, errors, order, what is gone and what is nonsense."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.jsonrpc import METHOD_NOT_FOUND, PARSE_ERROR, Peer, RpcClosed, RpcError


def pair(**options: Any) -> tuple[Peer, Peer, list[Any]]:
    """A client and a server whose messages travel as JSON; `options` are the server's."""
    sent: list[Any] = []
    peers: list[Peer] = []

    def to(number: int, message: dict[str, Any]) -> None:
        sent.append(message)
        asyncio.get_running_loop().call_soon(peers[number].receive_line, json.dumps(message).encode())

    peers.append(Peer(lambda m: to(1, m), cancels=lambda number: ("cancel", {"id": number})))
    peers.append(Peer(lambda m: to(0, m), **options))
    return peers[0], peers[1], sent


async def test_answers_find_their_requests() -> None:
    async def echo(method: str, params: dict[str, Any]) -> Any:
        await asyncio.sleep(params["after"])
        return {"said": params["text"]}

    client, _, _ = pair(on_request=echo)
    slow = asyncio.create_task(client.request("echo", {"text": "slow", "after": 0.05}))
    quick = await client.request("echo", {"text": "quick", "after": 0})
    assert (quick, await slow) == ({"said": "quick"}, {"said": "slow"})


async def test_errors_and_crashes_are_answers() -> None:
    async def fail(method: str, params: dict[str, Any]) -> Any:
        if method == "known":
            raise RpcError(7, "no", {"more": 1})
        raise ZeroDivisionError("oops")

    client, _, _ = pair(on_request=fail)
    with pytest.raises(RpcError) as known:
        await client.request("known", {})
    assert (known.value.code, str(known.value), known.value.data) == (7, "no", {"more": 1})
    with pytest.raises(RpcError, match="ZeroDivisionError"):
        await client.request("crash", {})
    lone, _, _ = pair()
    with pytest.raises(RpcError) as unknown:
        await lone.request("nothing", {})
    assert unknown.value.code == METHOD_NOT_FOUND


async def test_who_stops_waiting_says_so() -> None:
    heard: list[Any] = []

    async def never(method: str, params: dict[str, Any]) -> Any:
        await asyncio.sleep(3600)

    client, server, _ = pair(on_request=never, on_notification=lambda m, p: heard.append((m, p)))
    with pytest.raises(TimeoutError):
        await client.request("never", {}, timeout_s=0.01)
    await asyncio.sleep(0.01)
    assert heard == [("cancel", {"id": 1})]
    server.cancel(1)
    waiting = asyncio.create_task(client.request("never", {}))
    await asyncio.sleep(0.01)
    client.close("it is gone")
    with pytest.raises(RpcClosed, match="gone"):
        await waiting
    with pytest.raises(RpcClosed):
        await client.request("more", {})


@given(st.one_of(st.binary(max_size=40), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "method", "params", "result", "error", "jsonrpc"]), inner, max_size=4),
    max_leaves=8).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_nonsense_never_breaks_a_peer(line: bytes) -> None:
    async def scenario() -> None:
        sent: list[Any] = []

        async def echo(method: str, params: dict[str, Any]) -> Any:
            return method

        peer = Peer(sent.append, on_request=echo)
        peer.receive_line(line)
        peer.receive({"jsonrpc": "2.0", "id": "last", "method": "still", "params": {}})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert {"jsonrpc": "2.0", "id": "last", "result": "still"} in sent

    asyncio.run(scenario())


async def test_a_line_that_is_no_json_is_answered() -> None:
    sent: list[Any] = []
    Peer(sent.append).receive_line(b"{nonsense")
    assert sent[0]["error"]["code"] == PARSE_ERROR
    assert sent[0]["id"] is None


def test_a_batch_in_a_batch_is_no_batch() -> None:
    sent: list[Any] = []
    peer = Peer(sent.append)
    peer.receive_line(b"[" * 900 + b"]" * 900)
    peer.receive_line(b'[[{"jsonrpc": "2.0", "method": "x"}], 5]')
    assert [answer["error"]["code"] for answer in sent] == [-32600] * 3

"""Streams of events: however they are cut into pieces, the messages are the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from k3agent.tools.mcp import http
from k3agent.types import ServerSpec


class Response:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def read(data: bytes, cuts: list[int]) -> tuple[list[str], http.StreamState]:
    places = sorted({min(cut, len(data)) for cut in cuts})
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    state = http.StreamState()

    async def all_events() -> list[str]:
        return [event async for event in http.events(Response([piece for piece in pieces if piece]), state)]

    return asyncio.run(all_events()), state


MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=5)


@given(MESSAGES, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 400), max_size=12))
def test_events_are_read_whatever_ends_their_lines_and_wherever_they_are_cut(
    messages: list[dict[str, str]], end: str, cuts: list[int]
) -> None:
    lines = [": a comment", "retry: 250", ""]
    for number, message in enumerate(messages):
        # As JavaScript writes it: U+2028 and the like stand in it as they are.
        lines += [f"id: {number}", "event: message", f"data: {json.dumps(message, ensure_ascii=False)}", ""]
    data = (end.join(lines) + end).encode("utf-8", "replace")
    events, state = read(data, cuts)
    assert [json.loads(event) for event in events] == [
        json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")) for message in messages
    ]
    assert state.retry_s == 0.25
    assert state.last_id == (str(len(messages) - 1) if messages else "")


def test_data_of_several_lines_is_one_text_and_an_unfinished_event_is_none() -> None:
    events, _ = read(b"data: a\ndata: b\n\ndata: never ended", [])
    assert events == ["a\nb"]


async def test_a_header_that_cannot_be_sent_is_told_at_once() -> None:
    got: asyncio.Queue[Any] = asyncio.Queue()
    spec = ServerSpec(name="far", url="http://127.0.0.1:9/mcp", headers={"x-key": "\u2192"})
    transport = http.HttpTransport(spec, got.put_nowait, lambda reason: None, None)
    await transport.start()
    transport.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})
    answer = await asyncio.wait_for(got.get(), 60)
    await transport.aclose()
    assert answer["id"] == 1 and "no request to" in answer["error"]["message"]

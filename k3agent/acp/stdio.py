"""A server of JSON lines over this process's standard input and output.

Both are read and written by threads with plain system calls: they may be pipes, sockets or files, and an
editor that reads slowly holds up nobody. Whatever else prints goes to standard error from then on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from k3agent.jsonrpc import Cancels, Peer
from k3agent.types import JsonObject

log = logging.getLogger(__name__)

END_LIMIT_S = 5.0
MAX_LINE_BYTES = 128 * 1024 * 1024


class StandardStreams:
    """`on_line` and `on_end` are called in the event loop: a line has come; the other side is gone, which one
    of the two streams shows. Made once in a process.
    """

    def __init__(self, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_line, self._on_end = on_line, on_end
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._out = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        self._writer = threading.Thread(target=self._write, name="stdout", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def send(self, message: JsonObject) -> None:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        self._lines.put(text.encode("utf-8", "replace") + b"\n")

    def close(self, limit_s: float = 2.0) -> None:
        """Write what is left, at most for `limit_s`."""
        self._lines.put(None)
        self._writer.join(limit_s)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._out, view) :]
            except OSError:
                self._tell(self._on_end)
                return

    def _read(self) -> None:
        rest = bytearray()
        poll = select.poll()
        poll.register(0, select.POLLIN)
        # A reader that is gone is told of unasked, also where nothing is to be written for long.
        poll.register(self._out, 0)
        while True:
            ready = dict(poll.poll())
            if ready.get(self._out, 0) & (select.POLLERR | select.POLLHUP):
                break
            if 0 not in ready:
                poll.unregister(self._out)
                continue
            try:
                piece = os.read(0, 1 << 16)
            except OSError:
                break
            if not piece:
                break
            searched = len(rest)
            rest += piece
            while (end := rest.find(b"\n", searched)) >= 0:
                self._tell(self._on_line, bytes(rest[:end]))
                del rest[: end + 1]
                searched = 0
            if len(rest) > MAX_LINE_BYTES:
                break
        self._tell(self._on_end)

    def _tell(self, heard: Callable[..., None], *values: bytes) -> None:
        try:
            self._loop.call_soon_threadsafe(heard, *values)
        except RuntimeError:
            # The loop has ended before the input has.
            return


class Served(Protocol):
    """Who answers. `peer` is set before the first message comes."""

    peer: Peer

    async def request(self, method: str, params: JsonObject) -> Any: ...

    def notification(self, method: str, params: JsonObject) -> None: ...

    async def aclose(self) -> None: ...


async def serve(server: Served, cancels: Cancels | None = None) -> int:
    """Until the other side closes a stream, or a signal comes: its number, or 0. `cancels`: see `Peer`."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(signum: int) -> None:
        if not ended.done():
            ended.set_result(signum)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    streams: StandardStreams | None = None
    peer = Peer(
        lambda message: streams.send(message) if streams is not None else None,
        on_request=server.request,
        on_notification=server.notification,
        cancels=cancels,
    )
    server.peer = peer
    streams = StandardStreams(peer.receive_line, lambda: end(0))
    signum = await ended
    peer.close("the other side has closed the connection")
    try:
        async with asyncio.timeout(END_LIMIT_S):
            await server.aclose()
    except TimeoutError:
        log.warning("some sessions did not end in time")
    streams.close()
    return signum

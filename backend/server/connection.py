"""One HTTP connection: uvicorn's, with limits that it lacks and errors in the API's shape.

A head that does not come, or a client that does not read, does not keep a connection; there are only so many
of them.
"""

import asyncio
import json
import socket
import struct
import uuid
from functools import partial
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from k3agent.backend.server.errors import HttpError, OverloadedError, error_body, status_of
from k3agent.backend.server.stream import ABORT_KEY, STALL_S

MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 64 << 10
# what the kernel holds for a client that does not read is bounded, too
_SEND_BUFFER = 64 << 10
_LINGER_S = 1.0


class Connection(H11Protocol):
    """`head_s` is set by the server before it listens."""

    head_s = STALL_S
    _head_timer: asyncio.TimerHandle | None = None
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.app = partial(_with_abort, self.app, transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(OverloadedError("too many connections"))
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._head_timer is None and not self.transport.is_closing():
            self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        self._refuse(HttpError(400, "invalid_request_error", msg))

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            _cut(self.transport)
        else:
            super().timeout_keep_alive_handler()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_s, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            return
        if self.conn.trailing_data[0] and not self.transport.is_closing():
            self._refuse(HttpError(408, "invalid_request_error", "the head of the request did not come"))
        else:
            self.transport.close()

    def _refuse(self, error: HttpError) -> None:
        """Answer by hand and close: there is no request that a route could answer."""
        body = json.dumps(error_body(error)).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-trace-id": uuid.uuid4().hex,
            **error.headers,
        }
        try:
            output = self.conn.send(h11.Response(status_code=status_of(error), headers=list(headers.items())))
            output = (output or b"") + (self.conn.send(h11.Data(data=body)) or b"")
            self.transport.write(output + (self.conn.send(h11.EndOfMessage()) or b""))
        except h11.LocalProtocolError:
            # an answer is under way already: nothing may be put into it
            self.transport.close()
            return
        # closing with unread data would take the answer from the client: what still comes is thrown away
        self._is_refused = True
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)


async def _with_abort(
    app: ASGIApp, transport: asyncio.Transport, scope: Scope, receive: Receive, send: Send
) -> Any:
    """Tell the routes how to cut this connection at once."""
    return await app({**scope, ABORT_KEY: partial(_cut, transport)}, receive, send)


def _cut(transport: asyncio.Transport) -> None:
    """Close with a reset, so that the kernel, too, forgets what the client has not read."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()

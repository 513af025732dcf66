"""Reading a request's body: bounded in bytes, time, depth and number of values.

Each bound exists because one client must not be able to stop the others: the server has one event loop.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.errors import HttpError, OverloadedError

MAX_DEPTH = 100
MAX_VALUES = 2_000_000
_READ_KEY = "k3agent.body_read"
# a body may take this long, plus a second for each so many bytes
_LEAST_BYTES_PER_S = 64 << 10
_DISCARD_S = 10.0
_MANY_BODIES = 4


class BodyReader:
    """Reads JSON objects of at most `max_bytes`; all bodies that are being read share a budget."""

    def __init__(self, max_bytes: int, stall_s: float) -> None:
        self._max_bytes = max_bytes
        self._stall_s = stall_s
        self._held = 0

    async def read(self, request: Request) -> dict[str, Any]:
        """The decoded body; raises BadRequestError or HttpError."""
        return decode(await self.read_bytes(request))

    async def read_bytes(self, request: Request) -> bytes:
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            raise self._too_long()
        body = bytearray()
        try:
            async for piece in self._pieces(request):
                body += piece
                self._held += len(piece)
                if len(body) > self._max_bytes:
                    raise self._too_long()
                if self._held > _MANY_BODIES * self._max_bytes:
                    raise OverloadedError("too many large bodies at once")
            return bytes(body)
        finally:
            self._held -= len(body)

    async def discard(self, request: Request) -> bool:
        """Take and forget what the client still sends: cutting the connection could cost it the answer.

        False: something is left, so that the connection can only be closed.
        """
        if request.scope.get(_READ_KEY):
            return True
        left = 2 * self._max_bytes
        try:
            async with asyncio.timeout(min(_DISCARD_S, self._stall_s)):
                async for piece in self._pieces(request):
                    left -= len(piece)
                    if left < 0:
                        break
        except (TimeoutError, ClientDisconnect, HttpError):
            pass
        return _READ_KEY in request.scope

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        begun = time.monotonic()
        size = 0
        while True:
            deadline = begun + self._stall_s + size / _LEAST_BYTES_PER_S
            try:
                async with asyncio.timeout(min(self._stall_s, deadline - time.monotonic())):
                    message = await request.receive()
            except TimeoutError:
                text = f"the body came too slowly: {size} bytes in {time.monotonic() - begun:.0f} s"
                raise HttpError(408, "invalid_request_error", text) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            size += len(message.get("body", b""))
            is_last = not message.get("more_body", False)
            if is_last:
                request.scope[_READ_KEY] = True
            yield message.get("body", b"")
            if is_last:
                return

    def _too_long(self) -> HttpError:
        return HttpError(
            413, "invalid_request_error", f"Request exceeds the maximum size of {self._max_bytes} bytes"
        )


def decode(body: bytes | bytearray) -> dict[str, Any]:
    """A JSON object from UTF-8; NaN and infinities are no JSON."""
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except ValueError as error:
        raise BadRequestError(f"the body is not valid JSON: {error}") from error
    except RecursionError:
        raise BadRequestError(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    if not isinstance(value, dict):
        raise BadRequestError("the body must be a JSON object")
    check_shape(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def check_shape(value: dict[str, Any]) -> None:
    """Bound depth and number of values, so that what recurses or loops later stays cheap."""
    level: list[Any] = [value]
    count = 0
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for container in level:
            count += len(container)
            if count > MAX_VALUES:
                raise BadRequestError(f"the body has more than {MAX_VALUES} values")
            children = container.values() if isinstance(container, dict) else container
            inner += [child for child in children if isinstance(child, dict | list)]
        level = inner
        if not level:
            return
    raise BadRequestError(f"the body is nested deeper than {MAX_DEPTH} levels")

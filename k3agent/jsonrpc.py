"""JSON-RPC 2.0 between two equal sides: editors (ACP) and tool servers (MCP) both speak it.

A `Peer` knows no transport: what it sends goes through a function, what arrives is handed to `receive`. Each
incoming request runs as a task of its own; answers go out in the order in which they are ready.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from k3agent.errors import K3AgentError
from k3agent.types import JsonObject

log = logging.getLogger(__name__)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

Requested = Callable[[str, JsonObject], Awaitable[Any]]
Notified = Callable[[str, JsonObject], None]
Cancels = Callable[[int], tuple[str, JsonObject]]


class RpcError(K3AgentError):
    """An error answer, received or to be sent."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class RpcClosed(K3AgentError):
    """The other side is gone; whether it acted on the request is not known."""


async def _no_requests(method: str, params: JsonObject) -> Any:
    raise RpcError(METHOD_NOT_FOUND, f"unknown method {method!r}")


class Peer:
    """`send` takes one message. `cancels` makes the notification (method, params) that tells the other side
    that the request with this id is no longer waited for.
    """

    def __init__(
        self,
        send: Callable[[JsonObject], None],
        *,
        on_request: Requested = _no_requests,
        on_notification: Notified = lambda method, params: None,
        cancels: Cancels | None = None,
    ) -> None:
        self._send = send
        self._on_request = on_request
        self._on_notification = on_notification
        self._cancels = cancels
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._next_id = 0
        self._closed: str | None = None

    # --- outgoing -----------------------------------------------------------------------------------------

    async def request(self, method: str, params: JsonObject, *, timeout_s: float | None = None) -> Any:
        """The answer. Raises RpcError, RpcClosed, or TimeoutError after `timeout_s`."""
        if self._closed is not None:
            raise RpcClosed(self._closed)
        self._next_id += 1
        number = self._next_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            async with asyncio.timeout(timeout_s):
                return await future
        except (asyncio.CancelledError, TimeoutError):
            # Not where the answer has come just before: the other side has done with the request.
            is_open = future.cancelled() or not future.done()
            if is_open and self._cancels is not None and self._closed is None:
                self.notify(*self._cancels(number))
            raise
        finally:
            del self._waiting[number]

    def notify(self, method: str, params: JsonObject) -> None:
        if self._closed is None:
            self._send({"jsonrpc": "2.0", "method": method, "params": params})

    # --- incoming -----------------------------------------------------------------------------------------

    def receive_line(self, line: bytes) -> None:
        """One line of JSON. What is none is answered with an error, as the protocol wants it."""
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._answer_error(None, RpcError(PARSE_ERROR, f"no JSON: {line[:80]!r}"))
            return
        self.receive(message)

    def receive(self, message: Any) -> None:
        """One message, or a batch of them."""
        if isinstance(message, list):
            for one in message:
                self._receive_one(one)
        else:
            self._receive_one(message)

    def _receive_one(self, message: Any) -> None:
        # A batch in a batch is none: followed, a thousand of them would end the reader.
        if not isinstance(message, dict):
            self._answer_error(None, RpcError(INVALID_REQUEST, "a message must be an object"))
            return
        method = message.get("method")
        if isinstance(method, str):
            self._called(message, method)
        elif "id" in message:
            self._answered(message)
        else:
            self._answer_error(None, RpcError(INVALID_REQUEST, "a message needs a method or an id"))

    def _called(self, message: JsonObject, method: str) -> None:
        params = message.get("params")
        if params is None:
            params = {}
        number = message.get("id")
        if not isinstance(params, dict):
            if number is not None:
                self._answer_error(number, RpcError(INVALID_PARAMS, "params must be an object"))
            return
        if number is None:
            self._on_notification(method, params)
            return
        if not isinstance(number, int | str) or number in self._running:
            self._answer_error(None, RpcError(INVALID_REQUEST, f"the id {number!r} cannot be used"))
            return
        task = asyncio.create_task(self._serve(number, method, params))
        self._running[number] = task
        task.add_done_callback(lambda done: self._served(number, done))

    def _served(self, number: int | str, task: asyncio.Task[None]) -> None:
        self._running.pop(number, None)
        crash = None if task.cancelled() else task.exception()
        if crash is not None:
            log.error("a request crashed", exc_info=crash)
            text = f"k3agent crashed: {type(crash).__name__}: {crash}"
            self._answer_error(number, RpcError(INTERNAL_ERROR, text))

    async def _serve(self, number: int | str, method: str, params: JsonObject) -> None:
        try:
            result = await self._on_request(method, params)
        except RpcError as error:
            self._answer_error(number, error)
        except K3AgentError as error:
            self._answer_error(number, RpcError(INTERNAL_ERROR, str(error)))
        except asyncio.CancelledError:
            self._answer_error(number, RpcError(-32800, "the request was cancelled"))
        else:
            if self._closed is None:
                self._send({"jsonrpc": "2.0", "id": number, "result": {} if result is None else result})

    def _answer_error(self, number: Any, error: RpcError) -> None:
        if self._closed is not None:
            return
        body: JsonObject = {"code": error.code, "message": str(error)}
        if error.data is not None:
            body["data"] = error.data
        self._send({"jsonrpc": "2.0", "id": number, "error": body})

    def _answered(self, message: JsonObject) -> None:
        number = message["id"]
        future = self._waiting.get(number) if isinstance(number, int) else None
        if future is None or future.done():
            if message.get("error"):
                log.warning("the other side reports %.300s", message["error"])
            return
        error = message.get("error")
        if error is None:
            future.set_result(message.get("result"))
        elif isinstance(error, dict):
            code = error.get("code")
            text = str(error.get("message", "no message"))
            future.set_exception(
                RpcError(code if isinstance(code, int) else INTERNAL_ERROR, text, error.get("data"))
            )
        else:
            future.set_exception(RpcError(INTERNAL_ERROR, f"an error that is no object: {error!r:.200}"))

    def cancel(self, number: Any) -> None:
        """Stop serving a request of the other side."""
        task = self._running.get(number) if isinstance(number, int | str) else None
        if task is not None:
            task.cancel()

    def close(self, reason: str) -> None:
        """Nothing is sent or waited for any more; `reason` goes to all who wait."""
        if self._closed is not None:
            return
        self._closed = reason
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RpcClosed(reason))
        for task in list(self._running.values()):
            task.cancel()

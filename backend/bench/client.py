"""A chat client that only measures: when the first token came, how many came, from where the prompt was."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from k3agent.backend.errors import BackendError

Json = dict[str, Any]
_CHANNELS = ("reasoning_content", "content", "tool_calls")
_MAX_TRIES = 200


class BenchError(BackendError):
    """The server answered with an error, or not in the way it should."""


@dataclass(slots=True)
class Measured:
    """One request. Times in seconds since it was sent; `gap_s` is the longest silence within the answer."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_by_tier: dict[str, int] = field(default_factory=dict)
    completion_tokens: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    gap_s: float = 0.0
    num_chunks: int = 0
    num_refusals: int = 0
    finish_reason: str | None = None
    message: Json = field(default_factory=dict)
    """As it would go back to the server, without calls."""

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second that had to be computed."""
        return (self.prompt_tokens - self.cached_tokens) / self.first_s if self.first_s else 0.0

    @property
    def decode_rate(self) -> float:
        rest = self.total_s - self.first_s
        return (self.completion_tokens - 1) / rest if rest > 0 else 0.0


class BenchClient:
    """Talks to one server. Use as an async context manager."""

    def __init__(self, url: str, model: str, key: str | None = None, timeout_s: float = 600.0) -> None:
        self.model = model
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=url.removesuffix("/").removesuffix("/v1"),
            headers=headers,
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=None),
        )

    async def __aenter__(self) -> "BenchClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def chat(self, body: Json, leave_after: int | None = None) -> Measured:
        """Stream one answer; with `leave_after`, hang up after so many chunks. Asks a full server again."""
        body = {
            "model": self.model,
            **body,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        measured = Measured()
        for _ in range(_MAX_TRIES):
            begun = time.perf_counter()
            with _told():
                async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                    if response.status_code == 200:
                        await _take(response.aiter_lines(), measured, begun, leave_after)
                        return measured
                    text = (await response.aread()).decode(errors="replace")
            if response.status_code != 429:
                raise BenchError(f"status {response.status_code}: {text[:300]}")
            measured.num_refusals += 1
            await asyncio.sleep(0.2 * float(response.headers.get("retry-after", 1)))
        raise BenchError(f"the server was full {_MAX_TRIES} times in a row")

    async def count(self, body: Json) -> int:
        """Tokens of the prompt of a request."""
        with _told():
            response = await self._http.post("/v1/tokenize", json={"model": self.model, **body})
        return _json(response)["count"]

    async def metrics(self) -> dict[str, float]:
        """All plain values of `/metrics` by name with labels."""
        with _told():
            text = (await self._http.get("/metrics")).text
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    async def models(self) -> list[Json]:
        with _told():
            response = await self._http.get("/v1/models")
        return _json(response)["data"]

    async def window(self) -> int:
        """The model's context length."""
        return int(
            next(found["context_length"] for found in await self.models() if found["id"] == self.model)
        )


async def first_model(url: str, key: str | None) -> str:
    """The id of the first model of a server."""
    async with BenchClient(url, "", key) as client:
        return (await client.models())[0]["id"]


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong on the way is an error of the benchmark, with the address."""
    try:
        yield
    except httpx.HTTPError as error:
        raise BenchError(f"{error.request.url}: {error or type(error).__name__}") from error


def _json(response: httpx.Response) -> Any:
    if response.status_code != 200:
        raise BenchError(f"{response.url}: status {response.status_code}: {response.text[:300]}")
    return response.json()


async def _take(lines: AsyncIterator[str], measured: Measured, begun: float, leave_after: int | None) -> None:
    message: Json = {"role": "assistant", "content": "", "reasoning_content": ""}
    last = begun
    async for line in lines:
        if not line.startswith("data: "):
            continue
        now = time.perf_counter()
        if line == "data: [DONE]":
            measured.message = message
            if measured.finish_reason is None:
                raise BenchError("the stream ended without a finish reason")
            return
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise BenchError(f"an error within a stream: {chunk['error'].get('message')}")
        _add_usage(measured, chunk.get("usage"))
        for choice in chunk["choices"]:
            delta = choice["delta"]
            measured.finish_reason = choice["finish_reason"] or measured.finish_reason
            if not any(delta.get(name) for name in _CHANNELS):
                continue
            if not measured.num_chunks:
                measured.first_s = now - begun
            else:
                measured.gap_s = max(measured.gap_s, now - last)
            last = now
            measured.num_chunks += 1
            measured.total_s = now - begun
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
        if leave_after is not None and measured.num_chunks >= leave_after:
            return
    raise BenchError("the stream broke off before [DONE]")


def _add_usage(measured: Measured, usage: Json | None) -> None:
    if not usage:
        return
    measured.prompt_tokens = usage["prompt_tokens"]
    measured.completion_tokens = usage["completion_tokens"]
    details = usage.get("prompt_tokens_details") or {}
    measured.cached_tokens = details.get("cached_tokens", 0)
    measured.cached_by_tier = details.get("cached_tokens_by_tier") or {}

"""What the agent knows of a model: `ModelClient` and the facts in `ModelInfo`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from k3agent.types import Delta, Effort, Request, Usage

# Of one answer, where neither the user, the list of known models nor the endpoint says it.
MAX_OUTPUT_TOKENS = 32_000


class Profile(StrEnum):
    """How much prompt a model is given: `full` for real K3, `compact` for the embedded model."""

    FULL = "full"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """USD per million tokens."""

    input: float = 0.0
    cached_input: float = 0.0
    output: float = 0.0

    def cost_usd(self, usage: Usage) -> float:
        """Source: kimi-api.md section 5; output includes reasoning."""
        fresh = usage.input_tokens - usage.cached_tokens
        paid = (
            fresh * self.input + usage.cached_tokens * self.cached_input + usage.output_tokens * self.output
        )
        return paid / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts of one model at one endpoint. `context_window` in tokens; `why` tells people why it was
    chosen.
    """

    provider: str
    model: str
    base_url: str
    context_window: int
    max_output_tokens: int
    efforts: tuple[Effort, ...] = (Effort.LOW, Effort.HIGH, Effort.MAX)
    default_effort: Effort = Effort.HIGH
    profile: Profile = Profile.FULL
    prices: Prices = Prices()
    why: str = ""
    # A small model that was not trained on instruction files is better off without them.
    reads_instructions: bool = True


class ModelClient(Protocol):
    """One model at one endpoint.

    `info` is final once `connect` has returned (the bundled server starts there; the window is read from the
    endpoint). `stream` yields deltas and ends with `Finished`, or raises `ProviderError`; it retries what
    makes sense to retry, announcing each by a `RetryDelta`. Cancelling the iteration closes the connection.
    """

    @property
    def info(self) -> ModelInfo: ...

    async def connect(self) -> None: ...

    def stream(self, request: Request) -> AsyncIterator[Delta]: ...

    async def aclose(self) -> None: ...

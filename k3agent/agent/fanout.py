"""What subagents will cost, said before they start, and the endpoint that they share.

A projection takes each step to read what the steps before it wrote: most of it from the provider's cache.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.providers.base import ModelClient, ModelInfo
from k3agent.types import Delta, Request, TaskBrief, Usage

# A usual subagent: so many steps, each adding so much to its conversation and writing so much itself.
USUAL_STEPS = 12
STEP_INPUT_TOKENS = 1_500
STEP_OUTPUT_TOKENS = 500
CHARS_PER_TOKEN = 4

# Nothing that one subagent did: the next request of any other would fail the same way.
PROVIDER_WIDE = frozenset(
    (
        ProviderErrorKind.AUTH,
        ProviderErrorKind.QUOTA,
        ProviderErrorKind.RATE,
        ProviderErrorKind.SERVER,
        ProviderErrorKind.CONNECTION,
        ProviderErrorKind.NOT_FOUND,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Tokens and money of a fan-out: what is likely, and the limits of its subagents together."""

    tokens: int
    usd: float
    most_usd: float

    @property
    def text(self) -> str:
        money = f"${self.usd:.2f}, at most ${self.most_usd:.2f}; " if self.usd else ""
        return f"about {money}{self.tokens:,} tokens"


def project(info: ModelInfo, fixed_tokens: int, briefs: Sequence[tuple[TaskBrief, int, float]]) -> Projection:
    """`briefs`: each with the most model calls and the most money that it is given; `fixed_tokens`: what
    every request begins with.
    """
    usage, most_usd = Usage(), 0.0
    for brief, max_turns, max_usd in briefs:
        context = fixed_tokens + len(brief.brief) // CHARS_PER_TOKEN
        cached = 0
        for _ in range(min(USUAL_STEPS, max_turns)):
            usage += Usage(input_tokens=context, cached_tokens=cached, output_tokens=STEP_OUTPUT_TOKENS)
            cached, context = context, context + STEP_INPUT_TOKENS + STEP_OUTPUT_TOKENS
        most_usd += max_usd
    usd = info.prices.cost_usd(usage)
    return Projection(tokens=usage.input_tokens + usage.output_tokens, usd=usd, most_usd=max(usd, most_usd))


class SharedClient:
    """The session's endpoint as its subagents have it. The first failure that concerns all of them closes it:
    from then on every request gets that failure, without being sent.
    """

    def __init__(self, client: ModelClient) -> None:
        self._client = client
        self.failure: ProviderError | None = None

    @property
    def info(self) -> ModelInfo:
        return self._client.info

    async def connect(self) -> None:
        """The session has connected it."""

    async def aclose(self) -> None:
        """The session's owner closes it."""

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        if self.failure is not None:
            raise self.failure
        deltas = self._client.stream(request)
        try:
            async for delta in deltas:
                yield delta
        except ProviderError as error:
            if error.kind in PROVIDER_WIDE and self.failure is None:
                self.failure = error
            raise
        finally:
            close = getattr(deltas, "aclose", None)
            if close is not None:
                await close()

"""Prefill and decode of a served model, apart: cold, with a prefix hit, and after a restart."""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3agent.backend.bench.client import BenchClient, BenchError, Json, Measured
from k3agent.backend.bench.words import Lengths, text_of, user

PHASES = ("cold", "hit", "restart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Users who ask at the same time, in one phase at one length; medians over users."""

    phase: str
    context: int
    users: int
    prompt_tokens: int
    cached_tokens: int
    cached_by_tier: dict[str, int]
    first_token_s: float
    prefill_tokens_per_s: float
    """Computed prompt tokens of all users by the time until the last one's first token."""
    decode_tokens_per_s: float
    """Of one user, after the first token."""
    total_decode_tokens_per_s: float


class Measurement:
    """The conversations of one run: each combination of length and users begins new ones and goes on with
    them.
    """

    def __init__(self, num_tokens: int, tell: Callable[[str], None]) -> None:
        self._num_tokens = num_tokens
        self._tell = tell
        self._conversations: dict[tuple[int, int], list[list[Json]]] = {}
        self._seed = 0

    async def before(self, client: BenchClient, contexts: Sequence[int], users: Sequence[int]) -> list[Row]:
        """Cold and hit for each combination."""
        lengths = await Lengths.of(client)
        window = await client.window()
        rows: list[Row] = []
        for context in contexts:
            if context + 3 * self._num_tokens + lengths.overhead > window:
                raise BenchError(
                    f"--contexts {context}: with the answers that is more than the model's window of {window}"
                )
            for count in users:
                words = lengths.words(context)
                begun = [user(text_of(self._next_seed(), words))["messages"] for _ in range(count)]
                self._conversations[context, count] = begun
                rows.append(await self._phase(client, "cold", context, begun))
                rows.append(await self._phase(client, "hit", context, begun))
        return rows

    async def after(self, client: BenchClient) -> list[Row]:
        """The same conversations go on; for a server that was started anew in between."""
        return [
            await self._phase(client, "restart", context, begun)
            for (context, _), begun in self._conversations.items()
        ]

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed

    async def _phase(
        self, client: BenchClient, phase: str, context: int, conversations: list[list[Json]]
    ) -> Row:
        self._tell(f"{phase}, {context} tokens, {len(conversations)} at once")
        found = await asyncio.gather(*(self._ask(client, messages) for messages in conversations))
        for messages, measured in zip(conversations, found, strict=True):
            messages += [measured.message, *user("Go on.")["messages"]]
        return _row(phase, context, found)

    async def _ask(self, client: BenchClient, messages: list[Json]) -> Measured:
        body: Json = {"messages": messages, "max_tokens": self._num_tokens, "temperature": 1, "seed": 1}
        return await client.chat({**body, "ignore_eos": True})


def _row(phase: str, context: int, found: Sequence[Measured]) -> Row:
    tiers: dict[str, int] = {}
    for measured in found:
        for tier, count in measured.cached_by_tier.items():
            tiers[tier] = tiers.get(tier, 0) + count
    computed = sum(m.prompt_tokens - m.cached_tokens for m in found)
    decode = [m.decode_rate for m in found]
    last_first = max(m.first_s for m in found)
    seconds = max(m.total_s for m in found) - min(m.first_s for m in found)
    return Row(
        phase=phase,
        context=context,
        users=len(found),
        prompt_tokens=round(statistics.median(m.prompt_tokens for m in found)),
        cached_tokens=round(statistics.median(m.cached_tokens for m in found)),
        cached_by_tier=tiers,
        first_token_s=statistics.median(m.first_s for m in found),
        prefill_tokens_per_s=computed / last_first if last_first else 0.0,
        decode_tokens_per_s=statistics.median(decode),
        total_decode_tokens_per_s=sum(m.completion_tokens - 1 for m in found) / seconds if seconds else 0.0,
    )

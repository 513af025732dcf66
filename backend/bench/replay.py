"""A replay of an agent's day: sessions that grow turn by turn, retry, branch off helpers and are edited.

What a perfect cache would find is known for each request, so the share that was found can be told.
"""

import asyncio
import json
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.backend.bench.client import BenchClient, BenchError, Json, Measured
from k3agent.backend.bench.words import text_of, user

_STUB_TOKENS = 3
"""The model's opening of its answer is part of the prompt, but is not counted as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the sessions go. Shares are chances at each turn."""

    sessions: int = 4
    turns: int = 8
    system_words: int = 300
    turn_words: tuple[int, int] = (10, 150)
    max_tokens: int = 48
    retry_share: float = 0.1
    helper_share: float = 0.15
    edit_share: float = 0.1
    seed: int = 0


@dataclass(slots=True)
class Tally:
    """Sums over requests. `known` tokens: prompt or answer of an earlier request with the same beginning."""

    requests: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    known_tokens: int = 0
    found_tokens: int = 0
    cached_by_tier: Counter[str] = field(default_factory=Counter)
    completion_tokens: int = 0
    first_s: list[float] = field(default_factory=list)

    def add(self, kind: str, measured: Measured, known: int) -> None:
        known = min(known, measured.prompt_tokens)
        self.requests[kind] += 1
        self.prompt_tokens += measured.prompt_tokens
        self.cached_tokens += measured.cached_tokens
        self.known_tokens += known
        self.found_tokens += min(known, measured.cached_tokens)
        self.cached_by_tier.update(measured.cached_by_tier)
        self.completion_tokens += measured.completion_tokens
        self.first_s.append(measured.first_s)

    def summary(self) -> Json:
        ordered = sorted(self.first_s)
        return {
            "requests": dict(self.requests),
            "prompt_tokens": self.prompt_tokens,
            "recomputed_tokens": self.prompt_tokens - self.cached_tokens,
            "new_tokens": self.prompt_tokens - self.known_tokens,
            "cached_tokens": self.cached_tokens,
            "cached_by_tier": dict(self.cached_by_tier),
            "found_share": self.found_tokens / self.known_tokens if self.known_tokens else 1.0,
            "completion_tokens": self.completion_tokens,
            "first_token_median_s": statistics.median(ordered) if ordered else 0.0,
            "first_token_p95_s": ordered[int(0.95 * (len(ordered) - 1))] if ordered else 0.0,
        }


class _Session:
    """One conversation; `ends` are the tokens of prompt and answer after each of its turns."""

    def __init__(self, client: BenchClient, script: Script, tally: Tally, seed: int, system: Json) -> None:
        self._client = client
        self._script = script
        self._tally = tally
        self._rng = random.Random(seed)
        self._seed = seed
        self._system = system
        self._messages: list[Json] = [system]
        self._ends: list[int] = []

    async def run(self, system_tokens: int, turns: int, *, is_helper: bool = False) -> None:
        for turn in range(turns):
            self._messages += self._said(turn)
            known = self._ends[-1] if self._ends else system_tokens
            measured = await self._ask("helper" if is_helper else "turn", known)
            if not is_helper:
                measured = await self._perhaps(turn, measured, system_tokens)
            self._messages.append(measured.message)
            self._ends.append(_end_of(measured))

    async def _perhaps(self, turn: int, measured: Measured, system_tokens: int) -> Measured:
        """What happens between two turns; the answer that stands in the end."""
        script = self._script
        if self._rng.random() < script.retry_share:
            measured = await self._ask("retry", measured.prompt_tokens)
        if turn > 1 and self._rng.random() < script.edit_share:
            # the last question is asked in other words
            self._messages[-1:] = self._said(turn + 1000)
            measured = await self._ask("edit", self._ends[-1])
        if self._rng.random() < script.helper_share:
            helper = _Session(self._client, script, self._tally, self._seed * 1000 + turn, self._system)
            await helper.run(system_tokens, 2, is_helper=True)
        return measured

    def _said(self, turn: int) -> list[Json]:
        words = self._rng.randint(*self._script.turn_words)
        return user(text_of(self._seed * 100_000 + turn, words))["messages"]

    async def _ask(self, kind: str, known: int) -> Measured:
        body: Json = {"messages": self._messages, "max_tokens": self._script.max_tokens}
        body |= {"temperature": 1, "seed": self._rng.randrange(1000)}
        measured = await self._client.chat(body)
        self._tally.add(kind, measured, known)
        return measured


def _end_of(measured: Measured) -> int:
    return measured.prompt_tokens + _STUB_TOKENS + measured.completion_tokens


async def replay(client: BenchClient, script: Script) -> Json:
    """Play all sessions at once."""
    system: Json = {"role": "system", "content": text_of(script.seed, script.system_words)}
    # the first one alone, so that the shared beginning is known to the others
    system_tokens = await client.count({"messages": [system]})
    tally = Tally()
    seeds = [script.seed * 100 + number for number in range(1, script.sessions + 1)]
    sessions = [_Session(client, script, tally, seed, system) for seed in seeds]
    await sessions[0].run(0, 1)
    turns = [script.turns - 1, *(script.turns for _ in sessions[1:])]
    await asyncio.gather(
        *(session.run(system_tokens, count) for session, count in zip(sessions, turns, strict=True))
    )
    return tally.summary()


def recorded(file: Path) -> list[Json]:
    """The requests of a trace, one JSON body a line."""
    bodies: list[Json] = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if line.strip():
            try:
                body = json.loads(line)
                bodies.append({key: body[key] for key in ("messages", "tools", "tool_choice") if key in body})
            except (ValueError, TypeError) as error:
                raise BenchError(f"{file}, line {number} is no JSON object: {error}") from error
    return bodies


async def replay_recorded(client: BenchClient, bodies: Sequence[Json], max_tokens: int) -> Json:
    """Play requests in their order; what a cache should know of them is not known, so it is not told."""
    tally = Tally()
    for body in bodies:
        tally.add("recorded", await client.chat({**body, "max_tokens": max_tokens}), 0)
    summary = tally.summary()
    for name in ("new_tokens", "found_share"):
        del summary[name]
    return summary


def told(summary: Json) -> str:
    """The summary for people."""
    requests: dict[str, int] = summary["requests"]
    lines = [
        f"{sum(requests.values())} requests: " + ", ".join(f"{n} {kind}" for kind, n in requests.items())
    ]
    lines.append(
        f"{summary['prompt_tokens']} tokens of prompt, {summary['recomputed_tokens']} of them computed"
        + (f"; {summary['new_tokens']} were new" if "new_tokens" in summary else "")
    )
    tiers: Sequence[str] = [f"{n} from {tier}" for tier, n in summary["cached_by_tier"].items() if n]
    if tiers:
        lines.append("cached: " + ", ".join(tiers))
    if "found_share" in summary:
        lines.append(f"{100 * summary['found_share']:.1f} % of what a perfect cache would find")
    lines.append(
        f"first token: median {summary['first_token_median_s']:.3f} s,"
        f" 95th percentile {summary['first_token_p95_s']:.3f} s"
    )
    return "\n".join(lines)

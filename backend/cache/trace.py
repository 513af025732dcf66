"""A made-up trace of coding agents at work: what their requests share, and where they part.

Sessions begin with one system text and grow by answers and tool results; now and then a message is edited, an
answer asked for again, a subagent started fresh or forked, old tool results dropped in the middle, and a long
context compacted. Tokens are serial numbers, so nothing is shared by accident.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["first", "plain", "edit", "retry", "rewrite", "compaction", "fork"]


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Sizes in tokens, chances per turn."""

    sessions: int = 8
    turns: int = 30
    subagent_turns: tuple[int, int] = (6, 18)
    system: int = 20_000
    first: tuple[int, int] = (6_000, 10_000)
    answer_median: int = 650
    answer_sigma: float = 0.9
    result_median: int = 1_200
    result_sigma: float = 1.2
    result_most: int = 5_000
    """Tools cut longer results."""
    edit: float = 0.04
    retry: float = 0.03
    fresh_subagent: float = 0.06
    forked_subagent: float = 0.03
    rewrite: float = 0.02
    compact_at: int = 100_000
    summary: int = 3_000


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: its prompt, and what will be generated."""

    kind: Kind
    prompt: list[int]
    answer: list[int]
    num_live: int
    """Sessions and subagents that were at work then."""


@dataclass(slots=True)
class _Agent:
    transcript: list[int]
    turns_left: int
    last_input: int
    """Where the newest message of user or tool begins."""
    kind: Kind = "first"
    is_subagent: bool = False


class Trace:
    """Requests in the order in which they are made; live agents take turns at random."""

    def __init__(self, seed: int, settings: TraceSettings | None = None) -> None:
        self.settings = settings or TraceSettings()
        self._random = random.Random(seed)
        self._serial = 0

    def __iter__(self) -> Iterator[TraceRequest]:
        settings, rng = self.settings, self._random
        system = self._new(settings.system)
        live = [self._session(system, settings.turns) for _ in range(settings.sessions)]
        while live:
            agent = rng.choice(live)
            answer = self._new(self._size(settings.answer_median, settings.answer_sigma, 16_384))
            yield TraceRequest(agent.kind, list(agent.transcript), answer, len(live))
            agent.turns_left -= 1
            if agent.turns_left == 0:
                live.remove(agent)
                continue
            if not agent.is_subagent:
                if rng.random() < settings.fresh_subagent:
                    live.append(self._session(system, rng.randint(*settings.subagent_turns), True))
                if rng.random() < settings.forked_subagent:
                    live.append(self._fork(agent, answer))
            self._go_on(agent, answer, len(system))

    def _new(self, count: int) -> list[int]:
        begin = self._serial
        self._serial += count
        return list(range(begin, begin + count))

    def _size(self, median: int, sigma: float, most: int) -> int:
        return min(max(int(median * math.exp(self._random.gauss(0, sigma))), 8), most)

    def _session(self, system: list[int], turns: int, is_subagent: bool = False) -> _Agent:
        first = self._new(self._random.randint(*self.settings.first))
        return _Agent([*system, *first], turns, len(system), is_subagent=is_subagent)

    def _fork(self, agent: _Agent, answer: list[int]) -> _Agent:
        transcript = [*agent.transcript, *answer]
        begin = len(transcript)
        transcript += self._result()
        turns = self._random.randint(*self.settings.subagent_turns)
        return _Agent(transcript, turns, begin, "fork", is_subagent=True)

    def _result(self) -> list[int]:
        settings = self.settings
        return self._new(self._size(settings.result_median, settings.result_sigma, settings.result_most))

    def _go_on(self, agent: _Agent, answer: list[int], system_end: int) -> None:
        """Make the transcript what the agent's next request will send."""
        settings, chance = self.settings, self._random.random()
        if chance < settings.edit:
            # another wording of the newest message: it and the answer are replaced
            del agent.transcript[agent.last_input :]
            agent.kind = "edit"
        elif chance < settings.edit + settings.retry:
            agent.kind = "retry"
            return
        elif len(agent.transcript) + len(answer) > settings.compact_at:
            agent.transcript = [*agent.transcript[:system_end], *self._new(settings.summary)]
            agent.kind = "compaction"
        elif chance < settings.edit + settings.retry + settings.rewrite:
            agent.transcript += answer
            self._drop_middle(agent, system_end)
        else:
            agent.transcript += answer
            agent.kind = "plain"
        agent.last_input = len(agent.transcript)
        agent.transcript += self._result()

    def _drop_middle(self, agent: _Agent, system_end: int) -> None:
        """Old tool results are taken out: all after them has to be read again."""
        length = len(agent.transcript) - system_end
        begin = system_end + int(length * self._random.uniform(0.05, 0.5))
        del agent.transcript[begin : begin + int(length * self._random.uniform(0.05, 0.2))]
        agent.kind = "rewrite"

"""What is asked before each step: is there room within the limits, and is it the last one?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3agent.agent.diskuse import DiskUse
from k3agent.agent.options import CompactAt, Limits, Receipt
from k3agent.events import TurnOutcome
from k3agent.providers.base import Prices, Profile
from k3agent.store.records import CompactionRow
from k3agent.types import Message, Origin

# The embedded model always comes to an end, also where no limit is given.
COMPACT_STEPS = 40
RESERVE_TIME_S = 20.0
CLOSING_OUTPUT_TOKENS = 2000
MB = 1 << 20
# Below this no answer fits behind a prompt.
MIN_ROOM_TOKENS = 320
# A context is not made shorter than this for money's sake: no work would fit in.
MIN_WINDOW_TOKENS = 8_000
FREE = Prices()
MANUAL = "manual"
# Useful results between two compactions, below which they do not help.
MIN_PROGRESS = 3
# A normal step and the closing one after it, each a little dearer than the last.
TWO_STEPS = 2.5
# The beginning of what is said where a limit that somebody has set is reached.
LIMIT = "the limit of"
# For each limit its name in `Limits` and what is counted.
UNITS = {
    TurnOutcome.MAX_TURNS: ("max_turns", "model call{s}"),
    TurnOutcome.MAX_TOKENS: ("max_tokens", "token{s}"),
    TurnOutcome.MAX_BUDGET: ("max_budget_usd", "USD"),
    TurnOutcome.MAX_TIME: ("max_time_s", "second{s}"),
    TurnOutcome.MAX_DISK: ("max_disk_mb", "MB of disk"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached:
    """`is_closing`: one more step is possible, to be used for a summary."""

    outcome: TurnOutcome
    detail: str
    is_closing: bool


class LimitPolicy:
    """The hard limits of a run, with a reserve for one closing step (full profile only).

    A step costs about what the one before it cost: tokens and money stop before the limit, not after it.
    """

    def __init__(
        self,
        limits: Limits,
        receipt: Receipt,
        profile: Profile,
        elapsed_s: Callable[[], float],
        disk: DiskUse,
    ) -> None:
        self._limits = limits
        self._receipt = receipt
        self._has_reserve = profile is Profile.FULL
        self._elapsed_s = elapsed_s
        self._disk = disk
        self._disk_mb = 0.0
        if limits.max_disk_mb is not None:
            disk.begin()
        self._before = (0, 0.0)
        self._last = (0, 0.0)

    def before_step(self, *, is_first: bool) -> LimitReached | None:
        """`is_first`: nothing has been done in this turn yet, so there is nothing to summarise."""
        # What subagents used says nothing of what this session's next step will cost.
        own_usd = self._receipt.cost_usd - self._receipt.subagents_usd
        now = (self._tokens - self._receipt.subagents_tokens, own_usd)
        if now != self._before:
            self._last = (now[0] - self._before[0], now[1] - self._before[1])
            self._before = now
        if self._limits.max_disk_mb is not None:
            self._disk_mb = self._disk.grown_bytes() / MB
        found = [check for check in self._checks() if check is not None]
        hard = next((check for check in found if not check.is_closing), None)
        if hard is not None:
            return hard
        if is_first or not self._has_reserve:
            return None
        return found[0] if found else None

    def may_step(self) -> bool:
        """Whether one more model call is within the hard limits."""
        return all(check is None or check.is_closing for check in self._checks())

    def for_subagents(self) -> Limits:
        """What is left for subagents once a step of this session's own and the closing one are set aside."""
        limits, receipt = self._limits, self._receipt
        tokens, cost = self._last
        left = _left(limits.max_tokens, self._tokens, TWO_STEPS * tokens)
        turns = _left(limits.max_turns, receipt.num_turns, 2)
        return Limits(
            max_turns=None if turns is None else int(turns),
            max_tokens=None if left is None else int(left),
            max_budget_usd=_left(limits.max_budget_usd, receipt.cost_usd, TWO_STEPS * cost),
            max_time_s=_left(limits.max_time_s, self._elapsed_s(), 2 * self._time_reserve_s),
            max_disk_mb=_left(limits.max_disk_mb, self._disk_mb, 0),
        )

    @property
    def _time_reserve_s(self) -> float:
        return min(RESERVE_TIME_S, 0.1 * (self._limits.max_time_s or 0))

    @property
    def is_open(self) -> bool:
        """No limit of model calls was given."""
        return self._limits.max_turns is None

    @property
    def _tokens(self) -> int:
        return self._receipt.usage.input_tokens + self._receipt.usage.output_tokens

    def _checks(self) -> list[LimitReached | None]:
        limits, receipt = self._limits, self._receipt
        tokens, cost = self._last
        elapsed = self._elapsed_s()
        return [
            _check(limits, TurnOutcome.MAX_TURNS, receipt.num_turns, 1, 0),
            _check(limits, TurnOutcome.MAX_TOKENS, self._tokens, TWO_STEPS * tokens, tokens),
            _check(limits, TurnOutcome.MAX_BUDGET, receipt.cost_usd, TWO_STEPS * cost, cost),
            _check(limits, TurnOutcome.MAX_TIME, elapsed, self._time_reserve_s, 0),
            self._check_disk(),
        ]

    def _check_disk(self) -> LimitReached | None:
        """A closing answer takes no disk."""
        reached = _check(self._limits, TurnOutcome.MAX_DISK, self._disk_mb, 0, 0)
        return None if reached is None else dataclasses.replace(reached, is_closing=self._has_reserve)


def _left(limit: float | None, used: float, reserve: float) -> float | None:
    return None if limit is None else max(0.0, limit - used - reserve)


def _check(
    limits: Limits, outcome: TurnOutcome, used: float, reserve: float, step: float
) -> LimitReached | None:
    """`reserve`: what must be left for a normal step; `step`: what the closing one costs."""
    limit: float | None = getattr(limits, UNITS[outcome][0])
    if limit is None or used + reserve < limit:
        return None
    return LimitReached(outcome=outcome, detail=reached(limits, outcome), is_closing=used + step < limit)


def reached(limits: Limits, outcome: TurnOutcome) -> str:
    """That a limit is reached, and what has set it."""
    name, unit = UNITS[outcome]
    limit = getattr(limits, name)
    source = f" ({limits.sources[name]})" if name in limits.sources else ""
    return f"{LIMIT} {limit} {unit.format(s='' if limit == 1 else 's')}{source} is reached"


class CompactionPolicy:
    """When the context is made short, and when that has stopped to help."""

    def __init__(self, at: CompactAt, prices: Prices = FREE) -> None:
        self._at = at
        self._prices = prices

    def limit(self, window: int) -> int | None:
        """The size in tokens at which to compact a conversation; None: never by itself."""
        limits = [int(self._at.share * window)] if self._at.share else []
        if self._at.tokens is not None:
            limits.append(self._at.tokens)
        # An endpoint without a cache has every token paid in full, each step.
        price = self._prices.cached_input or self._prices.input
        if self._at.step_usd is not None and price:
            limits.append(max(MIN_WINDOW_TOKENS, int(1e6 * self._at.step_usd / price)))
        return min(*limits, window - MIN_ROOM_TOKENS) if limits else None

    @staticmethod
    def thrash(done: Sequence[CompactionRow], messages: Sequence[Message]) -> str:
        """Why no further compaction is to be made, or ''. `messages`: at least those after the last but one
        of `done`; what lies on another branch does not count.
        """
        at = {message.id: index for index, message in enumerate(messages)}
        own = [at[row.leaf] + 1 for row in done if row.cause != MANUAL and row.leaf in at]
        if len(own) < 2:
            return ""
        first, second = own[-2:]
        spans = (messages[first:second], messages[second:])
        if any(_progress(span) >= MIN_PROGRESS for span in spans):
            return ""
        return (
            "the context fills again right after it was made short: twice in a row there was room for less"
            f" than {MIN_PROGRESS} useful results. Use a model with a larger window, or have smaller pieces"
            " read at a time"
        )


def _progress(messages: Sequence[Message]) -> int:
    """How many useful results there are; new words of the user are as good as enough of them."""
    if any(message.origin is Origin.HUMAN for message in messages):
        return MIN_PROGRESS
    return sum(not result.is_error for message in messages for result in message.results)

"""What is asked before each step: is there room within the limits, and is it the last one?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k3agent.agent.options import Limits, Receipt
from k3agent.events import TurnOutcome
from k3agent.providers.base import Profile

# The embedded model always comes to an end, also where no limit is given.
COMPACT_STEPS = 40
RESERVE_TIME_S = 20.0
CLOSING_OUTPUT_TOKENS = 2000
# A normal step and the closing one after it, each a little dearer than the last.
TWO_STEPS = 2.5
UNITS = {
    TurnOutcome.MAX_TURNS: "model call{s} (--max-turns)",
    TurnOutcome.MAX_TOKENS: "token{s} (--max-tokens)",
    TurnOutcome.MAX_BUDGET: "USD (--max-budget-usd)",
    TurnOutcome.MAX_TIME: "second{s} (--max-time)",
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
        self, limits: Limits, receipt: Receipt, profile: Profile, elapsed_s: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._receipt = receipt
        self._has_reserve = profile is Profile.FULL
        self._elapsed_s = elapsed_s
        self._before = (0, 0.0)
        self._last = (0, 0.0)

    def before_step(self, *, is_first: bool) -> LimitReached | None:
        """`is_first`: nothing has been done in this turn yet, so there is nothing to summarise."""
        now = (self._tokens, self._receipt.cost_usd)
        if now != self._before:
            self._last = (now[0] - self._before[0], now[1] - self._before[1])
            self._before = now
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

    @property
    def is_open(self) -> bool:
        """No limit of model calls was given."""
        return self._limits.max_turns is None

    @property
    def _tokens(self) -> int:
        return self._receipt.usage.input_tokens + self._receipt.usage.output_tokens

    def _checks(self) -> list[LimitReached | None]:
        limits, receipt = self._limits, self._receipt
        time_reserve = min(RESERVE_TIME_S, 0.1 * (limits.max_time_s or 0))
        tokens, cost = self._last
        elapsed = self._elapsed_s()
        return [
            _check(limits.max_turns, receipt.num_turns, 1, 0, TurnOutcome.MAX_TURNS),
            _check(limits.max_tokens, self._tokens, TWO_STEPS * tokens, tokens, TurnOutcome.MAX_TOKENS),
            _check(limits.max_budget_usd, receipt.cost_usd, TWO_STEPS * cost, cost, TurnOutcome.MAX_BUDGET),
            _check(limits.max_time_s, elapsed, time_reserve, 0, TurnOutcome.MAX_TIME),
        ]


def _check(
    limit: float | None, used: float, reserve: float, step: float, outcome: TurnOutcome
) -> LimitReached | None:
    """`reserve`: what must be left for a normal step; `step`: what the closing one costs."""
    if limit is None or used + reserve < limit:
        return None
    unit = UNITS[outcome].format(s="" if limit == 1 else "s")
    detail = f"the limit of {limit} {unit} is reached"
    return LimitReached(outcome=outcome, detail=detail, is_closing=used + step < limit)

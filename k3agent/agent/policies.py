"""What is asked before each step and about each result: limits and repetition.

Everything is worked out from rows and the receipt, so a resumed turn is judged like one that never stopped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3agent.agent.arguments import canonical
from k3agent.agent.options import Limits, Receipt
from k3agent.events import TurnOutcome
from k3agent.providers.base import Profile
from k3agent.store.records import CallRow, CallState

NOTICE_AT = 3
REFUSE_AT = 5
END_AT = 8
MAX_PERIOD = 3
MAX_INVALID_STEPS = 3
RESERVE_TIME_S = 20.0
CLOSING_OUTPUT_TOKENS = 2000
# A normal step and the closing one after it, each a little dearer than the last.
TWO_STEPS = 2.5
UNITS = {
    TurnOutcome.MAX_TURNS: "model calls (--max-turns)",
    TurnOutcome.MAX_TOKENS: "tokens (--max-tokens)",
    TurnOutcome.MAX_BUDGET: "USD (--max-budget-usd)",
    TurnOutcome.MAX_TIME: "seconds (--max-time)",
}
# What differs between two runs of the same command without meaning anything.
VOLATILE = re.compile(
    r"0x[0-9a-f]{4,}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\d\d:\d\d:\d\d"
    r"|\d+(?:\.\d+)?\s?(?:ms|s|sec|seconds)\b"
)


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
    detail = f"the limit of {limit} {UNITS[outcome]} is reached"
    return LimitReached(outcome=outcome, detail=detail, is_closing=used + step < limit)


def digest(text: str) -> str:
    """Of a result, timings and dates left out: near-identical results count as identical."""
    return hashlib.sha256(VOLATILE.sub("#", text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class RepetitionPolicy:
    """Finds a model that goes in circles: the same call with the same result, also in a cycle of two or
    three.
    """

    def __init__(self, profile: Profile, rows: Sequence[CallRow] = ()) -> None:
        self._profile = profile
        self._rows = list(rows)

    def add(self, row: CallRow) -> None:
        self._rows.append(row)

    def refusal_before(self, tool: str, arguments: str) -> str | None:
        """Compact profile: why this very call cannot help, if it failed before and nothing has changed
        since.
        """
        if self._profile is not Profile.COMPACT:
            return None
        wanted = canonical(arguments)
        for row in reversed(self._rows):
            if row.tool == tool and canonical(row.arguments) == wanted:
                if (
                    row.state in (CallState.FAILED, CallState.REFUSED, CallState.DENIED)
                    and row.result is not None
                ):
                    return (
                        "this same call failed before, and nothing has changed since."
                        " Change the arguments, look again, or report what is wrong."
                    )
                return None
            if row.state is CallState.DONE and row.files:
                return None
        return None

    def streak(self, tool: str, arguments: str, result_digest: str) -> int:
        """How often this call with this result has now come in a row (the new one included)."""
        signs = [_sign(row.tool, row.arguments, row.digest) for row in self._rows]
        signs.append(_sign(tool, arguments, result_digest))
        best = 1
        for period in range(1, MAX_PERIOD + 1):
            block = signs[-period:]
            if period > 1 and len(set(block)) == 1:
                continue
            count = 0
            end = len(signs)
            while end >= period and signs[end - period : end] == block:
                count += 1
                end -= period
            best = max(best, count)
        return best

    def end_reason(self) -> str | None:
        """Why the turn has to end now, or None."""
        if self._rows:
            last = self._rows[-1]
            earlier = RepetitionPolicy(self._profile, self._rows[:-1])
            if earlier.streak(last.tool, last.arguments, last.digest) >= END_AT:
                return f"the model repeated the same {last.tool} call with the same result {END_AT} times"
        steps: dict[str, bool] = {}
        useless = {CallState.INVALID}
        if self._profile is Profile.COMPACT:
            useless.add(CallState.REFUSED)
        for row in self._rows:
            steps[row.message_id] = steps.get(row.message_id, True) and row.state in useless
        last_steps = list(steps.values())[-MAX_INVALID_STEPS:]
        if len(last_steps) == MAX_INVALID_STEPS and all(last_steps):
            return f"{MAX_INVALID_STEPS} answers in a row had only calls that could not be used"
        return None

    def was_blocked(self) -> bool:
        """Whether the newest call needed an answer or a permission that nobody gave."""
        if not self._rows:
            return False
        last = self._rows[-1]
        return last.state is CallState.DENIED or (last.tool == "ask" and last.state is CallState.FAILED)


def _sign(tool: str, arguments: str, result_digest: str) -> tuple[str, str, str]:
    return tool, canonical(arguments), result_digest

"""What is worth retrying, when, and for how long.

Defaults: at most 10 retries and 120 s of trying for one model call. Waits that the endpoint asked for do
not count towards the 120 s; one longer than an hour ends the call at once, with the asked time in the
error. The first waits are short because most broken streams and 5xx are momentary.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from k3agent.errors import ProviderError, ProviderErrorKind

_MOMENTARY_S = (0.1, 0.3)
_MAX_DELAY_S = 32.0
_JITTER = 0.25
# An answer that cannot be understood, or is empty, is asked for again, but not for ever.
_FEW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits for one model call; `max_retry_after_s` is the longest wait that an endpoint may ask for."""

    max_retries: int = 10
    max_time_s: float = 120.0
    max_retry_after_s: float = 3600.0


@dataclass(slots=True)
class RetryState:
    """Counts the failures of one model call and says how long to wait, or that it is over (None)."""

    policy: RetryPolicy
    clock: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0
    protocol_failures: int = 0
    asked_s: float = 0.0
    started_at: float | None = None

    def next_delay_s(self, error: ProviderError) -> float | None:
        now = self.clock()
        if self.started_at is None:
            self.started_at = now
        if not self._is_worth_it(error) or self.failures >= self.policy.max_retries:
            return None
        self.failures += 1
        if error.retry_after_s is not None:
            if error.retry_after_s > self.policy.max_retry_after_s:
                return None
            self.asked_s += error.retry_after_s
            return error.retry_after_s
        delay_s = self._backoff_s(error) * (1 + _JITTER * self.rng.random())
        spent_s = now - self.started_at - self.asked_s
        return None if spent_s + delay_s > self.policy.max_time_s else delay_s

    def _is_worth_it(self, error: ProviderError) -> bool:
        if error.kind is ProviderErrorKind.PROTOCOL:
            self.protocol_failures += 1
            return self.protocol_failures <= _FEW
        return error.is_retryable

    def _backoff_s(self, error: ProviderError) -> float:
        if error.kind is ProviderErrorKind.RATE:
            return min(0.5 * 2 ** (self.failures - 1), _MAX_DELAY_S)
        if self.failures <= len(_MOMENTARY_S):
            return _MOMENTARY_S[self.failures - 1]
        return min(2.0 ** (self.failures - len(_MOMENTARY_S) - 1), _MAX_DELAY_S)


def parse_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a `Retry-After` header: a number or an HTTP date; None when it says nothing usable."""
    if not value:
        return None
    try:
        seconds = float(value.strip())
    except ValueError:
        try:
            at = parsedate_to_datetime(value.strip())
        except (TypeError, ValueError):
            return None
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        seconds = (at - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if seconds == seconds and seconds != float("inf") else None

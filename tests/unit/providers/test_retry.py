"""What is retried, when, and for how long."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.providers.retry import RetryPolicy, RetryState, parse_retry_after

Kind = ProviderErrorKind


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def failing(kind: Kind, policy: RetryPolicy, retry_after_s: float | None = None) -> list[float]:
    clock = Clock()
    state = RetryState(policy, clock)
    delays = []
    while (
        delay := state.next_delay_s(ProviderError("x", kind=kind, retry_after_s=retry_after_s))
    ) is not None:
        delays.append(delay)
        clock.now += delay
    return delays


def test_server_errors_back_off_within_the_limits() -> None:
    delays = failing(Kind.SERVER, RetryPolicy())
    assert delays[0] < 0.2
    assert all(later > earlier for earlier, later in pairwise(delays[:7]))
    assert sum(delays) <= 120
    assert len(delays) >= 8
    assert len(failing(Kind.SERVER, RetryPolicy(max_time_s=1e9))) == 10


def test_rate_limits_start_at_half_a_second() -> None:
    assert 0.5 <= failing(Kind.RATE, RetryPolicy())[0] <= 0.625


def test_asked_waits_are_kept_to_the_letter_and_do_not_count() -> None:
    assert failing(Kind.RATE, RetryPolicy(max_retries=4), 100.0) == [100.0] * 4
    assert failing(Kind.RATE, RetryPolicy(), 4000.0) == []


@pytest.mark.parametrize("kind", [Kind.AUTH, Kind.QUOTA, Kind.BAD_REQUEST, Kind.NOT_FOUND, Kind.FILTER])
def test_some_kinds_are_never_retried(kind: Kind) -> None:
    assert failing(kind, RetryPolicy()) == []


def test_garbage_is_retried_twice() -> None:
    assert len(failing(Kind.PROTOCOL, RetryPolicy())) == 2


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (" 0.5 ", 0.5),
        ("Sun, 29 Nov 2026 12:00:10 GMT", 10.0),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0.0),
        ("-4", 0.0),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, datetime(2026, 11, 29, 12, tzinfo=UTC)) == seconds

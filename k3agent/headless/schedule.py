"""`k3agent run --at TIME`: the work begins later."""

from __future__ import annotations

import asyncio
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime, timedelta

# A clock that is set anew, or a machine that slept, is noticed within this time.
LOOK_S = 30.0


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """`22:30` is the next half past ten in the evening here; else a date and time in ISO 8601. Raises
    ArgumentTypeError for what is no time, or has passed.
    """
    now = now or datetime.now().astimezone()
    try:
        clock = datetime.strptime(text, "%H:%M")
    except ValueError:
        pass
    else:
        found = now.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
        if found <= now:
            found += timedelta(days=1)
        return found.replace(tzinfo=None).astimezone()
    try:
        found = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise ArgumentTypeError(f"{text!r} is no time: write 22:30, or 2026-05-01T22:30") from error
    if found <= now:
        raise ArgumentTypeError(f"{text} has passed: it is {now:%Y-%m-%d %H:%M}")
    return found


async def wait_until(start: datetime, tell: Callable[[str], None]) -> None:
    """Return when it is `start` by the clock of the machine."""
    left_s = _seconds_until(start)
    if left_s > 0:
        hours, minutes = divmod(round(left_s / 60), 60)
        tell(f"waiting until {start:%Y-%m-%d %H:%M} ({hours} h {minutes} min).")
    while left_s > 0:
        await asyncio.sleep(min(left_s, LOOK_S))
        left_s = _seconds_until(start)


def _seconds_until(start: datetime) -> float:
    return (start - datetime.now().astimezone()).total_seconds()

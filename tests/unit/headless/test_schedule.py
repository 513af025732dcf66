"""`--at`: what is a time, and that the work waits for it."""

from __future__ import annotations

import asyncio
from argparse import ArgumentTypeError
from datetime import datetime, timedelta

import pytest

from k3agent.headless import schedule
from k3agent.headless.flags import run_parser
from k3agent.headless.schedule import parse_time, wait_until

NOW = datetime(2026, 5, 1, 21, 0).astimezone()


@pytest.mark.parametrize(
    ("text", "day", "hour", "minute"),
    [("22:30", 1, 22, 30), ("21:00", 2, 21, 0), ("06:05", 2, 6, 5), ("2026-05-03T04:00", 3, 4, 0)],
)
def test_times(text: str, day: int, hour: int, minute: int) -> None:
    found = parse_time(text, NOW)
    assert (found.day, found.hour, found.minute) == (day, hour, minute)
    assert found.tzinfo is not None and found > NOW


@pytest.mark.parametrize(
    "text",
    ["", "tonight", "25:00", "22", "2026-05-01T20:59", "2026-13-01T00:00", "9999-12-31T23:59:59-14:00"],
)
def test_what_is_no_time_or_has_passed(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"no time|has passed"):
        parse_time(text, NOW)


def test_the_flag_names_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_parser().parse(["hi", "--at", "soon"])
    assert "write 22:30" in capsys.readouterr().err


async def test_it_waits_and_tells_so() -> None:
    told: list[str] = []
    start = datetime.now().astimezone() + timedelta(seconds=0.3)
    await wait_until(start, told.append)
    assert datetime.now().astimezone() >= start and told[0].startswith("waiting until ")
    await asyncio.wait_for(wait_until(start, told.append), 5)
    assert len(told) == 1, "a time that has come is not waited for"


async def test_who_slept_over_the_time_begins_at_waking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a machine that was suspended jumps; a sleep begun before is not slept to its end."""
    jumped = 0
    real = schedule._seconds_until

    def seconds_until(start: datetime) -> float:
        return real(start) - jumped

    async def sleep(seconds: float) -> None:
        nonlocal jumped
        assert seconds <= schedule.LOOK_S, "it would be slept for longer than the next look"
        jumped += 8 * 3600

    monkeypatch.setattr(schedule, "_seconds_until", seconds_until)
    monkeypatch.setattr(schedule.asyncio, "sleep", sleep)
    told: list[str] = []
    await schedule.wait_until(datetime.now().astimezone() + timedelta(hours=6), told.append)
    assert jumped == 8 * 3600 and "6 h 0 min" in told[0]

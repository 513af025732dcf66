"""Checks as the agent runs them: real shells."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.runs import alive, wait_for

from k3agent.agent import checks
from k3agent.agent.checks import CheckResult, run_check


async def check(command: str, cwd: Path) -> CheckResult:
    return await run_check(command, cwd, {"PATH": os.environ["PATH"]})


async def test_what_stays_in_the_background_is_not_waited_for_and_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    result = await check("sleep 300 & echo $! > pid; echo fine", tmp_path)
    assert result.has_passed and result.output == "fine"
    assert time.monotonic() - began < 100
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not alive(pid))


async def test_of_a_very_long_output_the_end_is_read(tmp_path: Path) -> None:
    result = await check("seq 100000; exit 1", tmp_path)
    assert result.output.startswith("[... 580894 characters cut]\n")
    assert result.output.endswith("\n99999\n100000") and len(result.output) < 8100


@pytest.mark.parametrize(
    ("name", "value", "command", "said"),
    [
        ("TIMEOUT_S", 0.1, "echo begun; sleep 300", "begun\n[timed out"),
        ("MAX_OUTPUT_BYTES", 1000, "yes | head -c 5000; sleep 300", "of output; killed]"),
    ],
)
async def test_a_check_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float, command: str, said: str
) -> None:
    monkeypatch.setattr(checks, name, value)
    monkeypatch.setattr(checks, "LOOK_EVERY_S", 0.1)
    result = await check(command, tmp_path)
    assert result.exit_code == 124 and said in result.output

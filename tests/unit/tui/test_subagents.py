"""Subagents in the terminal UI: the card of their call says how each stands, their questions are asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.agents import call, step
from support.fleet import FleetClient, fan_out, item
from support.screens import quick, running


async def test_the_card_tells_how_each_subagent_stands(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def hold(name: str, position: int) -> None:
        if name == "slow":
            await asyncio.wait_for(gate.wait(), 60)

    stories = {
        "go": fan_out(item("fast"), item("slow"), item("later", after=[2])),
        **{name: [step(text=f"{name} is done.")] for name in ("fast", "slow", "later")},
    }
    client = FleetClient(stories, hook=hold)
    async with running(tmp_path, client=client) as screen:
        await screen.submit("go")
        await screen.until("fast  done")
        assert "● slow  running" in screen.shown and "○ later  waiting" in screen.shown
        assert "3 subagents: about $" in screen.shown
        gate.set()
        await screen.until("later  done")
        assert screen.shown.count("✓") >= 3


def maker() -> FleetClient:
    """A subagent that asks before its only command."""
    make = [step(call("shell", command="touch made")), step(text="It is made.")]
    return FleetClient({"go": fan_out(item("maker", mode="write")), "maker": make})


async def test_a_subagents_question_is_asked_with_its_title(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with running(tmp_path, client=maker()) as screen:
        await screen.submit("go")
        await screen.until("May shell do this?")
        assert "maker: $ touch made" in screen.shown
        await screen.answer("y")
        await screen.until("done · 2 steps")
        assert (screen.workspace / "made").exists()


async def test_esc_ends_a_subagent_that_waits_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    async with running(tmp_path, client=maker()) as screen:
        await screen.submit("go")
        await screen.until("May shell do this?")
        session = screen.chat.driver.session
        assert session is not None
        session.interrupt("the user pressed Esc")
        await screen.until("interrupted")
        assert not (screen.workspace / "made").exists()
        await screen.until(lambda: screen.chat.panel.current is None)

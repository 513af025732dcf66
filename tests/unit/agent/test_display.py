"""Pieces of an answer as events: together where they come together, at once where they do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from k3agent.agent.display import MAX_WAITING_CHARS, Display, MarkersLeaked
from k3agent.agent.emitter import Emitter
from k3agent.agent.masking import Masker
from k3agent.events import ArgumentsStreamed, ReasoningStreamed, TextStreamed
from k3agent.types import CallDelta, ReasoningDelta, SessionId, TextDelta


class Heard(list[tuple[str, str]]):
    def __call__(self, event: Any) -> None:
        self.append((type(event).__name__, event.text))


def display() -> tuple[Display, Heard]:
    emitter, heard = Emitter(SessionId("s")), Heard()
    emitter.subscribe(heard)
    return Display(emitter, Masker({"API_KEY": "k3y-of-the-users-own"}), is_on=True, finds_think=False), heard


async def test_what_comes_in_one_turn_of_the_loop_is_told_of_at_once() -> None:
    show, heard = display()
    async with show:
        for letter in "many letters ":
            show.piece(TextDelta(text=letter), "")
        assert heard == []
        await asyncio.sleep(0)
        assert heard == [(TextStreamed.__name__, "many letters ")]
        show.piece(TextDelta(text="and "), "")
        await asyncio.sleep(0)
        assert heard[1:] == [(TextStreamed.__name__, "and ")]
        show.flush()


async def test_the_order_of_what_came_is_kept() -> None:
    show, heard = display()
    async with show:
        show.piece(ReasoningDelta(text="first "), "")
        show.piece(TextDelta(text="then "), "")
        show.piece(TextDelta(text="on "), "")
        show.piece(CallDelta(index=0, arguments="{} "), "read")
        show.flush()
    assert heard == [
        (ReasoningStreamed.__name__, "first "),
        (TextStreamed.__name__, "then on "),
        (ArgumentsStreamed.__name__, "{} "),
    ]


async def test_no_more_waits_than_is_held_in_memory_anyway() -> None:
    show, heard = display()
    async with show:
        for _ in range(3):
            show.piece(TextDelta(text="word " * (MAX_WAITING_CHARS // 5 + 1)), "")
        assert len(heard) == 3


async def test_a_secret_in_pieces_is_masked() -> None:
    show, heard = display()
    async with show:
        for letter in "it is k3y-of-the-users-own here":
            show.piece(TextDelta(text=letter), "")
            await asyncio.sleep(0)
        show.flush()
    assert "".join(text for _, text in heard) == "it is [masked: API_KEY] here"


async def test_an_answer_that_breaks_off_is_shown_as_far_as_it_came() -> None:
    show, heard = display()
    with pytest.raises(MarkersLeaked):
        async with show:
            show.piece(TextDelta(text="so far "), "")
            show.piece(TextDelta(text="<|end_of_msg|>"), "")
    assert heard == [(TextStreamed.__name__, "so far ")]


async def test_what_a_reader_raises_ends_the_answer() -> None:
    show, _ = display()

    def fails(_: object) -> None:
        raise RuntimeError("a reader's own fault")

    show._emitter.subscribe(fails)
    with pytest.raises(RuntimeError, match="own fault"):
        async with show:
            show.piece(TextDelta(text="a "), "")
            await asyncio.sleep(0)
            show.piece(TextDelta(text="b "), "")

"""An answer as it comes, piece by piece, as events: what may become a marker or a secret is held back.

Pieces that come faster than the loop turns are told of together: looking for secrets costs about the same for
a few letters as for a thousand.
"""

from __future__ import annotations

import asyncio
from typing import Self

from k3agent.agent.emitter import Emitter
from k3agent.agent.markers import LeakFilter
from k3agent.agent.masking import Masker
from k3agent.events import ArgumentsStreamed, ReasoningStreamed, TextStreamed
from k3agent.safety.streaming import StreamMasker
from k3agent.types import CallDelta, ReasoningDelta, TextDelta

# More is told of at once, however fast it comes.
MAX_WAITING_CHARS = 1 << 16
# (the kind of event, and of a call its number and tool)
_Channel = tuple[type[ReasoningStreamed | TextStreamed | ArgumentsStreamed], int, str]


class MarkersLeaked(Exception):
    """The answer holds a channel marker: it is void from there on."""

    def __init__(self, marker: str) -> None:
        super().__init__(marker)
        self.marker = marker


class Display:
    """Turns the pieces of one answer into events, inside of an `async with`. `piece` raises MarkersLeaked at
    the first marker.
    """

    def __init__(self, emitter: Emitter, masker: Masker, *, is_on: bool, finds_think: bool) -> None:
        self._emitter = emitter
        self._masker = masker
        self._is_on = is_on
        self._finds_think = finds_think
        self._sending: asyncio.Task[None] | None = None
        self._waiting: list[str] = []
        self._num_waiting = 0
        self._channel: _Channel = (TextStreamed, 0, "")
        self._begin()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # Also of an answer that breaks off, what came is told of.
        self.send()

    def _begin(self) -> None:
        self._reasoning = LeakFilter(is_on=self._is_on, finds_think=False)
        self._text = LeakFilter(is_on=self._is_on, finds_think=self._finds_think)
        self._maskers: dict[_Channel, StreamMasker] = {}

    def piece(self, delta: ReasoningDelta | TextDelta | CallDelta, tool: str) -> None:
        match delta:
            case ReasoningDelta():
                self._put((ReasoningStreamed, 0, ""), self._reasoning.feed(delta.text))
            case TextDelta():
                self._put((TextStreamed, 0, ""), self._text.feed(delta.text))
            case CallDelta():
                self._put((ArgumentsStreamed, delta.index, tool), delta.arguments)
        leak = self._reasoning.leak or self._text.leak
        if leak is not None:
            raise MarkersLeaked(leak)

    def reset(self) -> None:
        """The answer begins anew."""
        self.send()
        self._begin()

    def flush(self) -> None:
        """The answer is complete: nothing is held back any more."""
        self._put((ReasoningStreamed, 0, ""), self._reasoning.flush())
        self._put((TextStreamed, 0, ""), self._text.flush())
        self.send()
        # The rest of all, reasoning first.
        order = (ReasoningStreamed, TextStreamed, ArgumentsStreamed)
        for channel in sorted(self._maskers, key=lambda channel: order.index(channel[0])):
            if text := self._maskers[channel].flush():
                self._emit(channel, text)

    def send(self) -> None:
        """Tell of what waits. Raises what a reader of the events raised meanwhile."""
        if self._sending is not None:
            sending, self._sending = self._sending, None
            if sending.done():
                sending.result()
            else:
                sending.cancel()
        self._send()

    def _put(self, channel: _Channel, text: str) -> None:
        if channel != self._channel:
            self.send()
            self._channel = channel
        # A call that is written is a sign of life also where nothing of it can be shown yet.
        if not text and channel[0] is not ArgumentsStreamed:
            return
        self._waiting.append(text)
        self._num_waiting += len(text)
        if self._num_waiting > MAX_WAITING_CHARS:
            self.send()
        elif self._sending is None or self._sending.done():
            if self._sending is not None:
                self._sending.result()
            # It begins when the loop turns: not while pieces come that are here already.
            self._sending = asyncio.get_running_loop().create_task(self._send_soon())

    async def _send_soon(self) -> None:
        self._send()

    def _send(self) -> None:
        if not self._waiting:
            return
        text = "".join(self._waiting)
        self._waiting, self._num_waiting = [], 0
        masker = self._maskers.get(self._channel)
        if masker is None:
            masker = self._maskers[self._channel] = self._masker.stream()
        shown = masker.feed(text)
        if shown or self._channel[0] is ArgumentsStreamed:
            self._emit(self._channel, shown)

    def _emit(self, channel: _Channel, text: str) -> None:
        kind, index, tool = channel
        if kind is ArgumentsStreamed:
            self._emitter.emit_masked(ArgumentsStreamed, index=index, tool=tool, text=text)
        else:
            self._emitter.emit_masked(kind, text=text)

"""Numbers, dates and hands out a session's events to its readers; no secret gets out in their texts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from k3agent.events import AnyEvent, Event
from k3agent.types import SessionId

EventT = TypeVar("EventT", bound=Event)

# Names that calls are found by.
UNMASKED = frozenset(("call_id", "tool"))


class Emitter:
    """Readers are called at once, in the order in which they subscribed, and must be quick."""

    def __init__(self, session_id: SessionId, mask: Callable[[Any], Any] = lambda value: value) -> None:
        """`mask` is given every text and every JSON value; messages and results are masked when they are
        made.
        """
        self.session_id = session_id
        self._mask = mask
        self._seq = 0
        self._readers: list[Callable[[AnyEvent], None]] = []

    def subscribe(self, reader: Callable[[AnyEvent], None]) -> None:
        self._readers.append(reader)

    def emit(self, kind: type[EventT], **fields: Any) -> EventT:
        """Build the event from its own fields, hand it out, and return it."""
        return self.emit_masked(
            kind,
            **{name: value if name in UNMASKED else self._mask(value) for name, value in fields.items()},
        )

    def emit_masked(self, kind: type[EventT], **fields: Any) -> EventT:
        """The same for fields that went through the masker already."""
        self._seq += 1
        event = kind(session=self.session_id, seq=self._seq, at=datetime.now(UTC), **fields)
        for reader in self._readers:
            reader(event)  # type: ignore[arg-type]  # every subclass of Event is in AnyEvent; a codec test checks it
        return event

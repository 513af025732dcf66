"""The session's messages in memory: what was stored, in order, and the one way to add to it.

Secrets are masked as a message is made, so neither store nor screen nor a later request holds one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from k3agent.agent.context import last_facts
from k3agent.agent.emitter import Emitter
from k3agent.agent.markers import mentions_marker
from k3agent.errors import StoreError
from k3agent.events import MessageAdded
from k3agent.store.records import JournalBatch, RequestRow
from k3agent.store.sessions import SessionStore
from k3agent.types import (
    Finish,
    ImagePart,
    Message,
    MessageId,
    Origin,
    Part,
    Role,
    SessionId,
    TextPart,
    ToolCall,
    ToolResult,
    Usage,
)


def new_id() -> MessageId:
    """Unique, and sorts by time."""
    return MessageId(f"{time.time_ns() // 1_000_000:012x}{os.urandom(6).hex()}")


def new_session_id() -> str:
    """A random UUID (version 4), without the 10 ms that the standard module takes to import."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Transcript:
    """Grows only; a message is in the store before it is here, and here before anybody is told."""

    def __init__(
        self,
        store: SessionStore,
        session_id: SessionId,
        emitter: Emitter,
        mask: Callable[[Iterable[Part]], tuple[Part, ...]] = tuple,
    ) -> None:
        self._mask = mask
        # Arguments as the model wrote them, where they held a secret: they run so, and are kept nowhere else.
        self._written: dict[ToolCall, str] = {}
        self._store = store
        self._session_id = session_id
        self._emitter = emitter
        self.messages: list[Message] = store.messages(session_id)
        self.call_ids: set[str] = {call.id for message in self.messages for call in message.calls}
        # The newest facts message; kept, because it may stand at the very beginning.
        self.facts = last_facts(self.messages)
        self.knows_markers = any(_mentions(message) for message in self.messages)

    @property
    def leaf(self) -> Message | None:
        return self.messages[-1] if self.messages else None

    def build(
        self,
        role: Role,
        origin: Origin,
        parts: tuple[Part, ...],
        *,
        model: str | None = None,
        finish: Finish | None = None,
        usage: Usage | None = None,
        parent: MessageId | None = None,
    ) -> Message:
        """A message that follows the newest one (or `parent`), not yet added."""
        if parent is None and self.messages:
            parent = self.messages[-1].id
        masked = self._mask(parts)
        for part, shown in zip(parts, masked, strict=True):
            if isinstance(part, ToolCall) and isinstance(shown, ToolCall) and part is not shown:
                self._written[shown] = part.arguments
        return Message(
            id=new_id(),
            parent=parent,
            role=role,
            origin=origin,
            parts=masked,
            created_at=datetime.now(UTC),
            model=model,
            finish=finish,
            usage=usage,
        )

    def arguments_of(self, call: ToolCall) -> str:
        """What the model really wrote."""
        return self._written.get(call, call.arguments)

    def user(
        self, text: str, images: Iterable[ImagePart] = (), *, parent: MessageId | None = None
    ) -> Message:
        return self.build(Role.USER, Origin.HUMAN, (TextPart(text=text), *images), parent=parent)

    def harness(self, text: str, *, parent: MessageId | None = None) -> Message:
        """A message in the user's role that k3agent itself writes."""
        return self.build(Role.USER, Origin.HARNESS, (TextPart(text=text),), parent=parent)

    def add(
        self, message: Message, *, request: RequestRow | None = None, batch: JournalBatch | None = None
    ) -> None:
        """Store, remember, tell."""
        self._store.add_message(self._session_id, message, request=request, batch=batch)
        self.remember(message)

    def remember(self, message: Message) -> None:
        """Take up a message that is stored already."""
        self.messages.append(message)
        self.call_ids.update(call.id for call in message.calls)
        self.facts = last_facts([message]) or self.facts
        self.knows_markers = self.knows_markers or _mentions(message)
        self._emitter.emit(MessageAdded, message=message)

    def rewind(self, message_id: MessageId) -> Message:
        """The conversation goes on from before this message, which is given back. The store keeps the branch
        that is left: the next message has another parent. Raises StoreError for an unknown id.
        """
        at = next((at for at, message in enumerate(self.messages) if message.id == message_id), None)
        if at is None:
            raise StoreError(f"session {self._session_id} has no message {message_id} to go back to")
        message = self.messages[at]
        del self.messages[at:]
        self.facts = last_facts(self.messages)
        return message

    def open_calls(self) -> Message | None:
        """The newest message if its calls have no results yet: what a killed process leaves."""
        leaf = self.leaf
        return leaf if leaf is not None and leaf.role is Role.ASSISTANT and leaf.calls else None

    def tool_message(self, results: Iterable[ToolResult]) -> Message:
        return self.build(Role.TOOL, Origin.TOOL, tuple(results))


def _mentions(message: Message) -> bool:
    """A conversation about the markers: then a model that writes them is not leaking."""
    if message.origin is Origin.MODEL:
        return False
    return mentions_marker(message.text) or any(mentions_marker(result.text) for result in message.results)

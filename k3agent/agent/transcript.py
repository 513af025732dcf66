"""The session's messages: the newest in memory, what was left out of the context in the store alone, and the
one way to add to them.

Secrets are masked as a message is made, so neither store nor screen nor a later request holds one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import overload

from k3agent.agent.context import last_facts
from k3agent.agent.digest import EarlierWords
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


# Of what k3agent itself has said, so much is kept to know it by.
MAX_HEAD = 80


class Transcript:
    """Grows only; a message is in the store before it is here, and here before anybody is told.

    `messages` are the newest. Those before them, `num_before`, were let go of by `forget` once no request
    needs them; what later work wants to know of them is kept in short.
    """

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
        self._take(store.messages(session_id))

    def _take(self, messages: list[Message]) -> None:
        """Start from the whole conversation."""
        self.messages = messages
        self.num_before = 0
        self.words_before = EarlierWords()
        # Beginnings of what k3agent has said since the user's newest words, as far as it is forgotten.
        self._heads: list[str] = []
        self._call_ids = {call.id for message in messages for call in message.calls}
        # The newest facts and the user's newest words; kept, because they may stand at the very beginning.
        self.facts = last_facts(messages)
        self.asked = next((one for one in reversed(messages) if one.origin is Origin.HUMAN), None)
        self.knows_markers = any(_mentions(message) for message in messages)

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
        self._call_ids.update(call.id for call in message.calls)
        self.facts = last_facts([message]) or self.facts
        self.asked = message if message.origin is Origin.HUMAN else self.asked
        self.knows_markers = self.knows_markers or _mentions(message)
        self._emitter.emit(MessageAdded, message=message)

    def rewind(self, message_id: MessageId) -> Message:
        """The conversation goes on from before this message, which is given back. The store keeps the branch
        that is left: the next message has another parent. Raises StoreError for an unknown id.
        """
        whole = self.whole()
        at = next((at for at, message in enumerate(whole) if message.id == message_id), None)
        if at is None:
            raise StoreError(f"session {self._session_id} has no message {message_id} to go back to")
        known = self.knows_markers
        self._take(whole[:at])
        self.knows_markers = known
        return whole[at]

    # --- what is in the store alone -----------------------------------------------------------------------

    def whole(self) -> list[Message]:
        """All messages; those that were forgotten are read from the store."""
        if not self.num_before:
            return list(self.messages)
        return [*self._store.messages(self._session_id, leaf=self.messages[0].parent), *self.messages]

    def recall(self) -> None:
        """Have all messages in memory again."""
        if self.num_before:
            self._take(self.whole())

    def forget(self, num: int) -> None:
        """Let go of the oldest `num` messages, of which at least the newest one stays."""
        gone = self.messages[:num]
        self.words_before.add(gone)
        for message in gone:
            if message.origin is Origin.HUMAN:
                self._heads.clear()
            elif message.origin is Origin.HARNESS:
                self._heads.append(message.text[:MAX_HEAD])
        del self.messages[:num]
        self.num_before += len(gone)
        self._call_ids = {call.id for message in self.messages for call in message.calls}

    def has_call(self, call_id: str) -> bool:
        """Whether a call of this conversation has that id."""
        if call_id in self._call_ids:
            return True
        return bool(self.num_before) and self._store.has_call(self._session_id, call_id)

    def num_said(self, head: str) -> int:
        """How often k3agent has said what begins so since the user's newest words."""
        count = 0
        for message in reversed(self.messages):
            if message.origin is Origin.HUMAN:
                return count
            count += message.origin is Origin.HARNESS and message.text.startswith(head)
        return count + sum(said.startswith(head) for said in self._heads)

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


class History(Sequence[Message]):
    """All messages of a conversation for who only reads them. Old ones are read from the store whenever they
    are asked for.
    """

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript

    def __len__(self) -> int:
        return self._transcript.num_before + len(self._transcript.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return self._transcript.whole()[index]
        at = range(len(self))[index] - self._transcript.num_before
        return self._transcript.messages[at] if at >= 0 else self._transcript.whole()[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._transcript.whole())

    def __reversed__(self) -> Iterator[Message]:
        yield from reversed(list(self._transcript.messages))
        if self._transcript.num_before:
            yield from reversed(self._transcript.whole()[: self._transcript.num_before])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # what it shows grows

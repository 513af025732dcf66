"""The tiers below the device: their interface, and host memory.

A page is named by the content key of the prefix that it ends; a state by the key of its last whole page and
the tokens after that. A state inside a page carries a copy of that page, so each record is whole by itself.
The disk is in `tiers_disk.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from k3agent.backend.cache.interfaces import Buffer
from k3agent.backend.cache.radix import Tokens
from k3agent.backend.cache.values import SUPERSEDED_CHANCE, ValueHeap, score
from k3agent.backend.errors import BackendError

TierName = Literal["host", "disk"]
NO_STATES: Mapping[Tokens, bool] = MappingProxyType({})


class LostRecordError(BackendError):
    """A record that was listed is gone or damaged. The tier has forgotten it; match again."""


@dataclass(frozen=True, slots=True)
class PageRecord:
    """One whole page."""

    key: bytes
    start: int
    tokens: Tokens
    is_exact: bool
    data: Buffer


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A state after the prefix `key` and the tokens of `tail`, which are fewer than a page."""

    key: bytes
    position: int
    tail: Tokens
    is_exact: bool
    saved_tokens: int
    """What it saves against the checkpoint above it."""
    state: Buffer
    tail_page: Buffer | None

    @property
    def num_bytes(self) -> int:
        return len(self.state) + len(self.tail_page or b"")


class Tier(Protocol):
    """What the cache asks of a tier. Loading raises LostRecordError."""

    def page_is_exact(self, key: bytes) -> bool | None:
        """None: the page is not here."""
        ...

    def states_at(self, key: bytes) -> Mapping[Tokens, bool]:
        """Tails of the states that begin after the prefix `key`, and whether each is exact."""
        ...

    def load_page(self, key: bytes, tokens: Tokens, now: int) -> Buffer: ...
    def load_state(self, key: bytes, tail: Tokens, now: int) -> tuple[Buffer, Buffer | None]: ...
    def demote(self, key: bytes, tail: Tokens) -> None:
        """A deeper state of the same lineage exists."""
        ...

    def forget_state(self, key: bytes, tail: Tokens) -> None: ...


@dataclass(slots=True, eq=False)
class _Kept:
    record: PageRecord | StateRecord
    num_bytes: int
    last_used: int
    chance: float = 1.0

    @property
    def value(self) -> float:
        record = self.record
        if isinstance(record, PageRecord):
            value = score(len(record.tokens), self.chance, self.last_used, self.num_bytes)
            return value - 1e-7 * record.start
        return score(record.saved_tokens, self.chance, self.last_used, self.num_bytes)


class HostTier:
    """Pages and states in host memory, at most `budget_bytes` of them; the least valuable leave."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._pages: dict[bytes, _Kept] = {}
        self._states: dict[bytes, dict[Tokens, _Kept]] = {}
        self._leaving: ValueHeap[_Kept] = ValueHeap()

    def accepts(self, value: float, num_bytes: int) -> bool:
        """Would a record of that value find room? Asked before the copy from the device is made."""
        if num_bytes > self.budget_bytes:
            return False
        least = self._leaving.least()
        return self.used_bytes + num_bytes <= self.budget_bytes or (least is not None and least < value)

    def put(self, record: PageRecord | StateRecord, last_used: int, chance: float = 1.0) -> bool:
        """Keep a record; False if what is here is all worth more."""
        num_bytes = len(record.data) if isinstance(record, PageRecord) else record.num_bytes
        kept = _Kept(record, num_bytes, last_used, chance)
        self._discard(self._find(record))
        while self.used_bytes + num_bytes > self.budget_bytes:
            least = self._leaving.least()
            if least is None or least > kept.value:
                return False
            self._discard(self._leaving.pop())
        if isinstance(record, PageRecord):
            self._pages[record.key] = kept
        else:
            self._states.setdefault(record.key, {})[record.tail] = kept
        self.used_bytes += num_bytes
        self._leaving.put(kept, kept.value)
        return True

    def _find(self, record: PageRecord | StateRecord) -> _Kept | None:
        if isinstance(record, PageRecord):
            return self._pages.get(record.key)
        return self._states.get(record.key, {}).get(record.tail)

    def _discard(self, kept: _Kept | None) -> None:
        if kept is None:
            return
        record = kept.record
        if isinstance(record, PageRecord):
            del self._pages[record.key]
        else:
            tails = self._states[record.key]
            del tails[record.tail]
            if not tails:
                del self._states[record.key]
        self._leaving.discard(kept)
        self.used_bytes -= kept.num_bytes

    def page_is_exact(self, key: bytes) -> bool | None:
        kept = self._pages.get(key)
        return None if kept is None else kept.record.is_exact

    def states_at(self, key: bytes) -> Mapping[Tokens, bool]:
        found = self._states.get(key)
        return {tail: kept.record.is_exact for tail, kept in found.items()} if found else NO_STATES

    def load_page(self, key: bytes, tokens: Tokens, now: int) -> Buffer:
        kept = self._pages.get(key)
        if kept is None or not isinstance(kept.record, PageRecord) or kept.record.tokens != tokens:
            raise LostRecordError("a page left host memory meanwhile; match again")
        self._touch(kept, now)
        return kept.record.data

    def load_state(self, key: bytes, tail: Tokens, now: int) -> tuple[Buffer, Buffer | None]:
        kept = self._states.get(key, {}).get(tail)
        if kept is None or not isinstance(kept.record, StateRecord):
            raise LostRecordError("a state left host memory meanwhile; match again")
        self._touch(kept, now)
        return kept.record.state, kept.record.tail_page

    def _touch(self, kept: _Kept, now: int) -> None:
        kept.last_used = now
        self._leaving.put(kept, kept.value)

    def demote(self, key: bytes, tail: Tokens) -> None:
        kept = self._states.get(key, {}).get(tail)
        if kept is not None:
            kept.chance = SUPERSEDED_CHANCE
            self._leaving.put(kept, kept.value)

    def forget_state(self, key: bytes, tail: Tokens) -> None:
        self._discard(self._states.get(key, {}).get(tail))

    def clear(self) -> None:
        """Forget everything."""
        for kept in [*self._pages.values(), *(k for tails in self._states.values() for k in tails.values())]:
            self._discard(kept)

    def check(self) -> None:
        """Raise AssertionError unless the bytes add up."""
        pages = sum(kept.num_bytes for kept in self._pages.values())
        states = sum(kept.num_bytes for tails in self._states.values() for kept in tails.values())
        if pages + states != self.used_bytes or self.used_bytes > self.budget_bytes:
            raise AssertionError(
                f"host tier: {pages} + {states} bytes held, {self.used_bytes} counted, {self.budget_bytes}"
                " allowed"
            )

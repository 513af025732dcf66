"""A toy network on a real HybridCache: rows and states are numbers that depend on all tokens before them.

Any wrong copy, stale slot or half restore shows as a wrong number. Each number also carries a mark: set if it
was not computed as a cold run on the grid computes it, so that a false claim of exactness shows too. For
tests, the soak run and nothing else; there is no model in here.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.cache.interfaces import Buffer, Exactness
from k3agent.backend.cache.radix import Checkpoint, RadixNode
from k3agent.backend.cache.tiers import HostTier
from k3agent.backend.cache.tiers_disk import DiskTier

TOY_PAGE = 4
TOY_GRID = 8
_STALE = 0xDEAD << 32
_POISON = 0xBAD << 32
_MASK = (1 << 62) - 1


def mix(before: int, token: int) -> int:
    """The number after one more token."""
    return ((before ^ (token + 1)) * 6364136223846793005 + 1442695040888963407) & _MASK


class ToyStorage:
    """Content stays until it is overwritten, as on a device."""

    page_bytes = 8 * TOY_PAGE
    state_bytes = 8

    def __init__(self, num_pages: int, num_slots: int) -> None:
        self.pages = [[_STALE] * TOY_PAGE for _ in range(num_pages)]
        self.states = [_STALE] * num_slots

    def copy_page(self, src_page: int, dst_page: int) -> None:
        self.pages[dst_page] = list(self.pages[src_page])

    def copy_state(self, src_slot: int, dst_slot: int) -> None:
        self.states[dst_slot] = self.states[src_slot]

    def zero_state(self, slot: int) -> None:
        self.states[slot] = 0

    def poison_state(self, slot: int) -> None:
        self.states[slot] = _POISON

    def read_page(self, page: int) -> Buffer:
        return array("Q", self.pages[page]).tobytes()

    def read_pages(self, pages: Sequence[int]) -> list[Buffer]:
        return [self.read_page(page) for page in pages]

    def write_pages(self, pages: Sequence[int], data: Sequence[Buffer]) -> None:
        for page, content in zip(pages, data, strict=True):
            self.pages[page] = array("Q", bytes(content)).tolist()

    def read_state(self, slot: int) -> Buffer:
        return array("Q", [self.states[slot]]).tobytes()

    def write_state(self, slot: int, data: Buffer) -> None:
        self.states[slot] = array("Q", bytes(data))[0]

    def settled(self) -> Callable[[], None]:
        return lambda: None


@dataclass(eq=False)
class ToySequence:
    """A sequence of the toy network."""

    token_ids: list[int]
    num_computed: int = 0
    num_exact: int = 0
    page_ids: list[int] = field(default_factory=list)
    state_slot: int | None = None
    node: RadixNode | None = None
    resumed_from: Checkpoint | None = None


class ToyEngine:
    """Runs sequences the way the engine does: chunks on the grid, then token by token."""

    def __init__(self, cache: HybridCache, storage: ToyStorage) -> None:
        self.cache = cache
        self.storage = storage

    @classmethod
    def open(
        cls,
        num_pages: int,
        num_slots: int,
        exactness: Exactness,
        host: HostTier | None = None,
        disk: DiskTier | None = None,
    ) -> Self:
        """An empty cache of the toy's sizes with the audit on, over storage of its own."""
        storage = ToyStorage(num_pages, num_slots)
        cache = HybridCache(
            num_pages,
            num_slots,
            storage,
            page_size=TOY_PAGE,
            grid=TOY_GRID,
            exactness=exactness,
            host=host,
            disk=disk,
            debug=True,
        )
        return cls(cache, storage)

    def start(self, token_ids: list[int], exact_only: bool | None = None) -> ToySequence | None:
        """Match and adopt; None when there is no room."""
        sequence = ToySequence(list(token_ids))
        prefix = self.cache.match(sequence.token_ids, exact_only=exact_only)
        return sequence if self.cache.adopt(sequence, prefix) else None

    def prefill(self, sequence: ToySequence, stop: int | None = None) -> bool:
        """The next chunk: to the next grid point, the end of the tokens, or `stop`; False: no room."""
        begin = sequence.num_computed
        end = min(
            (begin // TOY_GRID + 1) * TOY_GRID, len(sequence.token_ids), stop or len(sequence.token_ids)
        )
        is_on_grid = begin == sequence.num_exact and begin % TOY_GRID == 0
        if not self._compute(sequence, end, is_on_grid and end % TOY_GRID == 0):
            return False
        if is_on_grid:
            sequence.num_exact = end
        return True

    def decode(self, sequence: ToySequence, token: int) -> bool:
        """Append a token and compute it; False: no room, and the token is not appended."""
        sequence.token_ids.append(token)
        if self._compute(sequence, len(sequence.token_ids), False):
            return True
        sequence.token_ids.pop()
        return False

    def _compute(self, sequence: ToySequence, end: int, is_canonical: bool) -> bool:
        if not self.cache.reserve(sequence, end):
            return False
        slot = sequence.state_slot
        assert slot is not None
        rows = self.rows(sequence)
        mark = 0 if is_canonical and not any(row & 1 for row in rows) else 1
        state = self.storage.states[slot]
        mark |= state & 1
        number = state >> 1
        for position in range(sequence.num_computed, end):
            number = mix(number, sequence.token_ids[position])
            page = self.storage.pages[sequence.page_ids[position // TOY_PAGE]]
            page[position % TOY_PAGE] = number << 1 | mark
        self.storage.states[slot] = number << 1 | mark
        sequence.num_computed = end
        return True

    def rows(self, sequence: ToySequence) -> list[int]:
        """What the sequence sees of its computed tokens."""
        pages = self.storage.pages
        return [
            pages[sequence.page_ids[position // TOY_PAGE]][position % TOY_PAGE]
            for position in range(sequence.num_computed)
        ]

    def check(self, sequence: ToySequence) -> None:
        """Raise AssertionError unless the sequence sees what a run without any cache would have computed."""
        number = 0
        rows = self.rows(sequence)
        canonical = sequence.num_exact // TOY_GRID * TOY_GRID
        for position, row in enumerate(rows):
            number = mix(number, sequence.token_ids[position])
            if row >> 1 != number:
                raise AssertionError(f"the row at {position} of {len(rows)} is not its prefix's")
            if row & 1 and position < canonical:
                raise AssertionError(f"the row at {position} is called exact and is not")
        assert sequence.state_slot is not None
        state = self.storage.states[sequence.state_slot]
        if state >> 1 != number:
            raise AssertionError(f"the state after {len(rows)} tokens is not its prefix's")
        if state & 1 and sequence.num_computed == canonical > 0:
            raise AssertionError(f"the state after {len(rows)} tokens is called exact and is not")

    def run(self, token_ids: list[int], answer: list[int] | None = None) -> int:
        """One whole request with checkpoints at the planned places; returns how many tokens were cached."""
        sequence = self.start(token_ids)
        assert sequence is not None
        cached = sequence.num_computed
        self.check(sequence)
        while sequence.num_computed < len(token_ids):
            assert self.prefill(sequence)
        for token in answer or []:
            assert self.decode(sequence, token)
        self.check(sequence)
        self.cache.checkpoint(sequence, give_slot=True)
        self.cache.release(sequence)
        return cached

    def canonicalise(self) -> bool:
        """Do one piece of idle work to its end; False when there is none."""
        token_ids = self.cache.next_inexact()
        if token_ids is None:
            return False
        sequence = self.start(token_ids, exact_only=True)
        done = sequence is not None
        while sequence is not None and done and sequence.num_computed < len(token_ids):
            done = self.prefill(sequence)
        if sequence is not None:
            self.check(sequence)
            done = done and self.cache.checkpoint(sequence, give_slot=True)
            self.cache.release(sequence)
        if not done:
            self.cache.skip_inexact(token_ids)
        return True

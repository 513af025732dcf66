"""StatePool: slots of KDA state, for running sequences and for checkpoints alike.

A slot is zeroed when it is handed out: a state left by an earlier sequence is the classic silent error of
recurrent caches.
"""

from collections.abc import Callable

from k3agent.backend.errors import CacheFullError


class StatePool:
    """`num_slots` slots; `zero` clears one, `poison` (in debug runs) spoils one that was given back."""

    def __init__(
        self, num_slots: int, zero: Callable[[int], None], poison: Callable[[int], None] | None = None
    ) -> None:
        if num_slots < 1:
            raise CacheFullError(f"a cache of {num_slots} state slots holds nothing; give it more bytes")
        self.num_slots = num_slots
        self._zero = zero
        self._poison = poison
        self._free = list(range(num_slots - 1, -1, -1))
        self._is_held = [False] * num_slots

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, zeroed: bool = True) -> int | None:
        """A slot, or None when all are held. `zeroed=False` only for who overwrites all of it at once."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._is_held[slot] = True
        if zeroed:
            self._zero(slot)
        return slot

    def release(self, slot: int) -> None:
        if not self._is_held[slot]:
            raise AssertionError(f"slot {slot} is free: it was released once too often")
        self._is_held[slot] = False
        self._free.append(slot)
        if self._poison is not None:
            self._poison(slot)

    def is_held(self, slot: int) -> bool:
        return self._is_held[slot]

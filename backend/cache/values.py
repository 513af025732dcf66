"""What a cached thing is worth, and a heap that hands out the least valuable one.

The value is (tokens of recompute that it saves per byte) x (chance of being wanted), halved each
`HALF_LIFE` requests without use. Its logarithm plus a term in the time of last use orders things the same
way at any moment, so a heap stays valid while time passes.
"""

import heapq
import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

HALF_LIFE = 32.0
"""In requests."""
SUPERSEDED_CHANCE = 0.02
"""Of a checkpoint that its only child has extended: wanted again by a retry or an edit alone."""
STATELESS_CHANCE = 0.25
"""Of a page below which no state hangs: it helps only who passes here a second time and files one."""

_DECAY = math.log(2) / HALF_LIFE
T = TypeVar("T", bound=Hashable)


def score(saved_tokens: float, chance: float, last_used: float, num_bytes: int = 1) -> float:
    """The logarithm of a thing's value, comparable with all others at any time."""
    return math.log(max(saved_tokens, 1.0) * chance / max(num_bytes, 1)) + _DECAY * last_used


class ValueHeap(Generic[T]):
    """Things by score. Changing a score costs one push; outdated entries are skipped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._current: dict[T, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, thing: T) -> bool:
        return thing in self._current

    def put(self, thing: T, value: float) -> None:
        """Add a thing, or give it a new score."""
        self._serial += 1
        self._current[thing] = self._serial
        heapq.heappush(self._heap, (value, self._serial, thing))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._current):
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, thing: T) -> None:
        self._current.pop(thing, None)

    def pop(self, rescore: Callable[[T], float | None] | None = None) -> T | None:
        """Take out the thing of least value, or None.

        `rescore` gives the present score of what comes up: worth more by now, it goes back; None, it may
        not be taken and is set aside until this call ends.
        """
        aside: list[tuple[T, float]] = []
        found: T | None = None
        while self._heap:
            value, serial, thing = heapq.heappop(self._heap)
            if self._current.get(thing) != serial:
                continue
            del self._current[thing]
            present = value if rescore is None else rescore(thing)
            if present is None:
                aside.append((thing, value))
            elif present > value + 1e-9:
                self.put(thing, present)
            else:
                found = thing
                break
        for thing, value in aside:
            self.put(thing, value)
        return found

    def least(self) -> float | None:
        """The least score, as of when it was given."""
        while self._heap:
            value, serial, thing = self._heap[0]
            if self._current.get(thing) == serial:
                return value
            heapq.heappop(self._heap)
        return None

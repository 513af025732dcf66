"""Requests that come together and begin alike: the first one computes the beginning, the others wait for it.

An agent that starts several sub-agents sends the same long prompt several times at once. Admitted side by
side each would compute all of it; one behind the other they compute it once.
"""

from collections.abc import Iterable

from k3agent.backend.engine.sequence import Sequence, Status

_PIECE = 512


class SharedBeginnings:
    """Compares prompts once a pair. `unit`: a state can be left behind at multiples of so many tokens."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._lengths: dict[tuple[Sequence, Sequence], int] = {}

    def leader(self, sequence: Sequence, running: Iterable[Sequence]) -> Sequence | None:
        """Who is about to compute the beginning of this sequence; it leaves a state where the two part."""
        for other in running:
            if other.status is not Status.PREFILLING or other.is_suspect:
                continue
            pair = (sequence, other)
            if pair not in self._lengths:
                # the last token of either is always computed by itself
                most = min(len(sequence.token_ids), len(other.token_ids)) - 1
                common = _num_common(sequence.token_ids, other.token_ids, most)
                self._lengths[pair] = common // self._unit * self._unit
            position = self._lengths[pair]
            if position > other.num_computed:
                if position not in other.checkpoint_at:
                    other.checkpoint_at = sorted([*other.checkpoint_at, position])
                return other
        return None

    def forget(self, sequence: Sequence) -> None:
        """It is over, or begins anew."""
        self._lengths = {pair: n for pair, n in self._lengths.items() if sequence not in pair}


def _num_common(a: list[int], b: list[int], most: int) -> int:
    start = 0
    while start < most and a[start : start + _PIECE] == b[start : start + _PIECE]:
        start += _PIECE
    while start < most and a[start] == b[start]:
        start += 1
    return min(start, most)

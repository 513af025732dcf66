"""Guesses the next tokens from the sequence's own text: what followed the last time these tokens stood here.

A coding agent's answers repeat much of what was read: paths, names, lines to be changed. A guess costs no
model; the pass that checks it decides alone what is said, so it changes the speed and never the answer.
"""

from collections.abc import Sequence

MIN_MATCH = 3
MAX_MATCH = 16
MAX_CANDIDATES = 8


class PromptLookup:
    """The places of all runs of `MIN_MATCH` tokens in a list that grows; and how long a guess should be."""

    def __init__(self, max_draft: int) -> None:
        self._max_draft = max_draft
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._num_indexed = 0
        self._length = max(max_draft // 2, 1)
        self._pause = 0
        self._num_failures = 0

    def guess(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Tokens that may follow; none while guesses keep failing."""
        count = min(self._length, max_tokens)
        if self._pause > 0:
            self._pause -= 1
            return []
        if count < 1:
            return []
        self._index(token_ids)
        place = self._best_place(token_ids)
        return [] if place is None else list(token_ids[place : place + count])

    def learn(self, num_draft: int, num_accepted: int) -> None:
        """Longer guesses after good ones, and a rest after several that were of no use."""
        if num_accepted == num_draft:
            self._length = min(2 * self._length, self._max_draft)
        else:
            self._length = max(min(num_accepted + 1, self._max_draft), 1)
        if num_accepted > 0:
            self._num_failures = 0
            return
        self._num_failures += 1
        self._pause = min(2**self._num_failures, 64) - 2

    def _index(self, token_ids: Sequence[int]) -> None:
        """Enter the runs that ended since the last call; the last one is what is looked for."""
        for end in range(max(self._num_indexed, MIN_MATCH), len(token_ids)):
            self._places.setdefault(tuple(token_ids[end - MIN_MATCH : end]), []).append(end)
        self._num_indexed = max(self._num_indexed, len(token_ids))

    def _best_place(self, token_ids: Sequence[int]) -> int | None:
        """Where the text continues after the longest run that ends like the list; of equals the latest."""
        if len(token_ids) < MIN_MATCH:
            return None
        best, found = 0, None
        for place in reversed(self._places.get(tuple(token_ids[-MIN_MATCH:]), ())[-MAX_CANDIDATES:]):
            length = MIN_MATCH
            while (
                length < MAX_MATCH
                and length < place
                and token_ids[place - length - 1] == token_ids[-length - 1]
            ):
                length += 1
            if length > best:
                best, found = length, place
        return found

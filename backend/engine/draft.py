"""Guesses the next tokens from the sequence's own text: what followed the last time these tokens stood here.

A coding agent's answers repeat much of what was read: paths, names, lines to be changed. A guess costs no
model; the pass that checks it decides alone what is said, so it changes the speed and never the answer.
"""

from collections.abc import Sequence

MAX_DRAFT = 15
"""One token less than what the model takes as a short piece."""
MIN_DRAFT = 3
"""Checking fewer costs about as much as computing them."""
MIN_MATCH = 3
MAX_MATCH = 16
MAX_CANDIDATES = 8
MAX_PAUSE = 64


class PromptLookup:
    """The places of all runs of `MIN_MATCH` tokens in a list that grows; and how long a guess should be."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._num_indexed = 0
        self._length = MAX_DRAFT // 2
        self._pause = 0
        self._num_failures = 0

    def guess(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Tokens that may follow; none while guesses keep failing."""
        if self._pause > 0:
            self._pause -= 1
            return []
        if max_tokens < MIN_DRAFT:
            return []
        self._index(token_ids)
        place = self._best_place(token_ids)
        if place is None:
            return []
        found = token_ids[place : place + min(self._length, max_tokens)]
        # images have ids past the vocabulary, and nobody says them
        stop = next((i for i, token in enumerate(found) if token >= self._vocab_size), len(found))
        return list(found[:stop]) if stop >= MIN_DRAFT else []

    def learn(self, num_draft: int, num_accepted: int) -> None:
        """Longer guesses after good ones, and a rest after several that were of no use."""
        if num_accepted == num_draft:
            self._length = MAX_DRAFT
        elif num_accepted < num_draft // 2:
            self._length = max(self._length // 2, MIN_DRAFT)
        if num_accepted >= MIN_DRAFT - 1:
            self._num_failures = 0
            return
        self._num_failures += 1
        self._pause = min(2**self._num_failures, MAX_PAUSE) - 2

    def _index(self, token_ids: Sequence[int]) -> None:
        """Enter the runs that have a token behind them; the last run is what is looked for."""
        for end in range(max(self._num_indexed, MIN_MATCH), len(token_ids)):
            self._places.setdefault(tuple(token_ids[end - MIN_MATCH : end]), []).append(end)
        self._num_indexed = max(self._num_indexed, len(token_ids))

    def _best_place(self, token_ids: Sequence[int]) -> int | None:
        """Where the text continues after the longest run that ends like the list; of equals the latest."""
        if len(token_ids) < MIN_MATCH:
            return None
        best, found = 0, None
        for place in reversed(self._places.get(tuple(token_ids[-MIN_MATCH:]), [])[-MAX_CANDIDATES:]):
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

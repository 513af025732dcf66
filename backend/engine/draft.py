"""Guesses the next tokens from the sequence's own text: what followed the last time these tokens stood here.

A coding agent's answers repeat much of what was read: paths, names, lines to be changed. A guess costs no
model; the pass that checks it decides alone what is said, so it changes the speed and never the answer.
"""

from collections.abc import Sequence

MAX_DRAFT = 15
"""One token less than what the model takes as a short piece."""
MIN_MATCH = 2
MAX_MATCH = 9
MAX_CANDIDATES = 8
MAX_PAUSE = 64


class PromptLookup:
    """The places of all runs of `MIN_MATCH` tokens in a list that grows."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._num_indexed = 0
        self._pause = 0
        self._num_failures = 0

    def guess(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Tokens that may follow; the more, the longer the text agrees. None while guesses keep failing."""
        if self._pause > 0:
            self._pause -= 1
            return []
        if max_tokens < 1:
            return []
        self._index(token_ids)
        place, match = self._best_place(token_ids)
        found = token_ids[place : place + min(2 * (match - 1), MAX_DRAFT, max_tokens)]
        # images have ids past the vocabulary, and nobody says them
        stop = next((i for i, token in enumerate(found) if token >= self._vocab_size), len(found))
        return list(found[:stop])

    def learn(self, num_accepted: int) -> None:
        """Rest after several guesses that were of no use, each time longer."""
        if num_accepted > 0:
            self._num_failures = 0
        else:
            self._num_failures += 1
            self._pause = max(int(min(1.5**self._num_failures, MAX_PAUSE)) - 2, 0)

    def _index(self, token_ids: Sequence[int]) -> None:
        """Enter the runs that have a token behind them; the last run is what is looked for."""
        for end in range(max(self._num_indexed, MIN_MATCH), len(token_ids)):
            self._places.setdefault(tuple(token_ids[end - MIN_MATCH : end]), []).append(end)
        self._num_indexed = max(self._num_indexed, len(token_ids))

    def _best_place(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Where the text continues after the longest run that ends like the list, of equals the latest; and
        the length of the run. At the end of the list if there is none."""
        best, found = 1, len(token_ids)
        for place in reversed(self._places.get(tuple(token_ids[-MIN_MATCH:]), [])[-MAX_CANDIDATES:]):
            length = MIN_MATCH
            while length < min(MAX_MATCH, place) and token_ids[place - length - 1] == token_ids[-length - 1]:
                length += 1
            if length > best:
                best, found = length, place
        return found, best

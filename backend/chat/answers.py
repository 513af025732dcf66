"""Remembers the ids that were really sampled for each answer: tokens, not text.

A sampled answer may spell its text with other tokens than the tokenizer would. Rendering it from the message
then gives other ids, and the next request misses the prefix cache. So the ids are kept under a hash of the
prompt and of the rendered answer, and put back when the client returns the message.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from k3agent.backend.chat.template import Json, Substitute, render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer


class SampledAnswers:
    """A bounded map, least recently used answers leave first. `max_ids` bounds the sum of the kept ids."""

    def __init__(self, tokenizer: Tokenizer, max_ids: int = 2_000_000) -> None:
        self._tokenizer = tokenizer
        self._max_ids = max_ids
        self._num_ids = 0
        self._answers: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def remember(
        self, prompt_ids: Sequence[int], message: Json, sampled_ids: Sequence[int], thinking: bool = True
    ) -> None:
        """Keep `sampled_ids` if rendering `message` would give others."""
        rendered = render_assistant(self._tokenizer, message, thinking)
        sampled = tuple(sampled_ids)
        if tuple(rendered) == sampled or len(sampled) > self._max_ids:
            return
        key = _extend(_extend(hashlib.blake2b(digest_size=16), prompt_ids), rendered).digest()
        self._num_ids += len(sampled) - len(self._answers.pop(key, ()))
        self._answers[key] = sampled
        while self._num_ids > self._max_ids:
            _key, old = self._answers.popitem(last=False)
            self._num_ids -= len(old)

    def substitute(self) -> Substitute:
        """A look-up for one call of `render`; it hashes the growing prompt only once."""
        prefix = hashlib.blake2b(digest_size=16)
        num_hashed = 0

        def look_up(before: list[int], rendered: list[int]) -> list[int] | None:
            nonlocal num_hashed
            if not self._answers:
                return None
            _extend(prefix, before[num_hashed:])
            num_hashed = len(before)
            key = _extend(prefix.copy(), rendered).digest()
            sampled = self._answers.get(key)
            if sampled is None:
                return None
            self._answers.move_to_end(key)
            return list(sampled)

        return look_up


def _extend(hasher: "hashlib.blake2b", ids: Sequence[int]) -> "hashlib.blake2b":
    hasher.update(array("I", ids).tobytes())
    return hasher

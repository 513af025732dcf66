"""Replaces states that decoding made by those of a cold run, while nothing else is to do.

A turn ends with a state that was advanced token by token; a cold run would have computed its tokens in chunks
of the grid, and the two differ in rounding. Between turns the engine computes the ended turn once more on the
grid, one chunk a step, and gives up its place at once when a request comes: what it has by then is kept.
"""

import logging

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.engine.messages import SamplingParams
from k3agent.backend.engine.runner import Runner
from k3agent.backend.engine.sampler import Choice
from k3agent.backend.engine.sequence import Sequence
from k3agent.backend.errors import BackendError

log = logging.getLogger(__name__)

GREEDY = SamplingParams(temperature=0)


class Canonicaliser:
    """At most one sequence, of which nobody waits for an answer."""

    def __init__(self, cache: HybridCache, runner: Runner, chunk: int) -> None:
        self.num_tokens = 0
        """Computed so far."""
        self.may_have_work = False
        """Set it when a turn has ended."""
        self._cache = cache
        self._runner = runner
        self._chunk = chunk
        self._sequence: Sequence | None = None

    def step(self) -> None:
        """Compute one chunk, if there is one."""
        sequence = self._sequence or self._begin()
        if sequence is None:
            return
        end = min(sequence.num_computed + self._chunk, len(sequence.token_ids))
        if not self._cache.reserve(sequence, end):
            self._give_up(sequence, "the cache is full")
            return
        try:
            self._runner.forward([self._runner.work(sequence, end, 0)])
        except (BackendError, RuntimeError) as error:
            log.exception("a chunk of background work failed")
            self._runner.check_device()
            self._give_up(sequence, str(error))
            return
        self.num_tokens += end - sequence.num_computed
        if sequence.num_computed == sequence.num_exact:
            sequence.num_exact = end
        sequence.num_computed = end
        if end == len(sequence.token_ids):
            self.pause()

    def pause(self) -> None:
        """Keep what is computed and hold nothing any more; the work goes on from there another time."""
        sequence, self._sequence = self._sequence, None
        if sequence is not None:
            if sequence.num_computed > 0:
                self._cache.checkpoint(sequence, give_slot=True)
            self._cache.release(sequence)

    def _begin(self) -> Sequence | None:
        token_ids = self._cache.next_inexact()
        if token_ids is None:
            self.may_have_work = False
            return None
        vocab_size = self._runner.config.vocab_size
        choice = Choice(GREEDY, [], vocab_size, self._runner.device)
        sequence = Sequence(request_id="", token_ids=token_ids, params=GREEDY, choice=choice)
        if any(token >= vocab_size for token in token_ids):
            # the pixels of its images are gone
            self._give_up(sequence, "it has images")
            return None
        if not self._cache.adopt(sequence, self._cache.match(token_ids, exact_only=True)):
            self._give_up(sequence, "no slot is free")
            return None
        self._sequence = sequence
        return sequence

    def _give_up(self, sequence: Sequence, reason: str) -> None:
        log.info("a turn of %d tokens stays inexact: %s", len(sequence.token_ids), reason)
        self._cache.skip_inexact(sequence.token_ids)
        self._cache.release(sequence)
        self._sequence = None

"""Who runs in a step: admission, chunks of prefill, preemption.

Several sequences decode side by side; beside them one chunk of one prompt is computed, in a pass of its own,
because equal passes are what keeps a cache hit equal to a cold run. Memory is promised before it is used: a
request whose worst case can never fit is refused, one that does not fit now waits, first come first served.
Where the end of an answer is open, only a part of its worst case is promised; when the promise turns out too
small, the youngest sequence is preempted: it publishes what it has, gives everything back and waits to be
matched again like any other request. The oldest one is never preempted for memory: something always proceeds.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from k3agent.backend.cache.hybrid import HybridCache, Prefix
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine.sequence import Sequence, Status
from k3agent.backend.engine.siblings import SharedBeginnings
from k3agent.backend.errors import BadRequestError, CacheFullError

log = logging.getLogger(__name__)

OPEN_ENDED_TOKENS = 1024
"""Of a long answer so much is promised at admission; twice as much after each preemption."""
SLICE_STEPS = 512
"""A sequence that has run for so long makes room for one that has waited for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_model_len: int
    max_waiting: int
    max_running: int
    chunk: int
    """Prefill is cut at multiples of this many tokens."""
    on_grid_only: bool
    """Cut nowhere else, so that what is computed is what a cold run computes."""


@dataclass(slots=True)
class Plan:
    """One step: a chunk of one prompt, to before position `end`, and all sequences that decode."""

    prefill: Sequence | None
    end: int
    decodes: list[Sequence]


class Scheduler:
    """The sequences that wait and run. `on_admitted` is told when one has its pages and its slot."""

    def __init__(
        self, cache: HybridCache, limits: Limits, on_admitted: Callable[[Sequence], None] = lambda _: None
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In the order of their arrival: the oldest one first."""
        self.open_ended_tokens = OPEN_ENDED_TOKENS
        self.slice_steps = SLICE_STEPS
        self.num_steps = 0
        self.num_preempted = 0
        self.wait_reason = ""
        """Why the first waiting sequence is not running."""
        self._cache = cache
        self._limits = limits
        self._on_admitted = on_admitted
        self.refused: list[tuple[Sequence, str]] = []
        """Sequences that turned out to be impossible, with the reason; whoever reads it empties it."""
        self._siblings = SharedBeginnings(limits.chunk if limits.on_grid_only else PAGE_SIZE)
        self._arrivals = 0
        self._order: dict[Sequence, int] = {}
        self._num_left = 0
        self._stuck: tuple[Sequence, int] | None = None
        """Who could not be admitted, and how many had left until then: it is no use to try again before the
        next one leaves."""

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.waiting
        yield from self.running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; BadRequestError when it could never run, CacheFullError when too many wait."""
        limits = self._limits
        worst = min(sequence.num_prompt + sequence.params.max_tokens, limits.max_model_len)
        # one page more: a resume inside a page copies it
        if _pages(worst) + 1 > self._cache.pages.num_pages:
            raise BadRequestError(
                f"the prompt and its answer may take {worst} tokens, {_pages(worst) + 1} pages of"
                f" {PAGE_SIZE}; the cache has {self._cache.pages.num_pages}. Lower max_tokens or raise"
                " --cache-bytes"
            )
        if len(self.waiting) >= limits.max_waiting:
            raise CacheFullError(f"{len(self.waiting)} requests wait already; try again later")
        sequence.clock.queued_at = self.num_steps
        self._arrivals += 1
        self._order[sequence] = self._arrivals
        self.waiting.append(sequence)

    def plan(self) -> Plan:
        """Admit what fits, and say what to run now; memory for it is reserved when this returns."""
        self.num_steps += 1
        self._share_time()
        self._admit()
        decodes = self._decodes()
        prefilling = [s for s in self.running if s.status is Status.PREFILLING]
        chosen = min(prefilling, key=lambda s: s.clock.prefilled_at, default=None)
        end = 0
        if chosen is not None:
            chosen.clock.prefilled_at = self.num_steps
            end = self._chunk_end(chosen, bool(decodes))
        return Plan(chosen, end, decodes)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence; what it holds of the cache is the caller's to give back."""
        queue = self.running if sequence in self.running else self.waiting
        queue.remove(sequence)
        self._siblings.forget(sequence)
        self._order.pop(sequence, None)
        self._num_left += 1

    def preempt(self, sequence: Sequence, publish: bool = True) -> None:
        """Give back all it holds and let it wait again. `publish` False: what it computed is not trusted."""
        self.running.remove(sequence)
        self._siblings.forget(sequence)
        self._num_left += 1
        if publish and sequence.num_computed > 0:
            self._cache.checkpoint(sequence, give_slot=True)
        self._cache.release(sequence)
        sequence.forget_cache()
        sequence.status = Status.WAITING
        sequence.num_preempted += 1
        self.num_preempted += 1
        sequence.clock.queued_at = self.num_steps
        self.waiting.appendleft(sequence)

    # --- admission

    def _admit(self) -> None:
        self.wait_reason = ""
        for sequence in list(self.waiting):
            if len(self.running) >= self._limits.max_running:
                self.wait_reason = f"{len(self.running)} requests run already"
                return
            if self._siblings.leader(sequence, self.running) is not None:
                self.wait_reason = "another request computes the same beginning"
                continue
            stuck = (sequence, self._num_left)
            if self._stuck == stuck or not self._enter(sequence):
                if self.running:
                    self._stuck = stuck
                    self.wait_reason = f"{_pages(len(sequence.token_ids))} pages and a slot are not free yet"
                    return
                # the whole cache was there for it: it would wait for ever
                self.remove(sequence)
                text = f"the cache has no room for {len(sequence.token_ids)} tokens; raise --cache-bytes"
                self.refused.append((sequence, text))
                continue
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self.running.sort(key=lambda s: self._order[s])
            sequence.clock.admitted_at = self.num_steps
            sequence.status = Status.PREFILLING
            self._on_admitted(sequence)

    def _enter(self, sequence: Sequence) -> bool:
        """Match, adopt and reserve for a sequence if the cache can keep its promises; else change nothing."""
        cache = self._cache
        prefix = cache.match(sequence.token_ids)
        whole = prefix.path[: prefix.state_len // PAGE_SIZE]
        wanted = self._promise(sequence) - sum(node.page_id is not None for node in whole)
        hits = dict(cache.counters.hit_tokens_by_tier)
        if self.running and wanted > self._num_obtainable(prefix):
            cache.drop(prefix)
            return False
        if not cache.adopt(sequence, prefix):
            return False
        if not cache.reserve(sequence, len(sequence.token_ids)):
            cache.release(sequence)
            sequence.forget_cache()
            return False
        if sequence.num_preempted == 0:
            now = cache.counters.hit_tokens_by_tier
            sequence.num_cached_by_tier = {tier: now[tier] - before for tier, before in hits.items()}
        sequence.checkpoint_at = cache.plan(prefix, len(sequence.token_ids), sequence.anchors)
        return True

    def _promise(self, sequence: Sequence) -> int:
        """Pages that the sequence may need before it has to ask again."""
        left = sequence.params.max_tokens - sequence.num_generated
        ahead = min(left, self.open_ended_tokens << min(sequence.num_preempted, 16))
        return _pages(min(len(sequence.token_ids) + ahead, self._limits.max_model_len)) + 1

    def _num_obtainable(self, prefix: Prefix) -> int:
        """Pages that are free or can be evicted, and promised to nobody; those of the prefix are wanted."""
        pages = self._cache.pages
        promised = sum(max(self._promise(s) - len(s.page_ids), 0) for s in self.running)
        wanted = sum(
            node.page_id is not None and pages.num_holders(node.page_id) == 1 for node in prefix.path
        )
        return pages.num_free + pages.num_idle - wanted - promised

    # --- the step

    def _chunk_end(self, sequence: Sequence, beside_decodes: bool) -> int:
        begin = sequence.num_computed
        chunk = self._limits.chunk
        stops = [] if self._limits.on_grid_only else [p for p in sequence.checkpoint_at if p > begin]
        if beside_decodes and not self._limits.on_grid_only:
            # cuts mean nothing here, and those who read along notice long pauses
            chunk = max(chunk // 4, PAGE_SIZE)
        return min([len(sequence.token_ids), (begin // chunk + 1) * chunk, *stops])

    def _decodes(self) -> list[Sequence]:
        """The sequences of the next decode pass, with pages for what is decided; makes room if it must."""
        chosen: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.status not in (Status.DECODING, Status.ENDING) or sequence not in self.running:
                continue
            if self._make_room(sequence):
                chosen.append(sequence)
        chosen = [s for s in chosen if s in self.running]
        suspects = [s for s in chosen if s.is_suspect]
        return suspects[:1] or chosen

    def _make_room(self, sequence: Sequence) -> bool:
        """Reserve pages for the decided tokens; younger sequences make room for older ones."""
        while not self._cache.reserve(sequence, len(sequence.token_ids)):
            youngest = self.running[-1]
            if youngest.status is Status.ENDING:
                # its answer is out; only the cache would miss the last tokens
                self.remove(youngest)
                self._cache.release(youngest)
                youngest.status = Status.ENDED
            else:
                log.info("%s is preempted: the cache is full", youngest.request_id)
                self.preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _share_time(self) -> None:
        """Nobody waits for ever behind answers that do not end."""
        if not self.waiting or self.num_steps - self.waiting[0].clock.queued_at < self.slice_steps:
            return
        ran = [s for s in self.running if self.num_steps - s.clock.admitted_at >= self.slice_steps]
        ran = [s for s in ran if s.status is Status.DECODING]
        if not ran:
            return
        longest = min(ran, key=lambda s: s.clock.admitted_at)
        self.preempt(longest)
        # to the end of the queue, and to the end of the order in which memory is promised
        self.waiting.rotate(-1)
        self._arrivals += 1
        self._order[longest] = self._arrivals


def _pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)

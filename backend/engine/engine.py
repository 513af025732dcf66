"""The step loop: takes requests one after another, prefills in chunks, decodes, and reports.

Synchronous and without threads: a caller adds and aborts between steps. `process.py` runs it behind a pipe.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass

import torch

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine.grammar import Grammar
from k3agent.backend.engine.images import place_images
from k3agent.backend.engine.messages import (
    Add,
    Counters,
    EngineSettings,
    Failed,
    Finished,
    FinishReason,
    Generated,
    Prefilled,
    Report,
    SamplingParams,
)
from k3agent.backend.engine.runner import Runner
from k3agent.backend.engine.sampler import Sampler
from k3agent.backend.engine.sequence import Sequence, Status
from k3agent.backend.errors import BackendError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Clock:
    """When a request was added, admitted and began to decode."""

    added: float
    admitted: float = 0.0
    decoding: float = 0.0


class Engine:
    """One model, one running sequence, a queue of waiting ones."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        self.cache = HybridCache(runner.num_pages, runner.num_slots, runner.storage)
        self._runner = runner
        self._tokenizer = tokenizer
        self._settings = settings
        self._sampler = Sampler(runner.device)
        self._waiting: deque[Sequence] = deque()
        self._running: Sequence | None = None
        self._ending: Sequence | None = None
        self._generator: torch.Generator | None = None
        self._clocks: dict[str, _Clock] = {}
        self._reports: list[Report] = []
        self._ends = {tokenizer.special("<|end_of_msg|>"), tokenizer.special_tokens.get("[EOS]", -1)}
        self._sums = {"requests": 0.0, "prompt_tokens": 0.0, "cached_tokens": 0.0, "generated_tokens": 0.0}

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._ending)

    def add(self, request: Add) -> None:
        """Queue a request; a refusal is reported as Failed."""
        limit = self._runner.max_model_len
        if not request.token_ids:
            self._reports.append(Failed(request.request_id, "the prompt is empty", "bad_request"))
        elif len(request.token_ids) >= limit:
            text = f"the prompt has {len(request.token_ids)} tokens, the context length is {limit}"
            self._reports.append(Failed(request.request_id, text, "bad_request"))
        elif len(self._waiting) >= self._settings.max_waiting:
            text = f"{len(self._waiting)} requests wait already"
            self._reports.append(Failed(request.request_id, text, "overloaded"))
        else:
            grammar = Grammar(self._tokenizer, request.grammar) if request.grammar else None
            token_ids, spans = place_images(request.token_ids, request.images, self._runner.config.vocab_size)
            sequence = Sequence(
                request_id=request.request_id,
                token_ids=token_ids,
                params=request.params,
                grammar=grammar,
                checkpoint_at=list(request.checkpoint_at),
                images=spans,
            )
            self._waiting.append(sequence)
            self._clocks[sequence.request_id] = _Clock(time.perf_counter())

    def abort(self, request_id: str) -> None:
        """End a request wherever it stands; an unknown or ended one is no error."""
        for sequence in self._waiting:
            if sequence.request_id == request_id:
                self._waiting.remove(sequence)
                self._report_end(sequence, "abort")
                return
        running = self._running
        if running is not None and running.request_id == request_id:
            self._running = None
            self._leave(running)
            self._report_end(running, "abort")

    def step(self) -> list[Report]:
        """Do one piece of work, at most one forward pass, and return what there is to report."""
        try:
            if self._ending is not None:
                self._finish_cache(self._ending)
            elif self._running is None and self._waiting:
                self._admit(self._waiting.popleft())
            elif self._running is not None and self._running.status is Status.PREFILLING:
                self._prefill(self._running)
            elif self._running is not None:
                self._decode(self._running)
        except (BackendError, RuntimeError) as error:
            self._fail(error)
        reports, self._reports = self._reports, []
        return reports

    def warm_up(self) -> None:
        """Run every kind of step once, so that the first request does not pay for it, and forget it."""
        ids = [self._tokenizer.special("<|open|>")] * min(PAGE_SIZE + 2, self._runner.max_model_len - 4)
        params = SamplingParams(temperature=0, max_tokens=2)
        self.add(Add(request_id="warm-up", token_ids=ids, params=params))
        while self.has_work:
            for report in self.step():
                if isinstance(report, Failed):
                    raise BackendError(f"the model does not run: {report.message}")
        self.cache.clear()
        self.cache.counters = type(self.cache.counters)()
        self._sums = dict.fromkeys(self._sums, 0.0)

    def close(self) -> None:
        """End what runs beside this process."""
        self._runner.close()

    def counters(self) -> Counters:
        cache = self.cache
        levels = {
            "waiting_requests": len(self._waiting),
            "running_requests": int(self._running is not None),
            "free_pages": cache.pages.num_free,
            "free_slots": cache.states.num_free,
            "tree_pages": cache.tree.num_nodes,
            "lost_without_state_tokens": cache.counters.lost_without_state_tokens,
            "evicted_pages": cache.counters.evicted_pages,
            "evicted_checkpoints": cache.counters.evicted_checkpoints,
        }
        return Counters(values=self._sums | {name: float(value) for name, value in levels.items()})

    # --- steps

    def _admit(self, sequence: Sequence) -> None:
        self._running = sequence
        self._clocks[sequence.request_id].admitted = time.perf_counter()
        prefix = self.cache.match(sequence.token_ids)
        wanted = [PAGE_SIZE * (position // PAGE_SIZE) for position in sequence.checkpoint_at]
        # a second request that leaves a known path here leaves a state behind for the third
        wanted.append(PAGE_SIZE * (prefix.kv_len // PAGE_SIZE))
        wanted.append(PAGE_SIZE * ((sequence.num_prompt - 1) // PAGE_SIZE))
        if not self.cache.adopt(sequence, prefix) or not self.cache.reserve(sequence, sequence.num_prompt):
            raise BackendError(f"the cache has no room for {sequence.num_prompt} tokens; raise --cache-bytes")
        sequence.num_cached = sequence.num_computed
        least = sequence.num_cached + PAGE_SIZE
        sequence.checkpoint_at = sorted({p for p in wanted if least <= p < sequence.num_prompt})
        sequence.status = Status.PREFILLING
        self._generator = self._sampler.generator(sequence.params)
        self._report_progress(sequence)

    def _prefill(self, sequence: Sequence) -> None:
        grid = self._settings.grid
        begin = sequence.num_computed
        stops = [p for p in sequence.checkpoint_at if p > begin]
        end = min([sequence.num_prompt, (begin // grid + 1) * grid, *stops])
        is_last = end == sequence.num_prompt
        logits = self._runner.forward(sequence, end - begin, want_logits=is_last)
        if end in sequence.checkpoint_at:
            self.cache.checkpoint(sequence)
        self._report_progress(sequence)
        if logits is not None:
            sequence.status = Status.DECODING
            self._clocks[sequence.request_id].decoding = time.perf_counter()
            self._take(sequence, logits)

    def _decode(self, sequence: Sequence) -> None:
        if not self.cache.reserve(sequence, len(sequence.token_ids)):
            self._end(sequence, "length")
            return
        logits = self._runner.forward(sequence, len(sequence.token_ids) - sequence.num_computed)
        assert logits is not None
        self._take(sequence, logits)

    def _take(self, sequence: Sequence, logits: torch.Tensor) -> None:
        """Choose the next token, add what the grammar forces after it, and see whether the answer is over."""
        grammar = sequence.grammar
        allowed = grammar.allowed if grammar else None
        chosen = self._sampler.sample(logits, sequence.params, allowed, self._generator)
        new = [chosen]
        if grammar is not None:
            grammar.advance(chosen)
            new += grammar.forced()
        room = min(
            sequence.params.max_tokens - sequence.num_generated,
            self._runner.max_model_len - len(sequence.token_ids),
        )
        new = new[:room]
        sequence.token_ids += new
        self._reports.append(Generated(sequence.request_id, new))
        if new and new[-1] in self._ends:
            self._end(sequence, "stop")
        elif len(new) == room:
            self._end(sequence, "length")

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        self._running = None
        self._ending = sequence
        self._report_end(sequence, reason)

    def _finish_cache(self, sequence: Sequence) -> None:
        """Compute what was generated but not yet fed, so that all of the answer is cached, and file the
        state.
        """
        self._ending = None
        rest = len(sequence.token_ids) - sequence.num_computed
        try:
            if rest and self.cache.reserve(sequence, len(sequence.token_ids)):
                self._runner.forward(sequence, rest, want_logits=False)
        except RuntimeError:
            # a pass that broke off has touched the state: it must not become a checkpoint
            self.cache.release(sequence)
            raise
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        if sequence.num_computed > sequence.num_cached:
            self.cache.checkpoint(sequence, give_slot=True)
        self.cache.release(sequence)

    def _fail(self, error: Exception) -> None:
        """One request fails; the engine goes on. What it computed is not trusted and enters no tree."""
        log.exception("a step failed")
        running = self._running
        self._running = None
        if running is not None:
            self.cache.release(running)
            running.status = Status.ENDED
            self._clocks.pop(running.request_id, None)
            self._reports.append(Failed(running.request_id, str(error)))

    # --- reports

    def _report_progress(self, sequence: Sequence) -> None:
        self._reports.append(
            Prefilled(
                request_id=sequence.request_id,
                num_computed=sequence.num_computed,
                num_prompt=sequence.num_prompt,
                num_cached=sequence.num_cached,
            )
        )

    def _report_end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.status = Status.ENDED
        clock = self._clocks.pop(sequence.request_id)
        now = time.perf_counter()
        admitted = clock.admitted or now
        decoding = clock.decoding or now
        self._sums["requests"] += 1
        self._sums["prompt_tokens"] += sequence.num_prompt
        self._sums["cached_tokens"] += sequence.num_cached
        self._sums["generated_tokens"] += sequence.num_generated
        self._reports.append(
            Finished(
                request_id=sequence.request_id,
                reason=reason,
                num_prompt=sequence.num_prompt,
                num_cached=sequence.num_cached,
                num_generated=sequence.num_generated,
                queued_s=admitted - clock.added,
                prefill_s=decoding - admitted,
                decode_s=now - decoding,
            )
        )
        self._reports.append(self.counters())

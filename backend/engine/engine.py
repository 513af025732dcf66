"""The step loop: prefills prompts in chunks, decodes all running sequences together, and reports.

Synchronous and without threads: a caller adds and aborts between steps. `process.py` runs it behind a pipe.
"""

import logging
import time
from itertools import islice

from torch import Tensor

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.cache.tiers import HostTier
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine.accounts import levels
from k3agent.backend.engine.canonical import Canonicaliser
from k3agent.backend.engine.draft import PromptLookup
from k3agent.backend.engine.fingerprint import fingerprint
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
from k3agent.backend.engine.ranks import layout_of
from k3agent.backend.engine.runner import Runner, chunk_of, exactness_of
from k3agent.backend.engine.sampler import Choice, Sampler
from k3agent.backend.engine.scheduler import Limits, Scheduler
from k3agent.backend.engine.sequence import Sequence, Status
from k3agent.backend.engine.static_steps import Progress, no_progress
from k3agent.backend.engine.stops import StopWatch
from k3agent.backend.engine.taking import Taken, TokenTaker
from k3agent.backend.engine.work import Work
from k3agent.backend.errors import BackendError, BadRequestError, CacheFullError
from k3agent.backend.model.step import SHORT

log = logging.getLogger(__name__)

SUMS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "draft_tokens",
    "accepted_tokens",
)


class Engine:
    """One model, and the sequences that run on it."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        chunk = chunk_of(settings, runner.device)
        exactness = exactness_of(settings, runner.config)
        self.cache = HybridCache(
            runner.num_pages, runner.num_slots, runner.storage, grid=chunk, exactness=exactness
        )
        self._runner = runner
        self._tokenizer = tokenizer
        limits = Limits(
            max_model_len=runner.max_model_len,
            max_waiting=settings.max_waiting,
            # half of the states are left for checkpoints
            max_running=max(min(settings.max_running, runner.num_slots // 2), 1),
            chunk=chunk,
            on_grid_only=exactness != "off",
        )
        self.scheduler = Scheduler(self.cache, limits, self._admitted)
        self._settings = settings
        self._canonicaliser = Canonicaliser(self.cache, runner, chunk)
        self._chunk = chunk
        self._sampler = Sampler(runner.device, settings.kernels)
        self._taker = TokenTaker(tokenizer, self._sampler, runner.max_model_len)
        self._reports: list[Report] = []
        self._sums = dict.fromkeys(SUMS, 0.0)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something; a refusal that was not reported yet counts, too."""
        is_busy = self.scheduler.waiting or self.scheduler.running or self._reports
        return bool(is_busy) or self._canonicaliser.may_have_work

    def add(self, request: Add) -> None:
        """Queue a request; a refusal is reported as Failed."""
        limit = self._runner.max_model_len
        try:
            if not request.token_ids:
                raise BadRequestError("the prompt is empty")
            if len(request.token_ids) >= limit:
                count = len(request.token_ids)
                raise BadRequestError(f"the prompt has {count} tokens, the context length is {limit}")
            self.scheduler.add(self._sequence(request))
        except BadRequestError as error:
            self._reports.append(Failed(request.request_id, str(error), "bad_request"))
        except CacheFullError as error:
            self._reports.append(Failed(request.request_id, str(error), "overloaded"))
        except BackendError as error:
            self._reports.append(Failed(request.request_id, str(error)))

    def _sequence(self, request: Add) -> Sequence:
        params, spec = request.params, request.grammar
        vocab_size = self._runner.config.vocab_size
        token_ids, spans = place_images(request.token_ids, request.images, vocab_size)
        stops = None
        if params.stop:
            channel = request.channel or (spec.channel if spec else None)
            stops = StopWatch(self._tokenizer, params.stop, channel)
        sequence = Sequence(
            request_id=request.request_id,
            token_ids=token_ids,
            params=params,
            choice=Choice(params, token_ids, vocab_size, self._runner.device),
            grammar=Grammar(self._tokenizer, spec) if spec else None,
            stops=stops,
            lookup=PromptLookup(vocab_size) if self._runner.trail_slots else None,
            anchors=request.checkpoint_at,
            images=spans,
        )
        sequence.clock.added_s = time.perf_counter()
        return sequence

    def abort(self, request_id: str) -> None:
        """End a request wherever it stands; an unknown or ended one is no error."""
        for sequence in list(self.scheduler):
            if sequence.request_id == request_id and sequence.status is not Status.ENDING:
                self._leave(sequence)
                self._report_end(sequence, "abort")

    def step(self) -> list[Report]:
        """Do one piece of work, at most one chunk of prefill and one pass of decodes, and return what there
        is to report. With no request to work for, background work goes on.
        """
        if not self.scheduler.waiting and not self.scheduler.running:
            self._canonicaliser.step()
            return self._take_reports()
        self._canonicaliser.pause()
        plan = self.scheduler.plan()
        for sequence, reason in self.scheduler.refused:
            self._fail(sequence, reason)
        self.scheduler.refused.clear()
        if plan.prefill is not None:
            self._prefill(plan.prefill, plan.end)
        if plan.decodes:
            self._decode(plan.decodes)
        return self._take_reports()

    def _take_reports(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def warm_up(self, progress: Progress = no_progress) -> None:
        """Run every kind of step once, so that the first request does not pay for it, and forget it."""
        self._runner.prepare(progress)
        # on a GPU a whole chunk compiles what long prompts need
        num_tokens = (self._chunk if self._runner.device.type == "cuda" else 0) + PAGE_SIZE + 2
        ids = [self._tokenizer.special("<|open|>")] * min(num_tokens, self._runner.max_model_len - 4)
        params = SamplingParams(temperature=0, max_tokens=2)
        self.add(Add(request_id="warm-up", token_ids=ids, params=params))
        while self.has_work:
            for report in self.step():
                if isinstance(report, Failed):
                    raise BackendError(f"the model does not run: {report.message}")
        self.cache.clear()
        self.cache.reset_counters()
        self._sums = dict.fromkeys(self._sums, 0.0)

    def attach_tiers(self) -> None:
        """From now on prefixes are kept in host memory and on disk, too, if the settings say so."""
        settings, runner = self._settings, self._runner
        host = HostTier(settings.host_cache_bytes) if settings.host_cache_bytes > 0 else None
        disk = None
        if settings.disk_cache_dir is not None:
            name = fingerprint(
                settings.model_dir,
                runner.model.dtype,
                runner.device,
                self._chunk,
                layout_of(settings),
                runner.model.kernels_identity,
            )
            disk = DiskTier(settings.disk_cache_dir, name, settings.disk_cache_bytes)
        if host is not None or disk is not None:
            self.cache.attach_tiers(host, disk)

    def close(self) -> None:
        """Write what waits for the disk, and end what runs beside this process."""
        self.cache.close()
        self._runner.close()

    def counters(self) -> Counters:
        own = {
            "canonical_tokens": float(self._canonicaliser.num_tokens),
            "trail_bytes": float(len(self._runner.trail_slots) * self._runner.storage.state_bytes),
        }
        return Counters(values=self._sums | own | levels(self.cache, self.scheduler))

    # --- steps

    def _admitted(self, sequence: Sequence) -> None:
        if sequence.num_preempted == 0:
            sequence.clock.admitted_s = time.perf_counter()
            sequence.num_cached = sequence.num_computed
            self._report_progress(sequence)

    def _prefill(self, sequence: Sequence, end: int) -> None:
        is_last = end == len(sequence.token_ids)
        try:
            logits = self._runner.forward([self._runner.work(sequence, end, int(is_last))])
        except (BackendError, RuntimeError) as error:
            log.exception("a prefill of %s failed", sequence.request_id)
            self._runner.check_device()
            self._fail(sequence, str(error))
            return
        self._advance_exact(sequence, end)
        sequence.num_computed = end
        if end in sequence.checkpoint_at:
            self.cache.checkpoint(sequence)
        if sequence.num_preempted == 0:
            self._report_progress(sequence)
        if is_last:
            sequence.status = Status.DECODING
            sequence.clock.decoding_s = sequence.clock.decoding_s or time.perf_counter()
            self._take(sequence, logits, [], [], self._taker.at_once([sequence], [1], logits))

    def _advance_exact(self, sequence: Sequence, end: int) -> None:
        """A chunk from the end of exact tokens on a point of the grid is what a cold run computes, too."""
        begin = sequence.num_computed
        if begin == sequence.num_exact and begin % self._chunk == 0:
            sequence.num_exact = end

    def _decode(self, sequences: list[Sequence]) -> None:
        guesses = self._guesses(sequences)
        works = self._works(sequences, guesses)
        try:
            logits = self._runner.forward(works)
        except (BackendError, RuntimeError) as error:
            self._decode_failed(sequences, error)
            return
        chosen = self._taker.at_once(sequences, [work.num_logits for work in works], logits)
        row = 0
        for sequence, work, guess in zip(sequences, works, guesses, strict=True):
            sequence.is_suspect = False
            if sequence.status is Status.ENDING:
                sequence.num_computed = len(sequence.token_ids)
                self._leave(sequence)
            else:
                rows = slice(row, row + work.num_logits)
                own = chosen[rows] if chosen is not None else None
                self._take(sequence, logits[rows], guess, work.trail_slots, own)
            row += work.num_logits

    def _guesses(self, sequences: list[Sequence]) -> list[list[int]]:
        """Tokens guessed ahead for each sequence; they share what one short pass can take."""
        num_decoding = sum(s.status is Status.DECODING for s in sequences)
        share = len(self._runner.trail_slots) // max(num_decoding, 1)
        return [self._guess(s, share) if s.status is Status.DECODING else [] for s in sequences]

    def _guess(self, sequence: Sequence, most: int) -> list[int]:
        if sequence.lookup is None:
            return []
        num_tokens = len(sequence.token_ids)
        room = min(
            sequence.params.max_tokens - sequence.num_generated, self._runner.max_model_len - num_tokens
        )
        # a pass gives one token more than was guessed, and a long one is no longer short
        limit = min(most, room - 1, SHORT - sequence.num_pending)
        guess = sequence.lookup.guess(sequence.token_ids, limit)
        if guess and self.cache.reserve(sequence, num_tokens + len(guess)):
            return guess
        return []

    def _works(self, sequences: list[Sequence], guesses: list[list[int]]) -> list[Work]:
        works: list[Work] = []
        slots = iter(self._runner.trail_slots)
        for sequence, guess in zip(sequences, guesses, strict=True):
            num_logits = 1 + len(guess) if sequence.status is Status.DECODING else 0
            trail = list(islice(slots, len(guess)))
            works.append(self._runner.work(sequence, len(sequence.token_ids), num_logits, guess, trail))
        return works

    def _decode_failed(self, sequences: list[Sequence], error: Exception) -> None:
        """A pass broke off half-way, so no state in it is trusted. Alone, a sequence fails; of several each
        begins anew from the cache and runs alone until it is known which one it was.
        """
        self._runner.check_device()
        if len(sequences) == 1:
            log.exception("a decode of %s failed", sequences[0].request_id)
            self._fail(sequences[0], str(error))
            return
        log.warning("a pass of %d sequences failed (%s); they are tried one by one", len(sequences), error)
        for sequence in sequences:
            if sequence.status is Status.ENDING:
                self._leave(sequence, publish=False)
            else:
                self.scheduler.preempt(sequence, publish=False)
                sequence.is_suspect = True

    def _take(
        self,
        sequence: Sequence,
        rows: Tensor,
        guess: list[int],
        trail: list[int],
        at_once: list[int] | None,
    ) -> None:
        """Add the next tokens of an answer and report them. Only guesses that were right are computed tokens:
        behind the first wrong one the state is taken back, and its latents will be overwritten.
        """
        num_decided = len(sequence.token_ids)
        try:
            taken = self._taker.take(sequence, rows, guess, at_once)
        except (BackendError, RuntimeError) as error:
            log.exception("no token could be chosen for %s", sequence.request_id)
            self._fail(sequence, str(error))
            return
        sequence.num_computed = num_decided + taken.num_right
        if guess:
            if taken.num_right < len(guess):
                assert sequence.state_slot is not None
                self._runner.storage.copy_state(trail[taken.num_right], sequence.state_slot)
            self._learn(sequence, len(guess), taken.num_right)
        if taken.token_ids:
            self._reports.append(Generated(sequence.request_id, taken.token_ids, taken.logprobs))
        self._end_if_over(sequence, taken)

    def _learn(self, sequence: Sequence, num_draft: int, num_accepted: int) -> None:
        sequence.num_draft += num_draft
        sequence.num_accepted += num_accepted
        self._sums["draft_tokens"] += num_draft
        self._sums["accepted_tokens"] += num_accepted
        if sequence.lookup is not None:
            sequence.lookup.learn(num_accepted)

    def _end_if_over(self, sequence: Sequence, taken: Taken) -> None:
        if taken.reason is None:
            return
        sequence.status = Status.ENDING
        self._report_end(sequence, taken.reason)
        if sequence.num_pending == 0:
            self._leave(sequence)

    def _leave(self, sequence: Sequence, publish: bool = True) -> None:
        """The sequence is over: what it computed stays in the cache, and it holds nothing any more."""
        self.scheduler.remove(sequence)
        if publish and sequence.num_computed > sequence.num_cached:
            self.cache.checkpoint(sequence, give_slot=True)
        self.cache.release(sequence)
        sequence.status = Status.ENDED
        self._canonicaliser.may_have_work = self.cache.exactness != "off"

    def _fail(self, sequence: Sequence, message: str) -> None:
        """One request fails; the engine goes on. What it computed last is not trusted and enters no tree."""
        if sequence in list(self.scheduler):
            self.scheduler.remove(sequence)
        self.cache.release(sequence)
        sequence.status = Status.ENDED
        self._reports.append(Failed(sequence.request_id, message))

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
        clock, now = sequence.clock, time.perf_counter()
        admitted = clock.admitted_s or now
        decoding = clock.decoding_s or now
        self._sums["requests"] += 1
        self._sums["prompt_tokens"] += sequence.num_prompt
        self._sums["cached_tokens"] += sequence.num_cached
        self._sums["generated_tokens"] += sequence.num_generated
        # first, so that whoever sees the end sees it in the counters, too
        self._reports.append(self.counters())
        self._reports.append(
            Finished(
                request_id=sequence.request_id,
                reason=reason,
                num_prompt=sequence.num_prompt,
                num_cached=sequence.num_cached,
                num_generated=sequence.num_generated,
                queued_s=admitted - clock.added_s,
                prefill_s=decoding - admitted,
                decode_s=now - decoding,
                num_cached_by_tier=sequence.num_cached_by_tier,
                num_draft=sequence.num_draft,
                num_accepted=sequence.num_accepted,
                num_preempted=sequence.num_preempted,
                stop_text=sequence.stop_text,
                stop_token_id=sequence.stop_token_id,
            )
        )

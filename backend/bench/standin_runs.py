"""Measurements of a stand-in through the engine's own runner and prefix cache, without server and tokenizer.

Times are wall clock from the call to the token on the host, as a person waits for it.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from k3agent.backend.bench.floors import Floors
from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.engine.canonical import GREEDY
from k3agent.backend.engine.runner import Runner
from k3agent.backend.engine.sampler import Choice
from k3agent.backend.engine.sequence import Sequence
from k3agent.backend.errors import BackendError

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    """One measured value: the median over `repeats`, or a count."""

    name: str
    value: float
    unit: str
    repeats: int = 1
    floor: float | None = None
    """The least time, or the highest rate, that the hardware allows."""
    target: float | None = None


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    context: int = 65536
    suffixes: tuple[int, ...] = (16, 64, 512, 2048)
    prefills: tuple[int, ...] = (512, 2048, 8192, 32768)
    chunks: tuple[int, ...] = (1024, 2048, 4096, 8192)
    users: tuple[int, ...] = (1, 8, 32)
    decode_context: int = 1024
    decode_tokens: int = 64
    repeats: int = 20
    cold_repeats: int = 3
    exact_points: int = 100
    exact_length: int = 2048
    seed: int = 0
    """Of prompts and points."""


class Session:
    """A model behind its cache; prompts are drawn, answers are greedy."""

    def __init__(self, runner: Runner, chunk: int, seed: int = 0) -> None:
        self.runner, self.chunk = runner, chunk
        self.cache = HybridCache(
            runner.num_pages, runner.num_slots, runner.storage, grid=chunk, exactness="idle"
        )
        self._random = random.Random(seed)

    def draw(self, num_tokens: int) -> list[int]:
        """A prompt that nobody had before."""
        return self._random.choices(range(self.runner.config.vocab_size), k=num_tokens)

    def begin(self, token_ids: list[int]) -> Sequence:
        """A sequence with whatever the cache has of it."""
        choice = Choice(GREEDY, [], self.runner.config.vocab_size, self.runner.device)
        sequence = Sequence(request_id="", token_ids=token_ids, params=GREEDY, choice=choice)
        if not self.cache.adopt(sequence, self.cache.match(token_ids)):
            raise BackendError(
                f"no slot is free for a prompt of {len(token_ids)} tokens; raise --cache-bytes"
            )
        return sequence

    def prefill(self, sequence: Sequence, checkpoints: bool = True) -> Tensor:
        """Compute the rest of a prompt in chunks that end on the grid; its last logits [V]."""
        logits = None
        while sequence.num_computed < len(sequence.token_ids):
            begin, num_tokens = sequence.num_computed, len(sequence.token_ids)
            end = min((begin // self.chunk + 1) * self.chunk, num_tokens)
            if not self.cache.reserve(sequence, end):
                raise BackendError(f"the cache has no room for {end} tokens; raise --cache-bytes")
            logits = self.runner.forward([self.runner.work(sequence, end, int(end == num_tokens))])
            if begin == sequence.num_exact and begin % self.chunk == 0:
                sequence.num_exact = end
            sequence.num_computed = end
            if checkpoints and end < num_tokens:
                self.cache.checkpoint(sequence)
        assert logits is not None
        return logits[0]

    def leave(self, sequence: Sequence, keep: bool) -> None:
        """The sequence is over; `keep` files its state and pages."""
        if keep:
            self.cache.checkpoint(sequence, give_slot=True)
        self.cache.release(sequence)

    def first_token_s(self, token_ids: list[int], *, keep: bool) -> tuple[float, int]:
        """Seconds from a prompt to its first token, and how many of its tokens the cache had."""
        self.synchronize()
        begun = time.perf_counter()
        sequence = self.begin(token_ids)
        num_cached = sequence.num_computed
        int(self.prefill(sequence, checkpoints=keep).argmax())
        elapsed = time.perf_counter() - begun
        self.leave(sequence, keep)
        return elapsed, num_cached

    def synchronize(self) -> None:
        if self.runner.device.type == "cuda":
            torch.cuda.synchronize(self.runner.device)


def first_tokens(session: Session, plan: Plan, floors: Floors, tell: Tell) -> Iterator[Figure]:
    """Cold and warm time to the first token."""
    cold: list[float] = []
    prompt: list[int] = []
    for _ in range(plan.cold_repeats):
        session.cache.clear()
        prompt = session.draw(plan.context)
        cold.append(session.first_token_s(prompt, keep=True)[0])
        tell(f"cold {plan.context}: {cold[-1] * 1e3:.1f} ms")
    floor = floors.prefill_s(plan.context, 0, session.chunk)
    name = f"cold TTFT, {plan.context} tokens"
    yield Figure(
        name, statistics.median(cold) * 1e3, "ms", len(cold), floor * 1e3, floors.targets.get("cold")
    )
    for suffix in plan.suffixes:
        times: list[float] = []
        for _ in range(plan.repeats):
            elapsed, num_cached = session.first_token_s([*prompt, *session.draw(suffix)], keep=False)
            if num_cached < plan.context:
                raise BackendError(f"only {num_cached} of {plan.context} tokens were found again")
            times.append(elapsed)
        median = statistics.median(times) * 1e3
        tell(f"warm +{suffix}: {median:.2f} ms")
        floor = floors.prefill_s(suffix, plan.context, session.chunk) * 1e3
        target = floors.targets.get(f"warm+{suffix}")
        yield Figure(f"warm TTFT, {plan.context} + {suffix}", median, "ms", len(times), floor, target)


def chunks(session: Session, plan: Plan, floors: Floors, tell: Tell) -> Iterator[Figure]:
    """The same prompt, cold, in passes of other sizes; no states are left on the way."""
    usual = session.chunk
    try:
        for session.chunk in plan.chunks:
            times: list[float] = []
            # the first one may compile
            for _ in range(1 + plan.cold_repeats):
                session.cache.clear()
                times.append(session.first_token_s(session.draw(plan.context), keep=False)[0])
            median = statistics.median(times[1:]) * 1e3
            tell(f"cold {plan.context} in passes of {session.chunk}: {median:.1f} ms")
            floor = floors.prefill_s(plan.context, 0, session.chunk) * 1e3
            name = f"cold TTFT, {plan.context} tokens in passes of {session.chunk}"
            yield Figure(name, median, "ms", plan.cold_repeats, floor)
    finally:
        session.chunk = usual


def prefills(session: Session, plan: Plan, floors: Floors, tell: Tell) -> Iterator[Figure]:
    """Tokens a second of prompts without a hit."""
    for length in plan.prefills:
        rates: list[float] = []
        for _ in range(max(plan.cold_repeats, 3)):
            session.cache.clear()
            rates.append(length / session.first_token_s(session.draw(length), keep=False)[0])
        rate = statistics.median(rates)
        tell(f"prefill {length}: {rate:.0f} tokens/s")
        floor = length / floors.prefill_s(length, 0, session.chunk)
        target = floors.targets.get("prefill") if length >= 8192 else None
        yield Figure(f"prefill {length}", rate, "tokens/s", len(rates), floor, target)


def decodes(session: Session, plan: Plan, floors: Floors, tell: Tell) -> Iterator[Figure]:
    """Tokens a second of all users together, each token taken to the host before the next step."""
    for users in plan.users:
        session.cache.clear()
        sequences: list[Sequence] = []
        for _ in range(users):
            sequence = session.begin(session.draw(plan.decode_context))
            sequence.token_ids.append(int(session.prefill(sequence, checkpoints=False).argmax()))
            sequences.append(sequence)
        times = [decode_step_s(session, sequences) for _ in range(plan.decode_tokens)]
        for sequence in sequences:
            session.leave(sequence, keep=False)
        # the first steps may still compile or capture
        median = statistics.median(times[len(times) // 4 :])
        tell(f"decode B={users}: {users / median:.1f} tokens/s")
        floor = users / floors.decode_s(users, plan.decode_context)
        target = floors.targets.get(f"decode{users}")
        yield Figure(f"decode B={users}", users / median, "tokens/s", len(times), floor, target)


def decode_step_s(session: Session, sequences: list[Sequence]) -> float:
    """Seconds of one step for all, with the token that each got taken to the host."""
    session.synchronize()
    begun = time.perf_counter()
    works = []
    for sequence in sequences:
        end = len(sequence.token_ids)
        if not session.cache.reserve(sequence, end):
            raise BackendError(f"the cache has no room for {end} tokens; raise --cache-bytes")
        works.append(session.runner.work(sequence, end, 1))
    chosen = session.runner.forward(works).argmax(-1).tolist()
    for sequence, token_id in zip(sequences, chosen, strict=True):
        sequence.num_computed = len(sequence.token_ids)
        sequence.token_ids.append(token_id)
    return time.perf_counter() - begun


def checkpoints(session: Session, plan: Plan, tell: Tell) -> Iterator[Figure]:
    """What filing a state at every chunk costs a long prefill."""
    length = min(plan.context, max(plan.prefills))
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(max(plan.cold_repeats, 3)):
        # in turn, so that a drift of the clocks hits both
        for keep in times:
            session.cache.clear()
            session.synchronize()
            begun = time.perf_counter()
            sequence = session.begin(session.draw(length))
            int(session.prefill(sequence, checkpoints=keep).argmax())
            times[keep].append(time.perf_counter() - begun)
            session.leave(sequence, keep=False)
    plain, filed = (statistics.median(times[keep]) for keep in (False, True))
    share = (filed / plain - 1) * 100
    tell(f"checkpoints each {session.chunk} tokens: {share:+.2f} %")
    yield Figure(f"checkpoint at each {session.chunk} tokens", share, "%", len(times[True]), target=1.0)


def exactness(session: Session, plan: Plan, tell: Tell, deadline: float = math.inf) -> Iterator[Figure]:
    """Resumes from class-A states at random points, compared bit by bit with cold runs of the same prompt; so
    many as there is time for."""
    draw = random.Random(plan.seed + 1)
    same = resumed = count = 0
    longest = max(plan.exact_length, 3 * session.chunk)
    while count < plan.exact_points and time.monotonic() < deadline:
        length = draw.randint(session.chunk + 1, longest)
        prompt = session.draw(length)
        session.cache.clear()
        with _sequence(session, prompt) as sequence:
            cold = session.prefill(sequence, checkpoints=False).clone()
        session.cache.clear()
        with _sequence(session, prompt[: draw.randint(session.chunk + 1, length)]) as sequence:
            session.prefill(sequence)
        with _sequence(session, prompt) as sequence:
            resumed += sequence.num_computed > 0
            same += bool(torch.equal(session.prefill(sequence), cold))
        count += 1
        if count % 20 == 0:
            tell(f"exact: {same} of {count}")
    if not count or resumed < count:
        raise BackendError(f"only {resumed} of {count} prompts were resumed")
    yield Figure("bitwise equal resumes", same, f"of {count}", 1, target=count)


@contextmanager
def _sequence(session: Session, prompt: list[int]) -> Iterator[Sequence]:
    sequence = session.begin(prompt)
    yield sequence
    session.leave(sequence, keep=False)

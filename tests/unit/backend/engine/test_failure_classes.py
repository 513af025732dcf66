"""Failures of other servers that a whole engine can show, by their ids in docs/failure-classes.md."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from k3agent.backend.chat.tokenizer import Tokenizer  # noqa: E402  # after the skip
from k3agent.backend.config import PAGE_SIZE  # noqa: E402
from k3agent.backend.engine.draft import PromptLookup  # noqa: E402
from k3agent.backend.engine.engine import Engine  # noqa: E402
from k3agent.backend.engine.messages import (  # noqa: E402
    Add,
    EngineSettings,
    Exactness,
    Failed,
    Finished,
    Generated,
    Prefilled,
    Report,
    SamplingParams,
)
from k3agent.backend.engine.runner import Runner, Work  # noqa: E402
from k3agent.backend.engine.sequence import Status  # noqa: E402
from k3agent.backend.engine.soak import NANO, Bitwise, Naive, write_smallest  # noqa: E402
from k3agent.backend.engine.taking import ENDS  # noqa: E402
from k3agent.backend.model.k3 import K3ForCausalLM  # noqa: E402
from k3agent.backend.model.weights import load_model  # noqa: E402

names = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("smallest")
    write_smallest(made, tokenizer.vocab_size)
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_dir(NANO)


@pytest.fixture(scope="module")
def model(folder: Path) -> K3ForCausalLM:
    return load_model(folder, torch.float64)


@pytest.fixture(scope="module")
def naive(model: K3ForCausalLM, tokenizer: Tokenizer) -> Naive:
    return Naive(model, frozenset(tokenizer.special_tokens[name] for name in ENDS))


Make = Callable[..., Engine]


@pytest.fixture
def make(folder: Path, model: K3ForCausalLM, tokenizer: Tokenizer) -> Make:
    def engine(loaded: K3ForCausalLM = model, **settings: Any) -> Engine:
        options = {"grid": 64, "exactness": "off", "cache_bytes": 2 << 20, **settings}
        made = EngineSettings(model_dir=str(folder), **options)
        return Engine(Runner(loaded, made), tokenizer, made)

    return engine


def ids(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(8), k=length)


def add(prompt: list[int], max_tokens: int = 6, **params: Any) -> Add:
    options = {"temperature": 0.0, "ignore_eos": True, "max_tokens": max_tokens, **params}
    return Add(request_id=str(next(names)), token_ids=prompt, params=SamplingParams(**options))


def drain(engine: Engine) -> list[Report]:
    reports: list[Report] = []
    while engine.has_work:
        reports += engine.step()
        engine.cache.check()
    return reports


def said(reports: list[Report], request: Add) -> list[int]:
    mine = [r for r in reports if isinstance(r, Generated) and r.request_id == request.request_id]
    return [i for r in mine for i in r.token_ids]


def ask(engine: Engine, prompt: list[int], **params: Any) -> tuple[list[int], Finished]:
    request = add(prompt, **params)
    engine.add(request)
    reports = drain(engine)
    (end,) = [r for r in reports if isinstance(r, Finished)]
    return said(reports, request), end


def assert_idle(engine: Engine) -> None:
    ledger = engine.cache.ledger()
    assert (ledger.private_pages, ledger.running_slots, engine.cache.holdings) == (0, 0, {})
    engine.cache.check()


def right(naive: Naive, request: Add) -> list[int]:
    return naive.answer(request.token_ids, request.params)


# --- B: wrong output after a hit


def test_t12_latents_without_a_state_are_no_hit(make: Make, naive: Naive) -> None:
    engine = make()
    prompt = ids(1, 200)
    ask(engine, prompt)
    while engine.cache.resident.evict_state():
        pass
    assert engine.cache.match(prompt).kv_len > 0
    engine.cache.drop(next(iter(engine.cache.prefixes.values()), engine.cache.match(prompt)))
    request = add(prompt)
    engine.add(request)
    reports = drain(engine)
    assert next(r for r in reports if isinstance(r, Prefilled)).num_cached == 0
    assert said(reports, request) == right(naive, request)


def test_t14_later_chunks_go_on_from_the_state_of_earlier_ones(make: Make, naive: Naive) -> None:
    for length in (64, 65, 129, 300):
        request = add(ids(2, length))
        engine = make()
        engine.add(request)
        reports = drain(engine)
        marks = [r.num_computed for r in reports if isinstance(r, Prefilled)]
        assert len(marks) > length // 64
        assert said(reports, request) == right(naive, request)


def test_t16_a_b_a(make: Make, naive: Naive) -> None:
    engine = make()
    common = ids(3, 130)
    a, b = common + ids(4, 60), common + ids(5, 60)
    for prompt in (a, b, a, b[:150], a + ids(6, 30), b, a):
        got, end = ask(engine, prompt)
        assert got == right(naive, add(prompt))
    assert end.num_cached >= 128
    assert_idle(engine)


@pytest.mark.parametrize("mode", ["always", "idle"])
def test_t25_a_hit_on_a_cold_state_is_equal_to_the_bit(
    folder: Path, tokenizer: Tokenizer, mode: Exactness
) -> None:
    """In float32, at random points; in mode idle after the canonicaliser had its time."""
    pair = Bitwise(load_model(folder, torch.float32), tokenizer, folder, 7, mode)
    for _ in range(60):
        pair.compare()
    assert pair.num_hits > 20


# --- C: speculation with caching


@pytest.fixture
def wrong_guesses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Guesses of which only the first is likely; the count of them."""
    counts: list[int] = []

    def guess(self: PromptLookup, token_ids: list[int], max_tokens: int) -> list[int]:
        count = min(max_tokens, 1 + len(token_ids) % 7)
        counts.append(max(count, 0))
        return [token_ids[-1], *[4000] * (count - 1)][: max(count, 0)]

    monkeypatch.setattr(PromptLookup, "guess", guess)
    yield counts


def paths(engine: Engine) -> list[list[int]]:
    """The tokens on the way to every leaf of the tree."""
    found = []
    for node in engine.cache.tree.nodes():
        pages: list[tuple[int, ...]] = []
        current: Any = node
        while current is not None:
            pages.append(current.token_ids)
            current = current.parent
        found.append([token for page in reversed(pages) for token in page])
    return found


def test_t28_guesses_never_become_cache_entries(make: Make, naive: Naive, wrong_guesses: list[int]) -> None:
    engine = make(speculation="prompt-lookup")
    prompt = ids(9, 90)
    got, end = ask(engine, prompt, max_tokens=40)
    assert got == right(naive, add(prompt, 40)) and end.num_draft > end.num_accepted
    whole = prompt + got
    assert all(path == whole[: len(path)] for path in paths(engine))
    follow = whole + ids(10, 9)
    again, end = ask(engine, follow)
    assert end.num_cached == len(whole) and again == right(naive, add(follow))


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "top_p": 0.95, "seed": 3}])
def test_t30_wrong_guesses_take_state_and_latents_back(
    make: Make, naive: Naive, wrong_guesses: list[int], params: dict[str, Any]
) -> None:
    requests = [add(ids(11, 70), 40, **params), add(ids(12, 33), 40, **params)]
    engine = make(speculation="prompt-lookup")
    for request in requests:
        engine.add(request)
    reports = drain(engine)
    for request in requests:
        assert said(reports, request) == right(naive, request)
    assert sum(wrong_guesses) > 20
    assert_idle(engine)


def test_t31_states_are_filed_where_they_stand(make: Make, wrong_guesses: list[int]) -> None:
    engine = make(speculation="prompt-lookup")
    prompt = ids(13, 100)
    got, _ = ask(engine, prompt, max_tokens=31)
    positions = {c.position for node in engine.cache.tree.nodes() for c in node.checkpoints.values()}
    assert max(positions) == len(prompt) + len(got)
    # inside the answer there is none: only its end was ever filed
    assert not any(len(prompt) < p < len(prompt) + len(got) for p in positions)


# --- D: lifetime


@pytest.mark.parametrize("num_steps", range(12))
def test_t33_t36_abort_in_every_state(make: Make, naive: Naive, num_steps: int) -> None:
    """Queued, between chunks, beside the decodes of others, while its last token goes through the model."""
    engine = make(max_running=2)
    others = [add(ids(14, 60), 9), add(ids(15, 60), 9)]
    victim = add(ids(16, 200), 3)
    for request in (others[0], victim, others[1]):
        engine.add(request)
    reports = [r for _ in range(num_steps) for r in engine.step()]
    engine.abort(victim.request_id)
    engine.cache.check()
    reports += drain(engine)
    assert sum(isinstance(r, Finished) and r.request_id == victim.request_id for r in reports) == 1
    for request in others:
        assert said(reports, request) == right(naive, request)
    assert_idle(engine)


@pytest.mark.parametrize("step", ["adopt", "reserve"])
def test_t34_a_failed_admission_gives_everything_back(
    make: Make, naive: Naive, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    first, second = add(ids(17, 100), 9), add(ids(17, 100) + ids(18, 40), 4)
    engine.add(first)
    engine.step()
    whole, refusals = getattr(engine.cache, step), iter([False])

    def once(tenant: Any, *arguments: Any) -> bool:
        done = whole(tenant, *arguments)
        if tenant.request_id == second.request_id and next(refusals, True) is False:
            if step == "adopt":
                engine.cache.release(tenant)
            return False
        return done

    monkeypatch.setattr(engine.cache, step, once)
    engine.add(second)
    reports = drain(engine)
    for request in (first, second):
        assert said(reports, request) == right(naive, request)
    assert_idle(engine)


def test_t37_more_requests_than_states(make: Make, naive: Naive) -> None:
    engine = make(cache_bytes=100_000, max_running=100, speculation="off")
    requests = [add(ids(20 + n, 20 + n), 5) for n in range(3 * engine.cache.states.num_slots)]
    for request in requests:
        engine.add(request)
    reports = drain(engine)
    assert not any(isinstance(r, Failed) for r in reports)
    for request in requests:
        assert said(reports, request) == right(naive, request)
    assert_idle(engine)


def test_t38_preempted_sequences_resume_with_a_state_of_their_own(make: Make, naive: Naive) -> None:
    engine = make(speculation="off")
    requests = [add(ids(50, 100), 20), add(ids(51, 100), 20)]
    for request in requests:
        engine.add(request)
    reports: list[Report] = []
    for n in range(30):
        reports += engine.step()
        running = [s for s in engine.scheduler.running if s.status is not Status.ENDING]
        if running and n % 3 == 0:
            victim = running[n % len(running)]
            engine.scheduler.preempt(victim)
            assert victim.state_slot is None and not victim.page_ids
    reports += drain(engine)
    for request in requests:
        assert said(reports, request) == right(naive, request)
    ends = [r for r in reports if isinstance(r, Finished)]
    assert all(end.num_preempted > 0 for end in ends)
    assert_idle(engine)


def test_t39_near_the_ceiling_work_ends(make: Make, naive: Naive) -> None:
    """Two answers that together do not fit: one is preempted, and nobody is prefilled for ever."""
    engine = make(cache_bytes=120_000, speculation="off")
    engine.scheduler.open_ended_tokens = 1
    most = (engine.cache.pages.num_pages - 1) * PAGE_SIZE
    requests = [add(ids(60, most // 3), most // 2), add(ids(61, most // 3), most // 2)]
    for request in requests:
        engine.add(request)
    computed, forward = [0], engine._runner.forward

    def count(batch: list[Work]) -> Any:
        computed[0] += sum(len(work.token_ids) for work in batch)
        return forward(batch)

    engine._runner.forward = count  # type: ignore[method-assign]
    reports = drain(engine)
    for request in requests:
        assert said(reports, request) == right(naive, request)
    assert sum(r.num_preempted for r in reports if isinstance(r, Finished)) > 0
    assert computed[0] < 3 * 2 * most
    engine.add(add(ids(62, 100), most + 1000))
    ends = [r for r in drain(engine) if isinstance(r, Finished)]
    assert [end.reason for end in ends] == ["length"], "an open end is cut at the context length"


def test_t40_several_agents_at_once(make: Make, naive: Naive) -> None:
    engine = make(cache_bytes=400_000)
    system = ids(70, 140)
    transcripts = [system + ids(71 + n, 20) for n in range(4)]
    for turn in range(4):
        requests = [add(list(t), 7) for t in transcripts]
        for request in requests:
            engine.add(request)
        reports = drain(engine)
        for n, request in enumerate(requests):
            got = said(reports, request)
            assert got == right(naive, request)
            transcripts[n] += got + ids(80 + turn, 15)
    assert engine.counters().values["hit_tokens_device"] > 1000
    assert_idle(engine)


def test_t43_batches_shrink_and_grow(make: Make, naive: Naive) -> None:
    engine = make(max_running=5)
    requests = [add(ids(90 + n, 10 + 30 * n), 2 + 5 * n) for n in range(9)]
    reports: list[Report] = []
    for request in requests:
        engine.add(request)
        reports += engine.step()
    reports += drain(engine)
    for request in requests:
        assert said(reports, request) == right(naive, request)
    assert_idle(engine)


@pytest.mark.parametrize("num_requests", [1, 2])
@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_t40_a_device_that_is_lost_ends_the_process(make: Make, num_requests: int, num_steps: int) -> None:
    engine = make()
    for number in range(num_requests):
        engine.add(add(ids(80 + number, 70), 12))
    for _ in range(num_steps):
        engine.step()

    def fail(*_: object) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    engine._runner.forward = engine._runner.check_device = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="illegal"):
        engine.step()


def test_a_failing_pass_fails_one_request_and_spares_the_others(make: Make, naive: Naive) -> None:
    engine = make()
    good, bad = add(ids(95, 70), 12), add(ids(96, 70), 12)
    engine.add(good)
    engine.add(bad)
    forward = engine._runner.forward

    def fail(batch: list[Work]) -> Any:
        victims = [s.state_slot for s in engine.scheduler.running if s.request_id == bad.request_id]
        if any(work.state_slot in victims and work.context_len >= 74 for work in batch):
            raise RuntimeError("out of memory")
        return forward(batch)

    engine._runner.forward = fail  # type: ignore[method-assign]
    reports = drain(engine)
    assert [r.request_id for r in reports if isinstance(r, Failed)] == [bad.request_id]
    assert said(reports, good) == right(naive, good)
    assert_idle(engine)


def test_long_answers_give_way_to_who_waits(make: Make, naive: Naive) -> None:
    engine = make(max_running=1)
    engine.scheduler.slice_steps = 10
    long, short = add(ids(97, 30), 60), add(ids(98, 30), 3)
    engine.add(long)
    engine.add(short)
    reports = drain(engine)
    order = [r.request_id for r in reports if isinstance(r, Finished)]
    assert order == [short.request_id, long.request_id]
    for request in (long, short):
        assert said(reports, request) == right(naive, request)

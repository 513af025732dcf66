"""The step loop on tiny K3: same answers with and without cache, cancellation anywhere, forced runs, room."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.backend.chat.parser import OutputParser
from k3agent.backend.chat.template import render
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.engine import Engine
from k3agent.backend.engine.grammar import GrammarSpec
from k3agent.backend.engine.messages import (
    Add,
    EngineSettings,
    Failed,
    Finished,
    Generated,
    Prefilled,
    Report,
    SamplingParams,
)
from k3agent.backend.engine.runner import Runner, Work
from k3agent.backend.errors import CacheFullError

GREEDY = SamplingParams(temperature=0, max_tokens=12)
names = itertools.count()


@pytest.fixture(scope="session")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(tiny_dir)


@pytest.fixture(scope="session")
def runner(tiny_dir: Path) -> Runner:
    options = EngineSettings(model_dir=str(tiny_dir), threads=1, cache_bytes=8 << 20, max_model_len=2048)
    return Runner.load(options)[0]


def make(runner: Runner, tokenizer: Tokenizer, grid: int = 512) -> Engine:
    return Engine(runner, tokenizer, EngineSettings(model_dir="", grid=grid))


def request(ids: list[int], params: SamplingParams = GREEDY, **more: Any) -> Add:
    return Add(request_id=f"r{next(names)}", token_ids=ids, params=params, **more)


def drain(engine: Engine) -> list[Report]:
    reports: list[Report] = []
    while engine.has_work:
        reports += engine.step()
    return reports


def run(engine: Engine, ids: list[int], **more: Any) -> tuple[list[int], Finished]:
    engine.add(request(ids, **more))
    reports = drain(engine)
    finished = [r for r in reports if isinstance(r, Finished)]
    assert len(finished) == 1, reports
    return generated(reports), finished[0]


def generated(reports: Iterable[Report]) -> list[int]:
    return [i for r in reports if isinstance(r, Generated) for i in r.token_ids]


def assert_nothing_is_held(engine: Engine) -> None:
    nodes = list(engine.cache.tree.nodes())
    assert all(node.num_locks == 0 for node in nodes)
    assert engine.cache.pages.num_pages - engine.cache.pages.num_free == len(nodes)
    held = sum(len(node.checkpoints) for node in nodes)
    assert engine.cache.states.num_slots - engine.cache.states.num_free == held


def text_ids(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 300, (length,), generator=generator).tolist()


def test_a_follow_up_computes_only_what_is_new(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = make(runner, tokenizer)
    first = text_ids(1, 150)
    answer, end = run(engine, first)
    assert (end.num_cached, end.num_generated) == (0, 12)
    second = [*first, *answer, *text_ids(2, 40)]
    again, end = run(engine, second)
    assert end.num_cached == len(first) + len(answer)
    fresh, end = run(make(runner, tokenizer), second)
    assert end.num_cached == 0
    assert again == fresh
    assert_nothing_is_held(engine)


def test_a_b_a_equals_fresh_engines(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = make(runner, tokenizer, grid=64)
    common = text_ids(3, 130)
    a, b = common + text_ids(4, 90), common + text_ids(5, 90)
    for ids in (a, b, a, b[:200], a):
        expected, _ = run(make(runner, tokenizer, grid=64), ids)
        assert run(engine, ids)[0] == expected
    assert run(engine, common + text_ids(6, 90))[1].num_cached == 128


def test_a_cached_start_gives_the_same_logits(runner: Runner, tokenizer: Tokenizer) -> None:
    """Resumed at a grid checkpoint the numbers are equal to the bit, not only close."""
    ids = text_ids(7, 600)
    seen: list[torch.Tensor] = []
    whole = runner.forward

    def spy(batch: list[Work]) -> torch.Tensor:
        logits = whole(batch)
        if len(logits):
            seen.append(logits.clone())
        return logits

    engine = make(runner, tokenizer)
    runner.forward = spy  # type: ignore[method-assign]
    try:
        ends = [run(engine, ids, params=SamplingParams(temperature=0, max_tokens=1))[1] for _ in range(2)]
    finally:
        del runner.forward
    assert [end.num_cached for end in ends] == [0, 576]
    assert len(seen) == 2
    assert torch.equal(seen[0], seen[1])


def test_prefill_reports_progress_on_the_grid(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = make(runner, tokenizer)
    engine.add(request(text_ids(8, 1100), checkpoint_at=(300,)))
    marks = [r.num_computed for r in drain(engine) if isinstance(r, Prefilled)]
    assert marks[0] == 0 and marks[-1] == 1100
    assert {256, 512, 1024, 1088} < set(marks)
    assert all(mark % 64 == 0 for mark in marks[:-1])
    assert run(engine, text_ids(8, 300) + text_ids(9, 50))[1].num_cached == 256


def test_requests_decode_side_by_side(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = make(runner, tokenizer)
    adds = [request(text_ids(seed, 70)) for seed in (10, 11, 12)]
    for add in adds:
        engine.add(add)
    reports = drain(engine)
    speakers = [r.request_id for r in reports if isinstance(r, Generated)]
    first_end = next(i for i, r in enumerate(reports) if isinstance(r, Finished))
    assert {r.request_id for r in reports[:first_end] if isinstance(r, Generated)} == set(speakers)
    for add in adds:
        mine = [
            i
            for r in reports
            if isinstance(r, Generated) and r.request_id == add.request_id
            for i in r.token_ids
        ]
        assert mine == run(make(runner, tokenizer), add.token_ids)[0]
    assert_nothing_is_held(engine)


@settings(max_examples=12, deadline=None)
@given(steps=st.integers(0, 16), other=st.booleans())
def test_abort_at_any_step(runner: Runner, tokenizer: Tokenizer, steps: int, other: bool) -> None:
    engine = make(runner, tokenizer, grid=64)
    ids = text_ids(13, 200)
    add = request(ids)
    if other:
        engine.add(request(text_ids(14, 80)))
    engine.add(add)
    reports: list[Report] = []
    for _ in range(steps):
        reports += engine.step()
    engine.abort(add.request_id)
    engine.abort(add.request_id)
    reports += drain(engine) + engine.step()
    ends = [r for r in reports if isinstance(r, Finished) and r.request_id == add.request_id]
    assert len(ends) == 1
    assert_nothing_is_held(engine)
    assert run(engine, ids)[0] == run(make(runner, tokenizer, grid=64), ids)[0]


TOOL = {
    "type": "function",
    "function": {
        "name": "read",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


class Hurried:
    """The same model, but quick to close what it opened: random weights would go on and on."""

    def __init__(self, runner: Runner, close: int) -> None:
        self.runner, self.close = runner, close

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def forward(self, batch: list[Work]) -> torch.Tensor:
        logits = self.runner.forward(batch).clone()
        logits[:, self.close] += 9
        return logits


@pytest.fixture
def hurried(runner: Runner, tokenizer: Tokenizer) -> Engine:
    return make(Hurried(runner, tokenizer.special("<|close|>")), tokenizer)  # type: ignore[arg-type]


def test_a_random_model_still_calls_tools_properly(hurried: Engine, tokenizer: Tokenizer) -> None:
    prompt = render(tokenizer, [{"role": "user", "content": "hi"}], [TOOL]).token_ids
    complete = 0
    for seed in range(8):
        params = SamplingParams(temperature=3.0, top_p=1.0, seed=seed, max_tokens=300)
        spec = GrammarSpec((TOOL,), tool_choice="required")
        ids, end = run(hurried, prompt, params=params, grammar=spec)
        parser = OutputParser(tokenizer, tools=["read"])
        parser.feed(ids)
        parser.finish()
        assert parser.is_ended == (end.reason == "stop")
        if parser.is_ended:
            complete += 1
            assert parser.damage == []
            assert parser.calls and all(call.is_complete for call in parser.calls)
    assert complete > 0


def test_forced_runs_take_one_step(hurried: Engine, tokenizer: Tokenizer) -> None:
    prompt = render(tokenizer, [{"role": "user", "content": "hi"}]).token_ids
    params = SamplingParams(temperature=2.0, top_p=1.0, seed=1, max_tokens=300)
    hurried.add(request(prompt, params, grammar=GrammarSpec()))
    pieces = [r.token_ids for r in drain(hurried) if isinstance(r, Generated)]
    last = tokenizer.decode(pieces[-1])
    assert last == "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"


def test_a_forced_run_counts_against_max_tokens(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = make(runner, tokenizer)
    close = tokenizer.special("<|close|>")
    prompt = render(tokenizer, [{"role": "user", "content": "hi"}]).token_ids
    for limit in (1, 2, 3):
        params = SamplingParams(temperature=0, max_tokens=limit)
        ids, end = run(engine, [*prompt, close], params=params, grammar=GrammarSpec(channel="response"))
        assert (len(ids), end.reason) == (limit, "length")


def test_seeds_repeat(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = make(runner, tokenizer)
    params = SamplingParams(temperature=1.5, top_p=0.9, seed=5, max_tokens=20)
    first = run(engine, text_ids(15, 80), params=params)[0]
    other = SamplingParams(temperature=1.5, top_p=0.9, seed=6, max_tokens=20)
    assert run(engine, text_ids(15, 80), params=params)[0] == first
    assert run(engine, text_ids(15, 80), params=other)[0] != first


def test_long_prompts_are_refused(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = make(runner, tokenizer)
    engine.add(request([1] * 2048))
    engine.add(request([]))
    assert [type(r) for r in engine.step()] == [Failed, Failed]
    ids, end = run(engine, [1] * 2040)
    assert (len(ids), end.reason) == (8, "length")


def test_eviction_under_a_small_budget(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    options = EngineSettings(model_dir=str(tiny_dir), threads=1, cache_bytes=600_000, max_model_len=640)
    small = Runner.load(options)[0]
    engine = Engine(small, tokenizer, options)
    fresh = Engine(small, tokenizer, options)
    for seed in range(20, 26):
        ids = text_ids(seed, 300)
        answer = run(engine, ids)[0]
        follow_up, end = run(engine, [*ids, *answer, 5, 6, 7])
        assert end.num_cached == len(ids) + len(answer)
        fresh.cache.clear()
        assert follow_up == run(fresh, [*ids, *answer, 5, 6, 7])[0]
        fresh.cache.clear()
    assert engine.cache.counters.evicted_pages > 0
    assert_nothing_is_held(engine)


def test_a_budget_too_small_is_refused(tiny_dir: Path) -> None:
    options = EngineSettings(model_dir=str(tiny_dir), threads=1, cache_bytes=200_000, max_model_len=4096)
    with pytest.raises(CacheFullError, match="cache-bytes"):
        Runner.load(options)


def test_warm_up_leaves_nothing(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = make(runner, tokenizer)
    engine.warm_up()
    assert engine.cache.tree.num_nodes == 0
    assert engine.counters().values["generated_tokens"] == 0

"""What a request can ask of its answer: stops, least and most tokens, log-probabilities, a seed."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from k3agent.backend.chat.parser import OutputParser  # noqa: E402  # after the skip
from k3agent.backend.chat.tokenizer import Tokenizer  # noqa: E402
from k3agent.backend.engine.engine import Engine  # noqa: E402
from k3agent.backend.engine.grammar import GrammarSpec  # noqa: E402
from k3agent.backend.engine.messages import (  # noqa: E402
    Add,
    EngineSettings,
    Failed,
    Finished,
    Generated,
    Report,
    SamplingParams,
)
from k3agent.backend.engine.runner import Runner  # noqa: E402

names = itertools.count()


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(tiny_dir)


@pytest.fixture
def engine(tiny_dir: Path, tokenizer: Tokenizer) -> Engine:
    settings = EngineSettings(model_dir=str(tiny_dir), threads=1, cache_bytes=4 << 20, dtype="float64")
    return Engine(Runner.load(settings)[0], tokenizer, settings)


def add(prompt: list[int], grammar: GrammarSpec | None = None, **params: Any) -> Add:
    options = {"temperature": 0.0, "max_tokens": 12, **params}
    return Add(
        request_id=str(next(names)),
        token_ids=prompt,
        params=SamplingParams(**options),
        grammar=grammar,
    )


def run(engine: Engine, *requests: Add) -> list[Report]:
    for request in requests:
        engine.add(request)
    reports: list[Report] = []
    while engine.has_work:
        reports += engine.step()
    return reports


def said(reports: list[Report], request: Add) -> list[int]:
    mine = [r for r in reports if isinstance(r, Generated) and r.request_id == request.request_id]
    return [i for r in mine for i in r.token_ids]


def end_of(reports: list[Report], request: Add) -> Finished:
    (end,) = [r for r in reports if isinstance(r, Finished) and r.request_id == request.request_id]
    return end


def ids(seed: int, length: int = 40) -> list[int]:
    return random.Random(seed).choices(range(250), k=length)


def test_stop_ids_end_the_answer(engine: Engine) -> None:
    free = add(ids(1))
    whole = said(run(engine, free), free)
    stopped = add(ids(1), stop_token_ids=(whole[3],))
    reports = run(engine, stopped)
    place = whole.index(whole[3])
    assert said(reports, stopped) == whole[: place + 1]
    end = end_of(reports, stopped)
    assert (end.reason, end.stop_token_id) == ("stop", whole[3])


def test_stop_strings_end_the_answer(engine: Engine, tokenizer: Tokenizer) -> None:
    free = add(ids(2))
    whole = said(run(engine, free), free)
    text = tokenizer.decode_bytes(whole[:5]).decode("utf-8", "ignore")
    stop = text[-2:]
    stopped = add(ids(2), stop=(stop,))
    reports = run(engine, stopped)
    got = said(reports, stopped)
    assert got == whole[: len(got)] and len(got) <= 6
    assert stop in tokenizer.decode(got) and stop not in tokenizer.decode(got[:-1])
    assert (end_of(reports, stopped).reason, end_of(reports, stopped).stop_text) == ("stop", stop)


def test_least_tokens(engine: Engine) -> None:
    free = add(ids(3))
    whole = said(run(engine, free), free)
    patient = add(ids(3), stop_token_ids=(whole[2],), min_tokens=8, max_tokens=9)
    got = said(run(engine, patient), patient)
    assert whole[2] not in got[:8]
    assert len(got) >= 8


def test_stop_tokens_that_the_vocabulary_does_not_have_are_no_harm(engine: Engine) -> None:
    free = add(ids(3), max_tokens=6)
    whole = said(run(engine, free), free)
    odd = add(ids(3), stop_token_ids=(2**31 - 1,), min_tokens=4, max_tokens=6)
    assert said(run(engine, odd), odd) == whole


def test_least_tokens_where_the_end_is_ignored(engine: Engine) -> None:
    free = add(ids(3), ignore_eos=True)
    whole = said(run(engine, free), free)
    patient = add(ids(3), ignore_eos=True, stop_token_ids=(whole[2],), min_tokens=8, max_tokens=9)
    assert whole[2] not in said(run(engine, patient), patient)[:8]


def test_an_answer_that_may_not_end_fills_its_room(engine: Engine, tokenizer: Tokenizer) -> None:
    end_id = tokenizer.special("<|end_of_msg|>")
    head = engine._runner.model.lm_head.weight
    with torch.no_grad():
        saved = head[end_id].clone()
        head[end_id] *= 1000
    try:
        short = [add(ids(seed)) for seed in range(4, 12)]
        reports = run(engine, *short)
        ended = [r for r in short if end_of(reports, r).reason == "stop"]
        assert ended
        endless = add(ended[0].token_ids, ignore_eos=True)
        reports = run(engine, endless)
    finally:
        with torch.no_grad():
            head[end_id] = saved
    assert len(said(reports, endless)) == 12 and end_id not in said(reports, endless)


def test_logprobs_come_with_every_token_and_change_none(engine: Engine) -> None:
    plain, told = add(ids(5)), add(ids(5), logprobs=3)
    reports = run(engine, plain, told)
    assert said(reports, told) == said(reports, plain)
    entries = [
        e
        for r in reports
        if isinstance(r, Generated) and r.request_id == told.request_id
        for e in r.logprobs or []
    ]
    assert [e.token_id for e in entries] == said(reports, told)
    for entry in entries:
        assert len(entry.top) == 3
        assert entry.top[0] == (entry.token_id, entry.logprob)
        assert [v for _, v in entry.top] == sorted((v for _, v in entry.top), reverse=True)
    assert all(
        r.logprobs is None for r in reports if isinstance(r, Generated) and r.request_id != told.request_id
    )


def test_forced_tokens_are_certain(engine: Engine, tokenizer: Tokenizer) -> None:
    prompt = ids(6)
    request = add(
        prompt, GrammarSpec(channel="response"), logprobs=1, temperature=9.0, seed=1, max_tokens=400
    )
    reports = run(engine, request)
    pieces = [r for r in reports if isinstance(r, Generated)]
    assert all(len(r.logprobs or []) == len(r.token_ids) for r in pieces)
    parser = OutputParser(tokenizer, "response")
    parser.feed(said(reports, request))
    if parser.is_ended:
        last = pieces[-1].logprobs or []
        assert all(e.logprob == 0.0 for e in last[1:]) and len(last) > 3


def test_a_seed_gives_the_same_answer_alone_and_in_company(engine: Engine) -> None:
    options = {"temperature": 1.3, "top_p": 0.95, "top_k": 50, "presence_penalty": 0.5, "seed": 11}
    alone = add(ids(7), **options)
    expected = said(run(engine, alone), alone)
    again = add(ids(7), **options)
    others = [add(ids(20 + n), temperature=1.0, seed=n) for n in range(4)]
    reports = run(engine, others[0], again, *others[1:])
    assert said(reports, again) == expected
    different = add(ids(7), **{**options, "seed": 12})
    assert said(run(engine, different), different) != expected


def test_bad_schemas_and_long_prompts_are_the_clients_fault(engine: Engine) -> None:
    pytest.importorskip("llguidance")
    bad = add(ids(8), GrammarSpec(json_schema='{"type": 7}'))
    long = add([1] * 100_000)
    reports = run(engine, bad, long, add([]))
    assert [r.kind for r in reports if isinstance(r, Failed)] == ["bad_request"] * 3


def test_too_many_waiting_is_overload(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    settings = EngineSettings(model_dir=str(tiny_dir), threads=1, cache_bytes=4 << 20, max_waiting=2)
    engine = Engine(Runner.load(settings)[0], tokenizer, settings)
    reports = run(engine, *[add(ids(n)) for n in range(3)])
    assert [r.kind for r in reports if isinstance(r, Failed)] == ["overloaded"]
    assert sum(isinstance(r, Finished) for r in reports) == 2

"""Choosing a token: masks, truncations, penalties, seeds, log-probabilities."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.engine.grammar import Allowed, Free, Masked, OneOf
from k3agent.backend.engine.messages import SamplingParams
from k3agent.backend.engine.sampler import Choice, Chosen, Sampler
from k3agent.backend.errors import BackendError

CPU = torch.device("cpu")
SAMPLER = Sampler(CPU)


def choice(prompt: list[int] | None = None, vocab_size: int = 4, **params: Any) -> Choice:
    return Choice(SamplingParams(**{"top_p": 1.0, **params}), prompt or [], vocab_size, CPU)


def greedy(logits: list[float], allowed: Allowed | None = None, **more: Any) -> int:
    made = choice(temperature=0, vocab_size=len(logits))
    return SAMPLER.sample(torch.tensor(logits), made, allowed, **more).token_id


def drawn(probabilities: list[float], count: int = 400, **params: Any) -> list[int]:
    made = choice(vocab_size=len(probabilities), seed=0, **params)
    logits = torch.log(torch.tensor(probabilities))
    return [SAMPLER.sample(logits.clone(), made).token_id for _ in range(count)]


def test_masks() -> None:
    logits = [0.0, 3.0, 2.0, 1.0]
    assert greedy(logits) == 1
    assert greedy(logits, Free(frozenset({1}))) == 2
    assert greedy(logits, OneOf(frozenset({0, 3}))) == 3
    assert greedy(logits, Masked(torch.tensor([False, True, True, False]))) == 3
    assert greedy(logits, Free(frozenset({1})), banned=frozenset({2})) == 3
    assert greedy(logits, banned=frozenset({1})) == 2


def test_masks_of_many_requests_are_not_kept() -> None:
    sampler, likeliest = Sampler(CPU), choice(vocab_size=300, temperature=0)
    for token_id in range(1, 300):
        logits = torch.zeros(300)
        logits[token_id] = 1
        assert sampler.sample(logits, likeliest, None, frozenset((token_id,))).token_id == 0
    assert len(sampler._banned) <= 64


def test_a_ban_never_leaves_nothing() -> None:
    logits = [0.0, 3.0, 2.0, 1.0]
    assert greedy(logits, OneOf(frozenset({3})), banned=frozenset({3})) == 3
    forbidden = torch.tensor([True, True, True, False])
    assert greedy(logits, Masked(forbidden), banned=frozenset({3})) == 3


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.0}, {0}),
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2}),
        ({"min_p": 0.5}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 2, "top_p": 0.6}, {0}),
    ],
)
def test_truncation(params: dict[str, Any], kept: set[int]) -> None:
    assert set(drawn([0.5, 0.3, 0.2], **params)) == kept


def test_frequencies_follow_the_probabilities() -> None:
    ids = drawn([0.5, 0.3, 0.2], count=2000)
    assert abs(ids.count(0) / 2000 - 0.5) < 0.05
    hot = drawn([0.5, 0.3, 0.2], count=2000, temperature=100.0)
    assert abs(hot.count(2) / 2000 - 1 / 3) < 0.05


def test_seeds_repeat() -> None:
    assert drawn([0.4, 0.3, 0.3], count=50) == drawn([0.4, 0.3, 0.3], count=50)
    made = choice(seed=1)
    logits = torch.zeros(4)
    assert [SAMPLER.sample(logits.clone(), made).token_id for _ in range(50)] != drawn([0.25] * 4, count=50)


def test_presence_and_frequency_penalties_count_what_was_generated() -> None:
    logits = torch.tensor([2.0, 1.9, 0.0, 0.0])
    made = choice([0, 0, 0], temperature=0, presence_penalty=0.5)
    assert SAMPLER.sample(logits.clone(), made).token_id == 0
    made.took([0])
    assert SAMPLER.sample(logits.clone(), made).token_id == 1
    made = choice(temperature=0, frequency_penalty=0.06)
    made.took([0])
    assert SAMPLER.sample(logits.clone(), made).token_id == 0
    made.took([0])
    assert SAMPLER.sample(logits.clone(), made).token_id == 1
    assert SAMPLER.sample(logits.clone(), made, OneOf(frozenset({0, 2}))).token_id == 0


def test_repetition_penalty_counts_the_prompt_too() -> None:
    logits = torch.tensor([2.0, 1.5, -0.5, -0.6])
    made = choice([0, 10**9], temperature=0, repetition_penalty=2.0)
    assert SAMPLER.sample(logits.clone(), made).token_id == 1
    made.took([1, 2])
    assert SAMPLER.sample(logits.clone(), made).token_id == 0
    assert SAMPLER.sample(logits.clone(), made, OneOf(frozenset({2, 3}))).token_id == 3


def test_logprobs() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    result = SAMPLER.sample(logits.clone(), choice(vocab_size=3, temperature=0, logprobs=2))
    assert result.logprobs is not None
    assert result.logprobs.logprob == pytest.approx(math.log(0.5))
    assert [i for i, _ in result.logprobs.top] == [0, 1]
    assert [value for _, value in result.logprobs.top] == pytest.approx([math.log(0.5), math.log(0.3)])
    made = choice(vocab_size=3, temperature=0, logprobs=3)
    within = SAMPLER.sample(logits.clone(), made, OneOf(frozenset({1, 2}))).logprobs
    assert within is not None
    assert within.top == [(1, pytest.approx(math.log(0.6))), (2, pytest.approx(math.log(0.4)))]
    banned = SAMPLER.sample(logits.clone(), made, Free(frozenset({0}))).logprobs
    assert banned is not None
    assert [i for i, _ in banned.top] == [1, 2]
    none = choice(vocab_size=3, temperature=0, logprobs=0)
    assert SAMPLER.sample(logits.clone(), none).logprobs is not None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_is_an_error(temperature: float) -> None:
    with pytest.raises(BackendError, match="NaN"):
        SAMPLER.sample(torch.tensor([float("nan")] * 3), choice(vocab_size=3, temperature=temperature))


@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=40),
    st.floats(0.05, 5),
    st.floats(0, 1),
    st.integers(0, 50),
    st.floats(0, 1),
    st.data(),
)
def test_only_allowed_tokens_are_chosen(
    values: list[float], temperature: float, top_p: float, top_k: int, min_p: float, data: st.DataObject
) -> None:
    ids = data.draw(st.frozensets(st.integers(0, len(values) - 1), min_size=1))
    every = frozenset(range(len(values)))
    masked = Masked(torch.tensor([i not in ids for i in range(len(values))]))
    for allowed in (OneOf(ids), Free(every - ids), masked):
        made = choice(
            vocab_size=len(values), temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=1
        )
        result: Chosen = SAMPLER.sample(torch.tensor(values), made, allowed)
        assert result.token_id in ids

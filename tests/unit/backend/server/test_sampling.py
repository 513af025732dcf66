"""How tokens are chosen: fixed for Kimi's models, up to the request for others."""

from typing import Any

import pytest

from k3agent.backend.engine.messages import SamplingParams
from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.sampling import Profile, read_sampling

FREE = Profile(takes_sampling=True, temperature=0.0, top_p=1.0)
ALL: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 40,
    "min_p": 0.05,
    "presence_penalty": -1.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.2,
    "min_tokens": 3,
    "stop_token_ids": [7, 8],
    "ignore_eos": True,
}


def read(profile: Profile, **body: Any) -> tuple[SamplingParams, list[str]]:
    ignored: list[str] = []
    return read_sampling(body, profile, True, ignored), ignored


def test_a_free_model_takes_everything() -> None:
    params, ignored = read(FREE, **ALL, seed=5, stop=["a"], logprobs=True, top_logprobs=4)
    assert ignored == []
    found = {name: getattr(params, name) for name in ALL}
    assert found == {**ALL, "stop_token_ids": (7, 8)}
    assert (params.seed, params.stop, params.logprobs) == (5, ("a",), 4)


def test_a_fixed_model_names_what_it_ignores() -> None:
    params, ignored = read(Profile(), **ALL)
    assert sorted(ignored) == sorted(ALL)
    assert params == SamplingParams(temperature=1.0, top_p=0.95)
    assert (
        read(Profile(), temperature=1, top_p=0.95, top_k=0, repetition_penalty=1, ignore_eos=False)[1] == []
    )


def test_a_strict_model_refuses_what_its_vendor_refuses() -> None:
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        with pytest.raises(BadRequestError, match=f"invalid {name}: only"):
            read(Profile(is_strict=True), **{name: ALL[name]})
    assert read(Profile(is_strict=True), top_k=3)[1] == ["top_k"]


def test_all_tokens_and_none() -> None:
    assert read(FREE, top_k=-1)[0].top_k == 0
    assert read(FREE, logprobs=True)[0].logprobs == 0
    assert read(FREE, logprobs=False)[0].logprobs is None


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 2.1},
        {"temperature": True},
        {"temperature": 10**400},
        {"temperature": float("inf")},
        {"top_p": -0.1},
        {"top_k": -2},
        {"top_k": 2.0},
        {"min_p": 1.5},
        {"presence_penalty": 3},
        {"repetition_penalty": 0},
        {"min_tokens": -1},
        {"stop_token_ids": 5},
        {"stop_token_ids": [True]},
        {"stop_token_ids": [1] * 65},
        {"ignore_eos": 1},
        {"logprobs": 3},
        {"logprobs": True, "top_logprobs": 21},
        {"top_logprobs": 2},
        {"seed": 0.5},
        {"stop": "\ud800"},
    ],
)
def test_refused(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError, match=next(reversed(body))):
        read(FREE, **body)


def test_what_is_shown_of_a_long_value_is_short() -> None:
    with pytest.raises(BadRequestError) as caught:
        read(FREE, temperature="x" * 100_000)
    assert len(str(caught.value)) < 300

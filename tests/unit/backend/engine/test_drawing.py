"""Tokens that are drawn for many rows at once: the same for a request, whatever runs beside it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.engine import Engine
from k3agent.backend.engine.messages import Add, EngineSettings, Finished, Generated, SamplingParams
from k3agent.backend.engine.process import load
from k3agent.backend.engine.sampler import Choice, Draw, Sampler
from k3agent.backend.kernels import registry

CPU = torch.device("cpu")


def choice(**params: Any) -> Choice:
    return Choice(SamplingParams(**params), [], 8, CPU)


def drawing() -> Sampler:
    """As on a GPU, with the plain implementation."""
    sampler = Sampler(CPU)
    sampler._kernel = registry.get("sample")
    return sampler


def test_rows_without_a_draw_are_greedy() -> None:
    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    logits[1:] = logits[0]
    draws = [None, Draw(choice(seed=1), 5), Draw(choice(seed=1), 5), Draw(choice(temperature=0), 5)]
    for sampler in (drawing(), Sampler(CPU)):
        found = sampler.draw(logits, draws)
        assert found is not None
        assert found[0] == found[3] == int(logits[0].argmax())
        assert found[1] == found[2]
        assert sampler.draw(torch.full((1, 8), float("nan")), [None]) is None
    assert drawing().draws_together and not Sampler(CPU).draws_together


def test_seeds_of_tokens_differ() -> None:
    seeds = {choice(seed=seed).seed_at(position) for seed in range(50) for position in range(50)}
    assert len(seeds) == 2500 and all(0 <= seed < 1 << 63 for seed in seeds)
    assert choice().seed != choice().seed
    assert choice(seed=-1).seed_at(3) == choice(seed=-1).seed_at(3) >= 0


@pytest.fixture
def engine(tiny_dir: Path) -> Engine:
    settings = EngineSettings(
        model_dir=str(tiny_dir), dtype="float64", cache_bytes=4 << 20, max_model_len=512, exactness="off"
    )
    made = load(settings)[0]
    made._sampler._kernel = registry.get("sample")
    return made


def answers(engine: Engine, *seeds: int) -> dict[str, list[int]]:
    prompt = Tokenizer.from_dir(engine._settings.model_dir).encode("the cat sat on the mat")
    for seed in seeds:
        params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=12, seed=seed)
        engine.add(Add(request_id=str(seed), token_ids=[*prompt, seed], params=params))
    found: dict[str, list[int]] = {str(seed): [] for seed in seeds}
    left = len(seeds)
    while left:
        for report in engine.step():
            if isinstance(report, Generated):
                found[report.request_id] += report.token_ids
            left -= isinstance(report, Finished)
    return found


def test_an_answer_does_not_depend_on_its_neighbours(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a plain row was sampled on its own")

    monkeypatch.setattr(Sampler, "sample", fail)
    together = answers(engine, 3, 4, 5)
    for seed in (3, 4, 5):
        assert answers(engine, seed)[str(seed)] == together[str(seed)]
    assert len({tuple(ids) for ids in together.values()}) == 3

"""CUDA graphs of short passes say what plain passes say, on changing pages and slots, and resume exactly."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from k3agent.backend.bench import standin, standins  # noqa: E402  # after the skips
from k3agent.backend.engine.messages import EngineSettings  # noqa: E402
from k3agent.backend.engine.runner import Runner  # noqa: E402
from k3agent.backend.engine.work import Work  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
LIMITS = {"cache_bytes": 64 << 20, "max_model_len": 1024, "max_running": 8, "device": "cuda"}


@pytest.mark.parametrize("name", ["tiny-linear", "tiny-k3"])
def test_graphs_say_what_plain_passes_say(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = standins.build(with_all_experts(name), torch.device("cuda"), kernels="triton")
    plain, captured = (
        Runner(model, EngineSettings(model_dir=str(tmp_path), graphs=graphs, **LIMITS))
        for graphs in ("off", "auto")
    )
    assert captured.has_graphs and not plain.has_graphs
    captured.prepare(lambda *step: None)
    draw = Random(0)
    lengths = [0] * 8
    for step in range(30):
        if step % 3 == 0:
            works = [work(draw, lengths, draw.randrange(8), draw.choice([1, 5, 16, 40, 200, 512]))]
        else:
            works = [work(draw, lengths, place, 1) for place in draw.sample(range(8), draw.randint(1, 8))]
        expected, found = plain.forward(works).clone(), captured.forward(works)
        assert found.isfinite().all()
        assert (found - expected).norm() / expected.norm() < 0.03, f"step {step}"
        # both go on from the same cache, so that rounding does not add up
        for one, other in zip(tables(plain), tables(captured), strict=True):
            other[: len(one)].copy_(one)


def with_all_experts(name: str) -> standins.Standin:
    """Every token chooses every expert: one that is chosen by a hair would change everything."""
    tiny = standins.find(name)

    def raw() -> dict:
        found = tiny.raw()
        text = found.get("text_config", found)
        text["num_experts_per_token"] = text["num_experts"]
        return found

    return replace(tiny, raw=raw)


def tables(runner: Runner) -> list[Any]:
    tensors = runner.storage.tensors
    return [*tensors.latents.values(), *tensors.kda_states.values(), *tensors.conv_tails.values()]


def work(draw: Random, lengths: list[int], place: int, count: int) -> Work:
    """The next tokens of sequence `place`, which has slot `place` and every eighth page."""
    begin = lengths[place] if lengths[place] + count <= 1000 else 0
    lengths[place] = begin + count
    ids = [draw.randrange(256) for _ in range(count)]
    pages = [8 * page + place for page in range(-(-lengths[place] // 64))]
    return Work(token_ids=ids, context_len=begin, page_ids=pages, state_slot=place)


@pytest.mark.parametrize("name", ["tiny-linear", "tiny-k3", "tiny-k3-rank"])
def test_resumes_are_exact(name: str, tmp_path: Path) -> None:
    flags = ["--kernels", "triton", "--chunk", "512", "--cache-bytes", "128M", "--max-model-len", "4096"]
    assert standin.main([name, "--parts", "exact", "--points", "50", "--no-peers", *flags]) == 0

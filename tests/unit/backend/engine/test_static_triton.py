"""Passes padded to fixed shapes, with attention in Triton's interpreter, say what plain ones say."""

from pathlib import Path

import pytest
from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

import torch  # noqa: E402  # after the skip

from k3agent.backend.engine.messages import EngineSettings  # noqa: E402
from k3agent.backend.engine.runner import Runner  # noqa: E402
from k3agent.backend.engine.work import Work  # noqa: E402

USED_SLOTS, USED_PAGES = 4, 8
NEAR = 5e-4


@pytest.fixture(scope="module")
def runners(tiny_dir: Path) -> list[Runner]:
    common = {"model_dir": str(tiny_dir), "dtype": "float32", "cache_bytes": 4 << 20, "max_model_len": 512}
    ways = ({"kernels": "reference", "graphs": "off"}, {"kernels": "triton", "graphs": "padded"})
    return [Runner.load(EngineSettings(**common, **way))[0] for way in ways]


def check(runners: list[Runner], works: list[Work]) -> None:
    """Logits, and every page and state that a sequence may have."""
    for runner in runners:
        generator = torch.Generator().manual_seed(0)
        tensors = runner.storage.tensors
        for tables, used in (
            (tensors.latents, USED_PAGES),
            (tensors.kda_states, USED_SLOTS),
            (tensors.conv_tails, USED_SLOTS),
        ):
            for table in tables.values():
                table[:used] = torch.randn(table[:used].shape, generator=generator)
    plain, padded = (runner.forward(works) for runner in runners)
    assert (padded - plain).norm() / plain.norm() < NEAR
    one, other = (runner.storage.tensors for runner in runners)
    for layer, states in one.kda_states.items():
        difference = other.kda_states[layer][:USED_SLOTS] - states[:USED_SLOTS]
        assert difference.norm() / states[:USED_SLOTS].norm() < NEAR
    for layer, latents in one.latents.items():
        difference = other.latents[layer][:USED_PAGES] - latents[:USED_PAGES]
        assert difference.norm() / latents[:USED_PAGES].norm() < NEAR


def test_decodes(runners: list[Runner]) -> None:
    works = [
        Work(token_ids=[5], context_len=70, page_ids=[3, 1], state_slot=2),
        Work(token_ids=[9], context_len=0, page_ids=[6], state_slot=0),
        Work(token_ids=[7], context_len=63, page_ids=[4], state_slot=3),
    ]
    check(runners, works)


def test_a_prefill_behind_a_prefix(runners: list[Runner]) -> None:
    work = Work(token_ids=list(range(40, 61)), context_len=50, page_ids=[2, 7], state_slot=1)
    check(runners, [work])

"""Attention of a tiny model through kernels in Triton's interpreter: what the plain one says, in fp32."""

from pathlib import Path

import pytest
from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

import torch  # noqa: E402  # after the skip
from support.model_harness import KIMI_LINEAR, Harness, Place  # noqa: E402
from support.tiny_k3 import write_tiny_k3  # noqa: E402

from k3agent.backend.model.inputs import ForwardBatch  # noqa: E402
from k3agent.backend.model.kda import KDA  # noqa: E402
from k3agent.backend.model.mla import MLA  # noqa: E402
from k3agent.backend.model.weights import load_model  # noqa: E402

NEAR = 2e-4


def harnesses(folder: Path, **overrides: object) -> list[Harness]:
    write_tiny_k3(folder, **overrides)
    found = [
        Harness(load_model(folder, torch.float32, kernels=kernels)) for kernels in ("reference", "triton")
    ]
    layers = [module for module in found[1].model.modules() if isinstance(module, KDA | MLA)]
    assert layers and all(layer.is_capturable for layer in layers)
    return found


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).norm() / expected.norm() < NEAR


@pytest.mark.parametrize("overrides", [{}, KIMI_LINEAR])
def test_long_and_short_pieces_and_decoding_together(tmp_path: Path, overrides: dict[str, object]) -> None:
    generator = torch.Generator().manual_seed(1)
    work = [torch.randint(0, 100, (n,), generator=generator) for n in (18, 2, 1, 1)]
    answers = []
    for harness in harnesses(tmp_path, **overrides):
        one, two = Place([2, 5], 0), Place([1], 2)
        logits = []
        for first, second in zip(work[::2], work[1::2], strict=True):
            logits += harness.step([(one, first), (two, second)])
        answers.append((torch.cat(logits), harness.cache))
    (expected, plain), (found, fast) = answers
    near(found, expected)
    for layer, states in plain.kda_states.items():
        near(fast.kda_states[layer][[0, 2]], states[[0, 2]])
        near(fast.conv_tails[layer][[0, 2]], plain.conv_tails[layer][[0, 2]])
    for layer, latents in plain.latents.items():
        near(fast.latents[layer], latents)


def test_states_behind_guesses_are_left_in_their_slots(tmp_path: Path) -> None:
    found = []
    for harness in harnesses(tmp_path):
        harness.run(torch.arange(5), [5])
        batch = ForwardBatch(
            token_ids=torch.tensor([7, 8, 9, 10]),
            cu_seqlens=[0, 4],
            context_lens=[5],
            page_table=torch.tensor([[0]]),
            state_slots=[0],
            has_state=[True],
            trail_slots=[[3, 1]],
        )
        harness.model(batch, harness.cache)
        found.append(harness.cache)
    for layer, states in found[0].kda_states.items():
        near(found[1].kda_states[layer][[0, 1, 3]], states[[0, 1, 3]])
        near(found[1].conv_tails[layer][[0, 1, 3]], found[0].conv_tails[layer][[0, 1, 3]])

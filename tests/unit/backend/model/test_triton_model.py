"""A whole tiny model with kernels in Triton's interpreter says nearly what it says without."""

from pathlib import Path

import pytest
from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

import torch  # noqa: E402  # after the skip
from support.model_harness import KIMI_LINEAR, Harness  # noqa: E402
from support.tiny_k3 import write_tiny_k3  # noqa: E402

from k3agent.backend.model.k3 import K3ForCausalLM  # noqa: E402
from k3agent.backend.model.weights import load_model  # noqa: E402

WIDE_ENOUGH = {"routed_expert_hidden_size": 64, "moe_intermediate_size": 64, "num_experts_per_token": 8}
"""For the matrix unit; and all experts are chosen, since one that is chosen by a hair changes everything."""


def models(folder: Path, **overrides: object) -> list[K3ForCausalLM]:
    write_tiny_k3(folder, **{**WIDE_ENOUGH, **overrides})
    return [load_model(folder, torch.bfloat16, kernels=kernels) for kernels in ("reference", "triton")]


@pytest.mark.parametrize("packed", ["experts", "none"])
def test_both_say_the_same(tmp_path: Path, packed: str) -> None:
    plain, fast = models(tmp_path, pack=packed)
    grouped = [layer.block_sparse_moe.experts.is_capturable for layer in fast.model.layers if layer.is_moe]
    assert grouped and all(grouped)
    ids = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    expected, found = Harness(plain).run(ids, [5, 1, 1]), Harness(fast).run(ids, [5, 1, 1])
    error = (found - expected).norm() / expected.norm()
    assert 0 < error < 0.05


def test_kimi_linear(tmp_path: Path) -> None:
    plain, fast = models(tmp_path, **KIMI_LINEAR, pack="none")
    ids = torch.tensor([3, 1, 4, 1, 5])
    expected, found = Harness(plain).run(ids, [4, 1]), Harness(fast).run(ids, [4, 1])
    assert (found - expected).norm() / expected.norm() < 0.05

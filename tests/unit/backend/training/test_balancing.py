"""Quantile balancing: the count property and that it evens out loads."""

import torch

from k3agent.backend.training.balancing import imbalance, quantile_bias, update_bias
from k3agent.backend.training.network import route


def skewed(tokens: int, experts: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    lean = torch.linspace(-2, 2, experts, dtype=torch.float64)
    return torch.sigmoid(torch.randn(tokens, experts, generator=generator, dtype=torch.float64) + lean)


def test_exactly_its_share_of_tokens_passes_at_fixed_cutoffs() -> None:
    scores = skewed(512, 16, 0)
    # Any cutoffs will do. Those of real routing give ties: a token's margin to its own cutoff is minus the
    # bias.
    cutoff = torch.rand(512, 1, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    fresh = quantile_bias(scores - cutoff, 4)
    passes = (scores - cutoff + fresh > 0).sum(0)
    assert passes.tolist() == [512 * 4 // 16] * 16


def test_loads_become_even() -> None:
    scores = skewed(2048, 16, 1)
    bias = torch.zeros(1, 16, dtype=torch.float64)
    before = float(imbalance(route(scores, bias[0], 4)[0].sum(0)))
    for _ in range(30):
        _, cutoff = route(scores, bias[0], 4)
        update_bias(bias, (scores - cutoff)[None], 4, keep=0.5)
    after = float(imbalance(route(scores, bias[0], 4)[0].sum(0)))
    assert before > 2.0
    assert after < 1.05


def test_bias_is_centred_and_moves_gently() -> None:
    bias = torch.zeros(2, 8)
    margins = torch.randn(2, 64, 8, generator=torch.Generator().manual_seed(3))
    update_bias(bias, margins, 2, keep=0.9)
    assert torch.allclose(bias.mean(-1), torch.zeros(2), atol=1e-6)
    fresh = quantile_bias(margins, 2)
    fresh = fresh - fresh.mean(-1, keepdim=True)
    assert torch.allclose(bias, fresh * 0.1, atol=1e-6)

"""Choice of experts: scores from logits, the best by biased score, weights from the unbiased ones.

Source: Kimi K3 technical report, arXiv 2607.24653; the rule without auxiliary loss.
"""

import torch
from torch import Tensor


def route(
    logits: Tensor, bias: Tensor, num_chosen: int, *, activation: str, renormalize: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """logits: [T, E] wide; bias: [E], used for the choice only. Returns experts [T, k] int64, weights [T, k]
    wide."""
    scores = torch.sigmoid(logits) if activation == "sigmoid" else torch.softmax(logits, dim=-1)
    chosen = torch.topk(scores + bias, num_chosen, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * scaling

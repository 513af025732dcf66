"""Attention residuals: a softmax mixture over depth in place of the residual sum.

Source: Attention Residuals, arXiv 2603.15031.
"""

import torch
from torch import Tensor


def mix(sources: Tensor, norm_weight: Tensor, proj_weight: Tensor, eps: float) -> Tensor:
    """The definition. sources: [T, n, D]; norm_weight, proj_weight: [D]. Returns [T, D].

    Keys are the RMS-normalised sources, values the raw ones; the query is a constant, without 1/sqrt(D).
    """
    keys = sources * torch.rsqrt(sources.square().mean(-1, keepdim=True) + eps) * norm_weight
    weights = torch.softmax((keys * proj_weight).sum(-1), dim=-1)
    return (weights.unsqueeze(-1) * sources).sum(1)


def mix_folded(sources: Tensor, inverse_rms: Tensor, query: Tensor) -> Tensor:
    """The same for query = norm_weight * proj_weight and the inverse RMS of each source, both known
    beforehand.

    sources: [T, n, D] wide; inverse_rms: [T, n]; query: [D]. Returns [T, D] wide.
    """
    weights = torch.softmax((sources @ query) * inverse_rms, dim=-1)
    return torch.bmm(weights.unsqueeze(1), sources).squeeze(1)

"""Attention residuals: a softmax mixture over depth in place of the residual sum.

Source: Attention Residuals, arXiv 2603.15031.
"""

import torch
from torch import Tensor

from k3agent.backend.kernels.reference.rms_norm import rms_norm


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


def read_stream(
    sources: Tensor,
    inverse_rms: Tensor,
    num_blocks: int,
    delta: Tensor | None,
    is_first: bool,
    query: Tensor | None,
    mix_eps: float,
    norm_weight: Tensor,
    norm_eps: float,
) -> Tensor:
    """Add to the running sum, mix it with the finished blocks, and norm the mixture: one read of the residual
    stream.

    sources: [n, T, D], finished blocks, then the running sum, which is updated in place: `delta` [T, D] is
    added, or takes its place if it `is_first`. inverse_rms: [n, T] wide, known for the blocks, set for the
    sum. query: [D] wide, as in `mix_folded`; None: the sum itself is read. norm_weight: [D]. Returns [T, D].
    """
    total = sources[num_blocks]
    if delta is not None:
        total.copy_(delta if is_first else total + delta)
    wide = sources[: num_blocks + 1].to(inverse_rms.dtype)
    torch.rsqrt(wide[-1].square().mean(-1) + mix_eps, out=inverse_rms[num_blocks])
    read = total
    if query is not None:
        rms = inverse_rms[: num_blocks + 1].t()
        read = mix_folded(wide.transpose(0, 1), rms, query).to(total.dtype)
    return rms_norm(read, norm_weight, norm_eps)

"""Quantile balancing: the router's selection bias, set from where the scores lie, with no auxiliary loss;
beside it the older rule that it is compared with.

An expert's margin on a token is its score minus the token's cutoff, the first biased score that was not
chosen. Minus the (1 - k/E) quantile of an expert's margins is the bias at which exactly its share of tokens
would pass the cutoffs. Source: Kimi K3 report, arXiv 2607.24653, section 2.3.3.
"""

import torch
from torch import Tensor


def quantile_bias(margins: Tensor, top: int) -> Tensor:
    """The bias that gives each expert an equal share at fixed cutoffs, before centring.

    margins: [..., m, E]; returns [..., E], minus the (m*top/E + 1)-th largest margin of each expert.
    """
    tokens, experts = margins.shape[-2:]
    share = tokens * top // experts
    # The (share+1)-th largest is the (tokens-share)-th smallest.
    ordered = margins.transpose(-1, -2).contiguous().sort(dim=-1).values
    return -ordered[..., tokens - share - 1]


def update_bias(bias: Tensor, margins: Tensor, top: int, keep: float) -> None:
    """Move `bias` [L, E] in place towards the quantile of this step's margins [L, m, E]; `keep` of the old
    one stays.
    """
    fresh = quantile_bias(margins, top)
    fresh = fresh - fresh.mean(-1, keepdim=True)
    bias.lerp_(fresh.to(bias.dtype), 1.0 - keep)


def step_bias(bias: Tensor, loads: Tensor, rate: float) -> None:
    """Move `bias` [L, E] in place by `rate`, up where an expert had less than its share of tokens and down
    where it had more. loads: [L, E]. Source: loss-free balancing, arXiv 2408.15664.
    """
    loads = loads.to(bias.dtype)
    bias.add_(torch.sign(loads.mean(-1, keepdim=True) - loads), alpha=rate)


def imbalance(loads: Tensor) -> Tensor:
    """The busiest expert's load over the mean, per layer. loads: [..., E]"""
    loads = loads.float()
    return loads.amax(-1) / loads.mean(-1).clamp_min(1.0)


def check_finite(bias: Tensor) -> bool:
    """Waits for the device."""
    return bool(torch.isfinite(bias).all())

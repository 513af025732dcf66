"""Depthwise causal convolution over time with SiLU, for one sequence and for single tokens of many.

Source: Kimi Linear, arXiv 2510.26692, short convolution of q, k and v.
"""

import torch
import torch.nn.functional as F
from k3agent.backend.kernels.dtypes import wide_dtype
from torch import Tensor


def causal_conv(x: Tensor, tail: Tensor, weight: Tensor) -> Tensor:
    """Convolve one sequence. x: [T, C]; tail: [W-1, C], the inputs before x, updated in place; weight: [W, C]
    wide.

    Row W-1 of the weight multiplies the current token. Returns [T, C] in the dtype of x.
    """
    num_tokens, width = x.shape[0], weight.shape[0]
    inputs = torch.cat((tail, x))
    tail.copy_(inputs[num_tokens:])
    inputs = inputs.to(wide_dtype(x.dtype))
    y = inputs[:num_tokens] * weight[0]
    for tap in range(1, width):
        y.addcmul_(inputs[tap : tap + num_tokens], weight[tap])
    return F.silu(y).to(x.dtype)


def causal_conv_step(x: Tensor, tails: Tensor, weight: Tensor) -> Tensor:
    """One token of each sequence. x: [B, C]; tails: [B, W-1, C], updated in place; weight: [W, C]. Returns
    [B, C]."""
    window = torch.cat((tails, x.unsqueeze(1)), dim=1)
    tails.copy_(window[:, 1:])
    return F.silu((window.to(weight.dtype) * weight).sum(1)).to(x.dtype)

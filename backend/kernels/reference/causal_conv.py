"""Depthwise causal convolution over time with SiLU, for one sequence and for single tokens of many.

Source: Kimi Linear, arXiv 2510.26692, short convolution of q, k and v.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from k3agent.backend.kernels.dtypes import wide_dtype


def causal_conv(x: Tensor, tail: Tensor, weight: Tensor) -> Tensor:
    """Convolve one sequence. x: [T, C]; tail: [W-1, C], the inputs before x, updated in place; weight: [W, C]
    wide.

    Row W-1 of the weight multiplies the current token. Returns [T, C] in the dtype of x.
    """
    num_tokens, num_before = x.shape[0], weight.shape[0] - 1
    # Only the first rows reach into the tail; the rest read x where it lies.
    head = torch.cat((tail, x[:num_before]))
    last = torch.cat((tail, x[max(0, num_tokens - num_before) :]))
    tail.copy_(last[last.shape[0] - num_before :])  # nothing, if the convolution has one tap
    y = torch.empty(x.shape, dtype=wide_dtype(x.dtype), device=x.device)
    _convolve(head, weight, y[:num_before])
    if num_tokens > num_before:
        _convolve(x, weight, y[num_before:])
    return F.silu(y, inplace=True).to(x.dtype)


def _convolve(inputs: Tensor, weight: Tensor, out: Tensor) -> None:
    """out[t] = sum over taps of inputs[t + tap] * weight[tap]."""
    inputs, count = inputs.to(out.dtype), out.shape[0]
    torch.mul(inputs[:count], weight[0], out=out)
    for tap in range(1, weight.shape[0]):
        out.addcmul_(inputs[tap : tap + count], weight[tap])


def causal_conv_step(x: Tensor, tails: Tensor, weight: Tensor) -> Tensor:
    """One token of each sequence. x: [B, C]; tails: [B, W-1, C], updated in place; weight: [W, C]. Returns
    [B, C]."""
    window = torch.cat((tails, x.unsqueeze(1)), dim=1)
    tails.copy_(window[:, 1:])
    return F.silu((window.to(weight.dtype) * weight).sum(1)).to(x.dtype)

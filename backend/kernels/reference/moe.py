"""Routed experts of some tokens, one expert after another.

Source: Kimi K3 technical report, arXiv 2607.24653.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.kernels.experts import Activation, ExpertStacks
from k3agent.backend.kernels.reference.gated_act import situ_glu, swiglu
from k3agent.backend.kernels.reference.mxfp4 import mxfp4_dequantise


def moe_experts(
    z: Tensor,
    chosen: Tensor,
    weights: Tensor,
    stacks: ExpertStacks,
    act: Activation,
    num_rows: Tensor | None = None,
) -> Tensor:
    """z: [T, W]; chosen, weights: [T, k]. Returns the weighted sum of the outputs of those experts that are
    in the stacks, [T, W] wide; rows from `num_rows` [1] on, if given, may hold anything.
    """
    total = torch.zeros(z.shape, dtype=wide_dtype(z.dtype), device=z.device)
    for place in range(stacks.count):
        tokens, choices = torch.where(chosen == place + stacks.first)
        if not len(tokens):
            continue
        gate_up = F.linear(z[tokens], _matrix(stacks.w13, stacks.w13_scale, place, z.dtype))
        gate, up = gate_up.chunk(2, dim=-1)
        inner = situ_glu(gate, up, act.beta, act.linear_beta) if act.is_situ else swiglu(gate, up)
        out = F.linear(inner, _matrix(stacks.w2, stacks.w2_scale, place, z.dtype))
        total.index_add_(0, tokens, out.to(total.dtype) * weights[tokens, choices].unsqueeze(-1))
    return total


def _matrix(stack: Tensor, scale: Tensor | None, place: int, dtype: torch.dtype) -> Tensor:
    return stack[place] if scale is None else mxfp4_dequantise(stack[place], scale[place], dtype)

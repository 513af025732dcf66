"""A KDA layer between its projections, for a whole step: convolution, gates, delta rule, gated norm.

Composed of the plain operations; this defines what a fused kernel has to give. Source: Kimi Linear, arXiv
2510.26692.
"""

import torch
from torch import Tensor

from k3agent.backend.kernels.arguments import CHUNK, SHORT, KdaCache, KdaInputs, KdaWeights, StepTables
from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.kernels.reference.causal_conv import causal_conv
from k3agent.backend.kernels.reference.kda_chunk import kda_chunk
from k3agent.backend.kernels.reference.kda_gate import kda_gate
from k3agent.backend.kernels.reference.kda_step import kda_recurrent


def kda_layer(inputs: KdaInputs, weights: KdaWeights, cache: KdaCache, tables: StepTables) -> Tensor:
    """Advance each sequence of the step. Returns [T, H*V] in the activation dtype, before the output
    projection; rows of padding are zero."""
    wide, heads = wide_dtype(inputs.qkv.dtype), (-1, weights.heads, weights.head_dim)
    z = inputs.z.to(wide) + weights.dt_bias
    g_log = kda_gate(z.view(heads), weights.A_log.unsqueeze(-1), weights.lower_bound)
    beta = torch.sigmoid(inputs.beta.to(wide))
    o = torch.zeros_like(g_log)
    starts, slots = tables.cu_seqlens.tolist(), tables.slots.tolist()
    for b, has_state in enumerate(tables.has_state.tolist()):
        if not has_state and starts[b] < starts[b + 1]:
            cache.tails[slots[b]].zero_()
            cache.states[slots[b]].zero_()
        for begin, end, target in _pieces(starts[b], starts[b + 1], tables):
            rows = slice(begin, end)
            mixed = causal_conv(inputs.qkv[rows], cache.tails[slots[b]], weights.taps)
            q, k, v = _heads(mixed.to(wide).view(end - begin, 3, *heads[1:]), weights)
            rest = (q, k, v, g_log[rows], beta[rows], cache.states[slots[b]])
            if end - begin > SHORT:
                o[rows] = kda_chunk(*rest, lower_bound=weights.lower_bound)
            else:
                o[rows] = kda_recurrent(*rest)
            if target >= 0:
                cache.tails[target].copy_(cache.tails[slots[b]])
                cache.states[target].copy_(cache.states[slots[b]])
    o = o.to(inputs.qkv.dtype).to(wide)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + weights.norm_eps) * weights.norm
    return (o * torch.sigmoid(inputs.gate.to(wide)).view(heads)).to(inputs.qkv.dtype).flatten(-2)


def _heads(mixed: Tensor, weights: KdaWeights) -> tuple[Tensor, Tensor, Tensor]:
    """[T, 3, H, K] to q, k (normalised, q scaled) and v."""
    qk = mixed[:, :2]
    qk = qk * torch.rsqrt(qk.square().sum(-1, keepdim=True) + weights.l2_eps)
    return qk[:, 0] * weights.head_dim**-0.5, qk[:, 1], mixed[:, 2]


def _pieces(start: int, stop: int, tables: StepTables) -> list[tuple[int, int, int]]:
    """A sequence cut where its state is wanted: first row, end, slot that receives the state or -1."""
    if tables.exports is None:
        return [(start, stop, -1)] if start < stop else []
    targets = tables.exports[start:stop].tolist()
    is_long = stop - start > SHORT
    pieces, begin = [], start
    for row, target in enumerate(targets, start):
        counts = target >= 0 and not (is_long and (row + 1 - start) % CHUNK)
        if counts or row + 1 == stop:
            pieces.append((begin, row + 1, target if counts else -1))
            begin = row + 1
    return pieces

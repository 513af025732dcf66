"""Attention of MLA over cached latent rows, in its two equal forms.

A row is the normed latent followed by the shared key part; no position enters anywhere. Expanded: make keys
and values of each head from the rows (cheap per query, for prefill). Absorbed: move the up-projection to the
query and attend the rows themselves (no expansion, for decode). Source: DeepSeek-V2, arXiv 2405.04434; Kimi
K3, arXiv 2607.24653.
"""

import torch
from torch import Tensor

from k3agent.backend.kernels.dtypes import wide_dtype

QUERY_BLOCK = 128
"""Queries scored at a time in the expanded form; bounds the score matrix."""


def mla_absorbed(
    q: Tensor, rows: Tensor, key_up: Tensor, value_up: Tensor, scale: float, first_position: int
) -> Tensor:
    """q: [T, H, N+R]; rows: [S, C+R], those of the queries included; key_up: [H, N, C]; value_up: [H, V, C].

    Query t sees rows 0 to first_position + t. Returns [T, H, V].
    """
    num_queries, num_heads, _ = q.shape
    rank = key_up.shape[-1]
    q_nope, q_shared = q.transpose(0, 1).split((key_up.shape[1], q.shape[-1] - key_up.shape[1]), dim=-1)
    absorbed = torch.cat((torch.bmm(q_nope, key_up), q_shared), dim=-1).flatten(0, 1)
    scores = (absorbed @ rows.t()).view(num_heads, num_queries, -1)
    probabilities = _softmax(scores, scale, first_position)
    context = (probabilities.flatten(0, 1) @ rows[:, :rank]).view(num_heads, num_queries, rank)
    return torch.bmm(context, value_up.transpose(1, 2)).transpose(0, 1)


def mla_expanded(
    q: Tensor, rows: Tensor, key_up: Tensor, value_up: Tensor, scale: float, first_position: int
) -> Tensor:
    """Same arguments and result as `mla_absorbed`."""
    num_queries, num_heads, width = q.shape
    nope, rank = key_up.shape[1:]
    latents, shared = rows[:, :rank], rows[:, rank:]
    keys = torch.cat(
        (latents @ key_up.transpose(1, 2), shared.expand(num_heads, -1, width - nope)), dim=-1
    ).transpose(1, 2)
    values = latents @ value_up.transpose(1, 2)
    q = q.transpose(0, 1)
    out = q.new_empty((num_queries, num_heads, values.shape[-1]))
    for start in range(0, num_queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, num_queries)
        num_visible = first_position + stop
        scores = torch.bmm(q[:, start:stop], keys[:, :, :num_visible])
        probabilities = _softmax(scores, scale, first_position + start)
        out[start:stop] = torch.bmm(probabilities, values[:, :num_visible]).transpose(0, 1)
    return out


def _softmax(scores: Tensor, scale: float, first_position: int) -> Tensor:
    """Causal softmax of [H, T, S], wide inside, in the dtype of the scores outside."""
    scaled = scores.to(wide_dtype(scores.dtype)) * scale
    num_queries, num_rows = scores.shape[1:]
    if num_queries > 1:
        hidden = torch.ones((num_queries, num_rows), dtype=torch.bool, device=scores.device)
        scaled.masked_fill_(hidden.triu_(first_position + 1), float("-inf"))
    return torch.softmax(scaled, dim=-1).to(scores.dtype)

"""Attention of an MLA layer for a whole step over pages, composed of the plain operations.

Defines what kernels that read pages have to give. Source: DeepSeek-V2, arXiv 2405.04434; Kimi K3, arXiv
2607.24653.
"""

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.kernels.arguments import StepTables
from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.kernels.reference.mla import mla_absorbed


def mla_store(latent: Tensor, norm: Tensor, eps: float, latents: Tensor, tables: StepTables) -> None:
    """latent: [T, C+R], of which the first C are normed with `norm`, [C]; latents: [pages, PAGE_SIZE,
    C+R]."""
    rank = norm.shape[0]
    wide = latent[:, :rank].to(wide_dtype(latent.dtype))
    inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    rows = torch.cat(((wide * inverse_rms).to(latent.dtype) * norm, latent[:, rank:]), dim=-1)
    starts, pages = tables.cu_seqlens.tolist(), tables.page_table.tolist()
    for b, before in enumerate(tables.context_lens.tolist()):
        for row in range(starts[b], starts[b + 1]):
            page, place = divmod(before + row - starts[b], PAGE_SIZE)
            latents[pages[b][page], place].copy_(rows[row])


def mla_attend(
    q: Tensor, key_up: Tensor, value_up: Tensor, scale: float, latents: Tensor, tables: StepTables
) -> Tensor:
    """q: [T, H, N+R]; key_up: [H, N, C]; value_up: [H, V, C]; latents: [pages, PAGE_SIZE, C+R], those of the
    step included. Each token sees its sequence up to itself. Returns [T, H, V]; rows of padding are zero."""
    out = q.new_zeros((*q.shape[:2], value_up.shape[1]))
    starts = tables.cu_seqlens.tolist()
    for b, before in enumerate(tables.context_lens.tolist()):
        own = slice(starts[b], starts[b + 1])
        length = before + own.stop - own.start
        if own.start < own.stop:
            pages = tables.page_table[b, : -(-length // PAGE_SIZE)].long()
            rows = latents[pages].flatten(0, 1)[:length]
            out[own] = mla_absorbed(q[own], rows, key_up, value_up, scale, before)
    return out

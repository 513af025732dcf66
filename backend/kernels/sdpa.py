"""Expanded MLA through PyTorch's scaled_dot_product_attention, which never holds the whole score matrix."""

import torch
import torch.nn.functional as F
from torch import Tensor


def mla_expanded(
    q: Tensor, rows: Tensor, key_up: Tensor, value_up: Tensor, scale: float, first_position: int
) -> Tensor:
    """Arguments and result as in kernels.reference.mla."""
    num_queries, num_heads, width = q.shape
    nope, rank = key_up.shape[1:]
    v_dim = value_up.shape[1]
    latents = rows[:, :rank]
    shared = rows[:, rank:].expand(num_heads, -1, width - nope)
    keys = torch.cat((latents @ key_up.transpose(1, 2), shared), dim=-1)
    values = latents @ value_up.transpose(1, 2)
    # The fused kernel wants one width for keys and values; zeros change no score and are cut off again.
    target = max(width, v_dim)
    q, keys, values = (
        F.pad(x, (0, target - x.shape[-1])) if x.shape[-1] < target else x
        for x in (q.transpose(0, 1), keys, values)
    )
    mask = None
    if first_position:
        visible = torch.ones((num_queries, rows.shape[0]), dtype=torch.bool, device=q.device)
        mask = visible.tril_(first_position)
    out = F.scaled_dot_product_attention(
        q.unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
    )
    return out.squeeze(0)[..., :v_dim].transpose(0, 1)

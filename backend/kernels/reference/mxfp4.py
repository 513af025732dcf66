"""MXFP4 to numbers: E2M1 codes in pairs, one power-of-two scale for 32 of them along a row.

Source: OCP Microscaling Formats (MX) 1.0; the packing is that of the released weights.
"""

import torch
from torch import Tensor

GROUP = 32
"""Columns that share a scale."""
SCALE_BIAS = 127
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def mxfp4_dequantise(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """packed: uint8 [..., n/2], the even column in the low four bits; scale: uint8 [..., n/32]. Returns [...,
    n].

    Exact in bf16 and wider: a code has two significant bits, and bf16 has the exponent range of E8M0.
    """
    # 256 pairs by byte, so that one lookup gives both columns.
    codes = torch.tensor((*MAGNITUDES, *(-m for m in MAGNITUDES)), dtype=dtype, device=packed.device)
    byte = torch.arange(256, device=packed.device)
    pairs = torch.stack((codes[byte & 15], codes[byte >> 4]), dim=-1)
    values = pairs[packed.int()].flatten(-2)
    factor = torch.exp2(scale.to(torch.float64) - SCALE_BIAS).to(dtype)
    return (values.unflatten(-1, (-1, GROUP)) * factor.unsqueeze(-1)).flatten(-2)

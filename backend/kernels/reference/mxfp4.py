"""MXFP4 to numbers: E2M1 codes in pairs, one power-of-two scale for 32 of them along a row.

Source: OCP Microscaling Formats (MX) 1.0; the packing is that of the released weights.
"""

import math
from functools import cache

import torch
from torch import Tensor

GROUP = 32
"""Columns that share a scale."""
SCALE_BIAS = 127
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@cache
def _tables(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """By byte: the pair of codes that it holds, [256, 2], and the scale that it stands for, [256]."""
    # made once and used inside and outside of inference mode
    with torch.inference_mode(False):
        codes = (*MAGNITUDES, *(-m for m in MAGNITUDES))
        pairs = [(codes[byte & 15], codes[byte >> 4]) for byte in range(256)]
        factors = [*(math.ldexp(1.0, byte - SCALE_BIAS) for byte in range(255)), math.nan]
        wide = torch.tensor(pairs, dtype=torch.float64), torch.tensor(factors, dtype=torch.float64)
        return wide[0].to(device, dtype), wide[1].to(device, dtype)


def mxfp4_dequantise(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """packed: uint8 [..., n/2], the even column in the low four bits; scale: uint8 [..., n/32]. Returns [...,
    n].

    Exact in bf16 and wider: a code has two significant bits, and bf16 has the exponent range of E8M0. A scale
    of 255 is nan, as the format says.
    """
    pairs, factors = _tables(dtype, packed.device)
    values = pairs[packed.int()].flatten(-2)
    factor = factors[scale.int()]
    return (values.unflatten(-1, (-1, GROUP)) * factor.unsqueeze(-1)).flatten(-2)

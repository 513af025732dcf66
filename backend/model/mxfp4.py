"""MXFP4 both ways: the quantiser used for tests and for training with quantised weights, and its inverse.

Source: OCP Microscaling Formats (MX) 1.0.
"""

import torch
from torch import Tensor

from k3agent.backend.errors import BackendError
from k3agent.backend.kernels.reference.mxfp4 import GROUP, MAGNITUDES, SCALE_BIAS, mxfp4_dequantise

__all__ = ["GROUP", "dequantize", "quantize"]

LARGEST_EXPONENT = 2
"""Exponent of the largest magnitude, 6 = 1.5 * 2^2."""


def quantize(w: Tensor) -> tuple[Tensor, Tensor]:
    """[..., n] to packed uint8 [..., n/2] and scale uint8 [..., n/32]; n must be a multiple of 32.

    Per group of 32: exponent floor(log2(max|w|)) - 2, then nearest code, ties to the even code, saturating at
    6.
    """
    if w.shape[-1] % GROUP:
        raise BackendError(f"a row of {w.shape[-1]} columns has no whole groups of {GROUP} for MXFP4.")
    if not w.isfinite().all():
        raise BackendError("inf or nan has no MXFP4 form. Look for the step that made it.")
    groups = w.detach().to(torch.float64).unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    # frexp gives a mantissa in [0.5, 1), so its exponent is one above floor(log2).
    exponent = torch.frexp(largest).exponent - 1 - LARGEST_EXPONENT
    exponent = torch.where(largest > 0, exponent, 0).clamp(-SCALE_BIAS, SCALE_BIAS)
    scaled = torch.ldexp(groups.abs(), -exponent)
    steps = torch.tensor(MAGNITUDES, dtype=torch.float64, device=w.device)
    # Borders between neighbours. A tie goes to the even code: up from an odd one, down to an even one.
    borders = (steps[1:] + steps[:-1]) / 2
    codes = torch.zeros_like(scaled, dtype=torch.uint8)
    for lower, border in enumerate(borders.tolist()):
        codes += (scaled >= border) if lower % 2 else (scaled > border)
    codes |= torch.signbit(groups).to(torch.uint8) << 3
    codes = codes.flatten(-2)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed, (exponent.squeeze(-1) + SCALE_BIAS).to(torch.uint8)


def dequantize(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Inverse of the packing, [..., n]."""
    return mxfp4_dequantise(packed, scale, dtype)

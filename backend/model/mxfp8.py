"""MXFP8 both ways: E4M3 codes with one power-of-two scale for 32 of them along a row.

K3 was trained with the inputs of its routed experts in this form; the released file asks for it nowhere, so
it is an option. Source: OCP Microscaling Formats (MX) 1.0, OCP 8-bit Floating Point (OFP8) 1.0.
"""

import torch
from torch import Tensor

from k3agent.backend.errors import BackendError

__all__ = ["GROUP", "LARGEST", "dequantize", "quantize"]

GROUP = 32
"""Columns that share a scale."""
LARGEST = 448.0
"""Largest finite magnitude, 1.75 * 2^8."""
SCALE_BIAS = 127
_LARGEST_EXPONENT = 8
_MANTISSA_BITS = 3
_SMALLEST_EXPONENT = -6
"""Exponent of the smallest normal number; below it the codes are evenly spaced."""
_NAN_SCALE = 255


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """[..., n] to codes uint8 [..., n] and scale uint8 [..., n/32]; n must be a multiple of 32.

    Per group of 32: exponent floor(log2(max|x|)) - 8, then the nearest number, ties to the even mantissa,
    saturating at 448. Rounds once, whatever the dtype of `x`.
    """
    if x.shape[-1] % GROUP:
        raise BackendError(f"a row of {x.shape[-1]} columns has no whole groups of {GROUP} for MXFP8.")
    if not x.isfinite().all():
        raise BackendError("inf or nan has no MXFP8 form. Look for the step that made it.")
    groups = x.detach().to(torch.float64).unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    # frexp gives a mantissa in [0.5, 1), so its exponent is one above floor(log2).
    exponent = torch.frexp(largest).exponent - 1 - _LARGEST_EXPONENT
    exponent = torch.where(largest > 0, exponent, 0).clamp(-SCALE_BIAS, SCALE_BIAS)
    scaled = torch.ldexp(groups, -exponent)
    step = (torch.frexp(scaled).exponent - 1).clamp(min=_SMALLEST_EXPONENT) - _MANTISSA_BITS
    rounded = torch.ldexp(torch.round(torch.ldexp(scaled, -step)), step).clamp(-LARGEST, LARGEST)
    # Every value has a code by now, so the cast does not round. copysign keeps -0, which the clamp may lose.
    codes = torch.copysign(rounded, groups).to(torch.float32).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.flatten(-2), (exponent.squeeze(-1) + SCALE_BIAS).to(torch.uint8)


def dequantize(codes: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Inverse of `quantize`, [..., n]; exact in bf16 and wider. A scale of 255 is nan, as the format says."""
    if scale.shape[-1] * GROUP != codes.shape[-1]:
        raise BackendError(f"{scale.shape[-1]} scales do not fit {codes.shape[-1]} codes: one for {GROUP}.")
    values = codes.contiguous().view(torch.float8_e4m3fn).to(torch.float64).unflatten(-1, (-1, GROUP))
    scaled = torch.ldexp(values, (scale.to(torch.int32) - SCALE_BIAS).unsqueeze(-1))
    scaled = torch.where((scale == _NAN_SCALE).unsqueeze(-1), torch.nan, scaled)
    return scaled.flatten(-2).to(dtype)

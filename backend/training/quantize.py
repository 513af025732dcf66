"""Rounding in the loop: MXFP4 of all matrices in one kernel, as the packed file will hold them, and MXFP8 of
the routed experts' inputs.

Groups of 32 weights of a row share a power of two; a weight is one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 times it,
with sign. The network computes with the rounded copy while the optimizer moves the fp32 master: the
gradient passes straight through. Source: OCP Microscaling Formats, E2M1 elements with an E8M0 scale.
"""

import torch
from torch import Tensor

from k3agent.backend.training.parameters import GROUP

LARGEST_E4M3 = 448.0
MIN_EXPONENT = -126
MAX_EXPONENT = 126
"""Both 2^e and 2^-e are then ordinary fp32 numbers. Weights never come near the ends, but for groups of
zeros.
"""


def _exponent(largest: Tensor) -> Tensor:
    """floor(log2(x)) - 2 of fp32 numbers, read from their bits; zero gives the least."""
    bits = largest.view(torch.int32)
    return (((bits >> 23) & 0xFF) - 127 - 2).clamp(MIN_EXPONENT, MAX_EXPONENT)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^e, built from its bits: a GPU's exp2 is an approximation."""
    return ((exponent + 127) << 23).view(torch.float32)


def _round_e2m1(magnitude: Tensor) -> Tensor:
    """The nearest E2M1 value of a number that is not negative; ties go to the even code; 6 is the largest."""
    # Between values of equal spacing the nearest multiple is the nearest value, and torch rounds ties to
    # even.
    fine = torch.round(magnitude * 2) * 0.5
    middle = torch.round(magnitude)
    coarse = torch.round(magnitude * 0.5) * 2
    value = torch.where(magnitude < 2, fine, torch.where(magnitude < 4, middle, coarse))
    return value.clamp(max=6.0)


def round_groups(master: Tensor) -> Tensor:
    """The fp32 values that a flat fp32 tensor of whole groups has after packing."""
    groups = master.view(-1, GROUP)
    exponent = _exponent(groups.abs().amax(-1, keepdim=True))
    value = _round_e2m1(groups.abs() * _power_of_two(-exponent))
    return (torch.where(groups < 0, -value, value) * _power_of_two(exponent)).view(-1)


def round_inputs(x: Tensor) -> Tensor:
    """Inputs of routed experts as MXFP8 holds them: E4M3 with a power of two for each 32 of a row. The
    gradient passes straight through. x: [..., n], n a multiple of 32; same dtype out. Agrees with
    `model/mxfp8.py`.
    """
    groups = x.detach().float().unflatten(-1, (-1, GROUP))
    # The largest of a group comes to lie in [256, 512), of which 448 is E4M3's end.
    exponent = (_exponent(groups.abs().amax(-1, keepdim=True)) - 6).clamp(min=MIN_EXPONENT)
    scaled = (groups * _power_of_two(-exponent)).clamp(-LARGEST_E4M3, LARGEST_E4M3)
    rounded = scaled.to(torch.float8_e4m3fn).float() * _power_of_two(exponent)
    return x + (rounded.flatten(-2).to(x.dtype) - x.detach())


def refresh(compute: Tensor, master: Tensor, *, rounded: bool) -> None:
    """Set the compute copy from the master, rounded to MXFP4 or plainly cast."""
    compute.copy_(round_groups(master) if rounded else master)

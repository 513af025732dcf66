"""RMS norm: statistics wide, the weight applied after the cast.

Source: the released code of Kimi K3.
"""

import torch
from torch import Tensor

from k3agent.backend.kernels.dtypes import wide_dtype


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: [..., D]; weight: [D]. y = w * cast(x * rsqrt(mean(x^2) + eps))."""
    wide = x.to(wide_dtype(x.dtype))
    inverse_rms = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse_rms).to(x.dtype) * weight

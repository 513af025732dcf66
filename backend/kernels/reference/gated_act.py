"""Gated activations of the MLPs: f(gate, up), computed wide and cast once.

Source: Kimi K3 technical report, arXiv 2607.24653, SiTU-GLU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from k3agent.backend.kernels.dtypes import wide_dtype


def situ_glu(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """beta * tanh(gate/beta) * sigmoid(gate) * linear_beta * tanh(up/linear_beta); any equal shapes."""
    wide = wide_dtype(gate.dtype)
    a, b = gate.to(wide), up.to(wide)
    capped = torch.tanh(a / beta) * torch.sigmoid(a)
    return (capped * torch.tanh(b / linear_beta) * (beta * linear_beta)).to(gate.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up; any equal shapes."""
    return F.silu(gate) * up

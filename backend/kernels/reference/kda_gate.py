"""The decay of KDA from its projection: log of the retention factor per head and key channel.

Source: Kimi Linear, arXiv 2510.26692 (softplus form); Kimi K3 technical report, arXiv 2607.24653 (bounded
form).
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def kda_gate(z: Tensor, A_log: Tensor, lower_bound: float | None) -> Tensor:
    """z: [T, H, K] wide, with dt_bias added; A_log: [H, 1]. Returns g_log [T, H, K], at most 0.

    With a lower bound g_log lies in (lower_bound, 0); without one it has no lower limit.
    """
    if lower_bound is None:
        return -torch.exp(A_log) * F.softplus(z)
    return lower_bound * torch.sigmoid(torch.exp(A_log) * z)

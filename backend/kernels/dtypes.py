"""The one rule about precision: which dtype statistics, gates, softmax and states are computed in."""

import torch


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 when the activations themselves are fp64 (then a run is exact enough to compare with)."""
    return torch.float64 if dtype == torch.float64 else torch.float32

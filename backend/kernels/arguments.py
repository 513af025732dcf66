"""What kernels that take a whole step get: its tables on the device, inputs and weights of a layer."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

SHORT = 16
"""A sequence of so few tokens of a step goes token by token. That is decided from its own length alone,
so that no result depends on what else is in the step."""
CHUNK = 64
"""Tokens of a chunk of KDA, counted from the first token of the sequence in the step."""


class StepTables(Protocol):
    """B sequences and T rows (model.tables.Tables), int32. Sequences without tokens are padding."""

    cu_seqlens: Tensor
    """[B+1], the first row of each sequence, and T."""
    context_lens: Tensor
    """[B], tokens that the cache held before."""
    slots: Tensor
    """[B], slot of KDA state."""
    has_state: Tensor
    """[B], 0: start from zero."""
    page_table: Tensor
    """[B, P]"""
    longest: int
    """No sequence has more tokens."""
    shortest: int
    """No sequence has fewer; 0: not known, as in a graph."""
    exports: Tensor | None
    """[T], the slot that receives the state after this row as well, or -1. In sequences longer than SHORT
    only rows at the end of a chunk count."""


@dataclass(frozen=True)
class KdaInputs:
    """Projections of the T rows of a KDA layer, in the activation dtype; rows may lie apart in memory."""

    qkv: Tensor
    """[T, 3*H*K], before the convolution."""
    z: Tensor
    """[T, H*K], the decay's projection, without its bias."""
    beta: Tensor
    """[T, H], before the sigmoid."""
    gate: Tensor
    """[T, H*K], before the sigmoid."""


@dataclass(frozen=True)
class KdaWeights:
    """Small weights of a KDA layer, wide."""

    taps: Tensor
    """[W, 3*H*K], time first; the last row multiplies the current token."""
    A_log: Tensor
    """[H]"""
    dt_bias: Tensor
    """[H*K]"""
    norm: Tensor
    """[K], of the output norm that all heads share."""
    norm_eps: float
    l2_eps: float
    lower_bound: float | None

    @property
    def has_safe_gate(self) -> bool:
        """Do 8 tokens never decay by more than e^40, so that within a tile products stay inside fp32?"""
        return self.lower_bound is not None and self.lower_bound >= -5.0

    @property
    def heads(self) -> int:
        return self.A_log.shape[0]

    @property
    def head_dim(self) -> int:
        return self.norm.shape[0]


@dataclass(frozen=True)
class KdaCache:
    """State of one KDA layer by slot, updated in place."""

    tails: Tensor
    """[slots, W-1, 3*H*K], activation dtype: what the convolution last read, oldest first."""
    states: Tensor
    """[slots, H, K, V], fp32."""

    def copy(self) -> "KdaCache":
        """The same contents in memory of their own."""
        return KdaCache(self.tails.clone(), self.states.clone())

"""What an operation on routed experts gets: their weights, stacked over experts, and their activation."""

from dataclasses import dataclass

from torch import Tensor

LEAST_SIDE = 16
"""The smallest side of a tile that a matrix unit takes."""
PLANES = 4
"""Packed columns are taken apart into so many planes, of every fourth column each."""
LARGEST_SCALE = 128
"""Unpacking goes through 2^126 times the scale, which has no form in bf16 if it is larger."""


@dataclass(frozen=True)
class Activation:
    """SiTU with its two caps, or SwiGLU without."""

    beta: float = 0.0
    linear_beta: float = 0.0

    @property
    def is_situ(self) -> bool:
        return self.beta > 0


@dataclass(frozen=True)
class ExpertStacks:
    """Weights of E experts: gate over up [E, 2*I, W], and down [E, W, I]; plain, or packed as MXFP4 with
    scales, where a byte holds two columns and a scale stands for 32."""

    w13: Tensor
    w2: Tensor
    w13_scale: Tensor | None = None
    w2_scale: Tensor | None = None
    first: int = 0
    """The number of the first of them: ranks may hold a part each."""
    of: int | None = None
    """How many experts the layer has over all ranks; None: these."""

    @property
    def count(self) -> int:
        return self.w13.shape[0]

    @property
    def inner(self) -> int:
        """I"""
        return self.w13.shape[1] // 2

    @property
    def width(self) -> int:
        """W"""
        return self.w2.shape[1]

    @property
    def is_packed(self) -> bool:
        return self.w13_scale is not None

    @property
    def least_columns(self) -> int:
        """The least that a tile has along a row of weights."""
        return LEAST_SIDE * (PLANES if self.is_packed else 1)

    def suit_matrix_unit(self) -> bool:
        """Are shapes and scales such that grouped kernels are exact? Reads the scales: ask once."""
        if self.inner % self.least_columns or self.width % self.least_columns:
            return False
        scales = (self.w13_scale, self.w2_scale)
        return all(scale is None or int(scale.max()) <= LARGEST_SCALE for scale in scales)

    @property
    def bytes_each(self) -> int:
        """Of one expert."""
        stacks = (self.w13, self.w2, self.w13_scale, self.w2_scale)
        return sum(s[0].numel() * s.element_size() for s in stacks if s is not None)

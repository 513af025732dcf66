"""What an operation on routed experts gets: their weights, stacked over experts, and their activation."""

from dataclasses import dataclass

from torch import Tensor


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
    def bytes_each(self) -> int:
        """Of one expert."""
        stacks = (self.w13, self.w2, self.w13_scale, self.w2_scale)
        return sum(s[0].numel() * s.element_size() for s in stacks if s is not None)

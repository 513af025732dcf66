"""Matrix times vector on the CPU: as stored, or through int8 where that holds every weight exactly.

At one token a step the time goes into reading weights. MXFP4 weights have two significant bits and the scales
of a row lie close together, so a row is nearly always a power of two times int8, without loss, at a quarter
of the bytes of fp32. The kernel that reads int8 takes and gives bf16, so what is rounded are activations, as
in any bf16 run.
"""

import torch
from torch import Tensor

INT8_BITS = 7
"""Bits of magnitude."""


def exact_int8(weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """[N, K] to int8 [N, K] and bf16 scale [N], powers of two, with weight = int8 * scale exactly; None if
    there is none."""
    largest = weight.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - INT8_BITS
    steps = torch.ldexp(weight, -exponent)
    if weight.shape[-1] % 32 or not torch.equal(steps, steps.round()):
        return None
    return steps.to(torch.int8), torch.ldexp(torch.ones_like(largest), exponent).squeeze(-1).to(
        torch.bfloat16
    )


class Matvec:
    """y = W x for vectors in fp32 (or fp64 without int8). Shares the weight's memory unless int8 is used."""

    def __init__(self, weight: Tensor, use_int8: bool = False) -> None:
        self.weight = weight.detach()
        self._int8 = exact_int8(self.weight) if use_int8 else None

    @property
    def is_int8(self) -> bool:
        """Was an exact int8 form asked for and found?"""
        return self._int8 is not None

    def __call__(self, x: Tensor) -> Tensor:
        if self._int8 is None:
            return torch.mv(self.weight, x)
        return self._through_int8(x).to(x.dtype)

    def plus(self, y: Tensor, x: Tensor, factor: float = 1.0) -> Tensor:
        """y + factor * W x, in place in y."""
        if self._int8 is None:
            return y.addmv_(self.weight, x, alpha=factor)
        return y.add_(self._through_int8(x), alpha=factor)

    def _through_int8(self, x: Tensor) -> Tensor:
        assert self._int8 is not None
        return torch._weight_int8pack_mm(x.to(torch.bfloat16).unsqueeze(0), *self._int8)[0]  # pyright: ignore[reportPrivateImportUsage]


def has_int8_kernel() -> bool:
    """Does this PyTorch have the int8 kernel? It is not part of its public interface."""
    return hasattr(torch, "_weight_int8pack_mm")

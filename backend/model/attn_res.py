"""The residual stream, in its two forms: attention residuals over blocks of layers (K3), or a plain sum
(Kimi-Linear).

A stream lives for one step. Layers read an input from it, add their output to it, and know no more.
Source: Attention Residuals, arXiv 2603.15031.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from k3agent.backend.kernels import registry
from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.model.layers import Linear, RMSNorm


class Site:
    """One place where the stream is read: its norm and projection, folded into one vector once they are
    loaded."""

    def __init__(self, norm: RMSNorm, proj: Linear) -> None:
        self._norm, self._proj = norm, proj
        self.query = torch.empty(0)

    def fold(self) -> None:
        """Take the loaded weights over."""
        wide = wide_dtype(self._norm.weight.dtype)
        self.query = self._norm.weight.to(wide) * self._proj.weight[0].to(wide)


class Stream(Protocol):
    """What a decoder layer sees of the residual stream; `x` and results are [T, D] in the activation
    dtype."""

    @property
    def total(self) -> Tensor: ...

    def read(self, site: Site | None, norm: RMSNorm) -> Tensor: ...

    def start_block(self) -> None: ...

    def add(self, x: Tensor) -> None: ...


class PlainStream:
    """An ordinary residual: one running sum that is also the input of every layer."""

    def __init__(self, embeddings: Tensor) -> None:
        self.total = embeddings

    def read(self, site: Site | None, norm: RMSNorm) -> Tensor:
        return norm(self.total)

    def start_block(self) -> None:
        """A plain sum has no blocks."""

    def add(self, x: Tensor) -> None:
        self.total = self.total + x


class BlockStream:
    """Attention residuals: finished blocks and the running sum of the current one, mixed anew at every site.

    All sources lie in one [T, n, D] buffer (wide, holding values of the activation dtype), the running sum
    last. Only its inverse RMS changes between reads; those of finished blocks are kept.
    """

    def __init__(self, embeddings: Tensor, num_blocks: int, eps: float) -> None:
        num_tokens, width = embeddings.shape
        wide = wide_dtype(embeddings.dtype)
        self.total = embeddings
        self._sources = torch.empty((num_tokens, num_blocks + 1, width), dtype=wide, device=embeddings.device)
        self._inverse_rms = torch.empty((num_tokens, num_blocks + 1), dtype=wide, device=embeddings.device)
        self._num_blocks = 0
        self._is_empty = False
        self._eps = eps
        self._mix = registry.get("attn_res_mix")
        self._note_total()

    def read(self, site: Site | None, norm: RMSNorm) -> Tensor:
        """The mixture for this site, normed; before the first block is finished, the running sum itself."""
        if self._num_blocks == 0 or site is None:
            return norm(self.total)
        n = self._num_blocks + 1
        mixed = self._mix(self._sources[:, :n], self._inverse_rms[:, :n], site.query)
        return norm(mixed.to(self.total.dtype))

    def start_block(self) -> None:
        """Close the current block; the next output starts a new sum."""
        self._num_blocks += 1
        self._is_empty = True

    def add(self, x: Tensor) -> None:
        """Add the output of a sublayer to the running sum."""
        self.total = x if self._is_empty else self.total + x
        self._is_empty = False
        self._note_total()

    def _note_total(self) -> None:
        n = self._num_blocks
        row = self._sources[:, n]
        row.copy_(self.total)
        torch.rsqrt(row.square().mean(-1) + self._eps, out=self._inverse_rms[:, n])


class FusedStream:
    """Either form through one kernel a read (`read_stream`): a sublayer's output waits until the next read,
    which adds it, mixes and norms.

    Sources lie in [n, T, D], in the activation dtype, the running sum behind the finished blocks.
    """

    def __init__(self, embeddings: Tensor, num_blocks: int, eps: float, kernel: registry.Kernel) -> None:
        shape = (num_blocks + 1, *embeddings.shape)
        self._sources = torch.empty(shape, dtype=embeddings.dtype, device=embeddings.device)
        self._inverse_rms = torch.empty(
            shape[:2], dtype=wide_dtype(embeddings.dtype), device=embeddings.device
        )
        self._read = kernel
        self._eps = eps
        self._num_blocks = 0
        self._waiting: Tensor | None = embeddings
        self._is_first = True

    @property
    def total(self) -> Tensor:
        """The running sum with what waits."""
        held = self._sources[self._num_blocks]
        if self._waiting is None:
            return held
        return self._waiting if self._is_first else held + self._waiting

    def read(self, site: Site | None, norm: RMSNorm) -> Tensor:
        query = site.query if site is not None and self._num_blocks else None
        rest = (query, self._eps, norm.weight, norm.eps)
        read = self._read(
            self._sources, self._inverse_rms, self._num_blocks, self._waiting, self._is_first, *rest
        )
        self._waiting, self._is_first = None, False
        return read

    def start_block(self) -> None:
        """Close the current block, whose sum was just read; the next output starts a new sum."""
        self._num_blocks += 1
        self._is_first = True

    def add(self, x: Tensor) -> None:
        """Leave the output of a sublayer for the next read."""
        self._waiting = x


def attach_site(owner: nn.Module, prefix: str, width: int, eps: float, dtype: torch.dtype) -> Site:
    """Give `owner` the modules `<prefix>_norm` and `<prefix>_proj`; returns the site they make."""
    norm, proj = RMSNorm(width, eps, dtype), Linear(width, 1, dtype)
    setattr(owner, f"{prefix}_norm", norm)
    setattr(owner, f"{prefix}_proj", proj)
    return Site(norm, proj)

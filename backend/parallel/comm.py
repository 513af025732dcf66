"""What ranks of one model exchange. One rank exchanges nothing and pays nothing."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Comm(Protocol):
    """Collectives among `world` ranks; every rank calls them in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks; may write into `x`."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """The tensors of all ranks side by side along the last dimension, in the order of ranks."""
        ...


@dataclass(frozen=True)
class SoloComm:
    """One rank."""

    rank: int = 0
    world: int = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x


class GroupComm:
    """Ranks of a torch.distributed process group (gloo on CPUs, NCCL on GPUs)."""

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        self._rank, self._world = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        self._group = group

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world(self) -> int:
        return self._world

    def all_reduce(self, x: Tensor) -> Tensor:
        torch.distributed.all_reduce(x, group=self._group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.world)]
        torch.distributed.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat(parts, dim=-1)

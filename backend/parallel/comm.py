"""What ranks of one model exchange. One rank exchanges nothing and pays nothing."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from k3agent.backend.errors import PeerLostError
from k3agent.backend.parallel.symmetric import SymmetricSums


class Comm(Protocol):
    """Collectives among `world` ranks; every rank calls them in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def is_capturable(self) -> bool:
        """Can a CUDA graph hold the exchanges? Each rank then replays its own, at the same time."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks; may write into `x`."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """The tensors of all ranks side by side along the last dimension, in the order of ranks."""
        ...

    def least(self, value: int) -> int:
        """The smallest of the ranks' values."""
        ...


@dataclass(frozen=True)
class SoloComm:
    """One rank."""

    rank: int = 0
    world: int = 1
    is_capturable: bool = True

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def least(self, value: int) -> int:
        return value


class GroupComm:
    """Ranks of a torch.distributed process group (gloo on CPUs, NCCL on GPUs).

    A collective that breaks off raises PeerLostError: which rank is to blame, only the one who watches the
    processes can say.
    """

    def __init__(self, group: ProcessGroup | None = None, device: torch.device | None = None) -> None:
        self._rank, self._world = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        self._group = group
        self._device = device or torch.device("cpu")
        # gloo's exchanges are done by the host
        self.is_capturable = torch.distributed.get_backend(group) == "nccl"
        self.small_sums: SymmetricSums | None = None
        """Where small tensors are added up, on all ranks or on none; None: with the others."""

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world(self) -> int:
        return self._world

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.small_sums is not None and self.small_sums.takes(x):
            return self.small_sums.add(x)
        self._reduce(x, ReduceOp.SUM)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.world)]
        if x.numel():
            try:
                torch.distributed.all_gather(parts, x.contiguous(), group=self._group)
            except RuntimeError as error:
                raise PeerLostError(
                    f"rank {self.rank}: gathering from all ranks broke off: {error}"
                ) from error
        return torch.cat(parts, dim=-1)

    def exchange(self, x: Tensor) -> Tensor:
        """Entry r of the first dimension goes to rank r; entry r of the result came from rank r."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        try:
            torch.distributed.all_to_all_single(out, x.contiguous(), group=self._group)
        except RuntimeError as error:
            raise PeerLostError(f"rank {self.rank}: an exchange of all ranks broke off: {error}") from error
        return out

    def least(self, value: int) -> int:
        held = torch.tensor(value, dtype=torch.int64, device=self._device)
        self._reduce(held, ReduceOp.MIN)
        return int(held.item())

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's `x`, written into everybody's."""
        try:
            torch.distributed.broadcast(x, 0, group=self._group)
        except RuntimeError as error:
            raise PeerLostError(f"rank {self.rank}: a broadcast of rank 0 broke off: {error}") from error
        return x

    def _reduce(self, x: Tensor, how: ReduceOp.RedOpType) -> None:
        try:
            torch.distributed.all_reduce(x, how, group=self._group)
        except RuntimeError as error:
            raise PeerLostError(f"rank {self.rank}: a sum over all ranks broke off: {error}") from error

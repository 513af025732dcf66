"""Small sums over ranks through memory that all GPUs of one machine see (torch's "symmetric memory").

What is added up is copied into a buffer, of which each rank has one; a kernel on each rank waits for the
others by signals beside the buffers and reads them. So sums must follow each other on one stream, in the same
order on all ranks, and what is summed here is decided by type and size, which are the same on all.

A kernel waits for a rank that is gone until its own process ends. Freeing the buffer waits for the device, so
ranks that end after a loss must do so without freeing it (`processes.end_process`, `engine/worker.py`).
"""

import logging
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 20
"""Of one tensor: what decodes sum. Beyond that NCCL needs no more time than these kernels."""
UNIT_BYTES = 16
"""The kernels read so many bytes at once where a tensor has a multiple of them; the least they take is 4."""
DTYPES = (torch.bfloat16, torch.float32)
"""All that the kernels add."""
MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
ONE_SHOT, TWO_SHOT = "one_shot_all_reduce", "two_shot_all_reduce_"

_FAILURES = (RuntimeError, ImportError, AttributeError, OSError)
T = TypeVar("T")


class Memory(Protocol):
    """A buffer on each rank that all can read, and what adds up the buffers."""

    is_in_place: bool
    """Does `add` write the sum into the buffer? Else it gives a new tensor."""

    def allocate(self, num_bytes: int) -> Tensor:
        """This rank's buffer; raises where this rank cannot have one. Waits for nobody."""
        ...

    def meet(self, buffer: Tensor) -> None:
        """Make the buffers of all ranks known to each other."""
        ...

    def add(self, x: Tensor) -> Tensor:
        """The sum over all ranks of what lies in the buffer from its first byte on, in the current stream."""
        ...


class TorchMemory:
    """Buffers and kernels of torch, for ranks of one machine that have a GPU each.

    One-shot kernels read all buffers, whole, on each rank. That all then add them in the same order torch
    does not promise, and with two ranks it does not matter. Two-shot ones add each part on one rank, which
    hands it to all: whatever the order, all have the same bits.
    """

    def __init__(self, group: ProcessGroup, device: torch.device, kernel: str | None = None) -> None:
        self._group, self._device = group, device
        self.kernel = kernel or (ONE_SHOT if group.size() == 2 else TWO_SHOT)
        self.is_in_place = self.kernel == TWO_SHOT

    def allocate(self, num_bytes: int) -> Tensor:
        device = self._device
        if device.type != "cuda":
            raise RuntimeError(f"the ranks compute on {device.type}")
        if os.environ.get(MULTICAST) != "1":
            raise RuntimeError(f"{MULTICAST} is not 1")
        for peer in range(self._group.size()):
            if peer != device.index and not torch.cuda.can_device_access_peer(device, peer):
                raise RuntimeError(f"{device} does not see the memory of cuda:{peer}")
        import torch.distributed._symmetric_memory as symmetric  # lazy: only where there are GPUs

        # the others may use what the switch adds; what torch has chosen itself is not among those to choose
        if symmetric.get_backend(device) != "CUDA":
            symmetric.set_backend("CUDA")
        return symmetric.empty(num_bytes // 4, dtype=torch.float32, device=device)

    def meet(self, buffer: Tensor) -> None:
        import torch.distributed._symmetric_memory as symmetric  # lazy: only where there are GPUs

        symmetric.rendezvous(buffer, self._group.group_name)

    def add(self, x: Tensor) -> Tensor:
        return getattr(torch.ops.symm_mem, self.kernel)(x, "sum", self._group.group_name)


class SymmetricSums:
    """Sums by way of a buffer that was made known to all ranks."""

    def __init__(self, memory: Memory, buffer: Tensor) -> None:
        self._memory, self._most = memory, buffer.nbytes
        self._rows = {dtype: buffer.view(dtype) for dtype in DTYPES}

    def takes(self, x: Tensor) -> bool:
        """Is this the place to sum `x`? Other tensors go another way."""
        return x.dtype in self._rows and 0 < x.nbytes <= self._most and x.nbytes % UNIT_BYTES == 0

    def add(self, x: Tensor) -> Tensor:
        """The sum over all ranks, in a tensor that later sums leave alone; may write into `x`."""
        own = self._rows[x.dtype][: x.numel()].view(x.shape)
        own.copy_(x)
        found = self._memory.add(own)
        return x.copy_(found) if self._memory.is_in_place else found

    def try_out(self, rank: int, world: int) -> "SymmetricSums":
        """Itself, once a short tensor and one that fills the buffer were added up right."""
        for dtype, rows in self._rows.items():
            for count in (UNIT_BYTES, rows.numel()):
                # small whole numbers, which every type has
                places = torch.arange(count, device=rows.device) % 8
                found = self.add((places + rank).to(dtype))
                if not torch.equal(found, (places * world + world * (world - 1) // 2).to(dtype)):
                    raise RuntimeError(f"a sum of {count} numbers of {dtype} came out wrong")
        return self


def agree(memory: Memory, rank: int, world: int, least: Callable[[int], int]) -> SymmetricSums | None:
    """Sums through `memory` if all ranks can have them; None on all if any cannot, which is then told.

    `least` gives the smallest of the ranks' values.
    """

    def on_all(step: Callable[[], T]) -> T | None:
        found, why = None, ""
        try:
            found = step()
        except _FAILURES as error:
            why = str(error) or type(error).__name__
        if least(int(not why)):
            return found
        log.warning("no sums through symmetric memory: %s", why or "another rank could not have them")
        return None

    def meet(buffer: Tensor) -> SymmetricSums:
        memory.meet(buffer)
        return SymmetricSums(memory, buffer)

    buffer = on_all(lambda: memory.allocate(MOST_BYTES))
    sums = None if buffer is None else on_all(lambda: meet(buffer))
    return None if sums is None else on_all(lambda: sums.try_out(rank, world))

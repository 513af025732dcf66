"""TorchStorage: the cache tensors behind page and slot numbers, and their way to host memory and back.

A page and a state are the rows of all layers, one after another. Copies run beside the model (`copies.py`).
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from k3agent.backend.cache.interfaces import Buffer
from k3agent.backend.engine.copies import Copies, copies_for
from k3agent.backend.errors import BackendError
from k3agent.backend.model.inputs import CacheTensors

log = logging.getLogger(__name__)

_POISON = float("nan")
_AT_ONCE = 128
"""Pages gathered at once: they take their size once more on the device."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one table: `row.view(dtype)` of bytes `begin` to `end` of a page or a state."""

    layer: int
    table: Tensor
    begin: int
    end: int

    def bytes_of(self, row: int) -> Tensor:
        return self.table[row].reshape(-1).view(torch.uint8)


class TorchStorage:
    """Copies, clears, saves and restores whole pages and states; what `HybridCache` needs of the tensors."""

    def __init__(self, tensors: CacheTensors, copies: Copies | None = None) -> None:
        self.tensors = tensors
        self._pages = _parts(tensors.latents)
        self._states = _parts(tensors.kda_states, tensors.conv_tails)
        first = next((part.table for part in (*self._pages, *self._states)), torch.empty(0))
        self._device = first.device
        self._copies = copies or copies_for(first.device)
        tensors.arrivals = self._copies
        self.page_bytes = self._pages[-1].end if self._pages else 0
        self.state_bytes = self._states[-1].end if self._states else 0
        # a state arrives in the order in which layers ask for it
        self._by_layer = sorted(self._states, key=lambda part: part.layer)

    def copy_page(self, src_page: int, dst_page: int) -> None:
        self._copies.await_all()
        for part in self._pages:
            part.table[dst_page].copy_(part.table[src_page])

    def copy_state(self, src_slot: int, dst_slot: int) -> None:
        self._copies.await_all()
        self.tensors.copy_state(src_slot, dst_slot)

    def zero_state(self, slot: int) -> None:
        self._copies.await_all()
        self.tensors.zero_state(slot)

    def poison_state(self, slot: int) -> None:
        self._copies.await_all()
        for part in self._states:
            part.table[slot].fill_(_POISON)

    def settled(self) -> Callable[[], None]:
        """What waits until everything that was read so far is there; any thread may call it."""
        return self._copies.settled()

    # --- to the host

    def read_page(self, page: int) -> Buffer:
        return self.read_pages([page])[0]

    def read_pages(self, pages: Sequence[int]) -> list[Buffer]:
        """Copies that lie side by side in host memory, gathered on the device first."""
        copies: list[Buffer] = []
        for begin in range(0, len(pages), _AT_ONCE):
            copies += self._read_some(pages[begin : begin + _AT_ONCE])
        return copies

    def _read_some(self, pages: Sequence[int]) -> list[Buffer]:
        num_pages, size = len(pages), self.page_bytes
        if not size:
            return [bytearray() for _ in pages]
        self._copies.await_all()
        index = torch.tensor(pages, device=self._device)
        rows = [part.table[index].reshape(num_pages, -1).view(torch.uint8) for part in self._pages]
        view = memoryview(self._download(torch.cat(rows, dim=1).flatten()))
        return [view[page * size : (page + 1) * size] for page in range(num_pages)]

    def read_state(self, slot: int) -> Buffer:
        if not self.state_bytes:
            return bytearray()
        self._copies.await_all()
        return self._download(torch.cat([part.bytes_of(slot) for part in self._states]))

    def _download(self, gathered: Tensor) -> bytearray | memoryview:
        """Its bytes in host memory, once the copies have settled."""
        data = host_buffer(gathered.nbytes, self._device)
        target = torch.frombuffer(data, dtype=torch.uint8)
        self._copies.begin()
        self._copies.download(lambda: target.copy_(gathered, non_blocking=True))
        return data

    # --- to the device

    def write_pages(self, pages: Sequence[int], data: Sequence[Buffer]) -> None:
        for content in data:
            _check_size(content, self.page_bytes)
        if not self.page_bytes or not pages:
            return
        sources = [_bytes_of(content) for content in data]
        staged = torch.empty((len(pages), self.page_bytes), dtype=torch.uint8, device=self._device)
        index = torch.tensor(pages, device=self._device)
        self._copies.begin()
        self._copies.upload(None, lambda: _fill(staged, sources))
        for part in self._pages:
            self._copies.upload(part.layer, lambda part=part: _scatter(part, index, staged))

    def write_state(self, slot: int, data: Buffer) -> None:
        _check_size(data, self.state_bytes)
        if not self.state_bytes:
            return
        self._copies.begin()
        source = _bytes_of(data)
        for part in self._by_layer:
            target = part.bytes_of(slot)
            content = source[part.begin : part.end]
            self._copies.upload(part.layer, lambda to=target, new=content: to.copy_(new, non_blocking=True))


def _parts(*tables: dict[int, Tensor]) -> list[_Part]:
    pairs = [pair for table in tables for pair in table.items()]
    sizes = [tensor[0].nbytes for _, tensor in pairs]
    begins = accumulate(sizes, initial=0)
    return [
        _Part(layer, tensor, begin, begin + size)
        for (layer, tensor), size, begin in zip(pairs, sizes, begins, strict=False)
    ]


def _fill(staged: Tensor, sources: list[Tensor]) -> None:
    for row, source in zip(staged, sources, strict=True):
        row.copy_(source, non_blocking=True)


def _scatter(part: _Part, index: Tensor, staged: Tensor) -> None:
    table = part.table
    values = staged[:, part.begin : part.end].contiguous().view(table.dtype)
    table[index] = values.view(len(index), *table.shape[1:])


def _check_size(data: Buffer, num_bytes: int) -> None:
    if len(data) != num_bytes:
        raise BackendError(f"a cache record has {len(data)} bytes where the model wants {num_bytes}.")


def _bytes_of(data: Buffer) -> Tensor:
    """The buffer as a tensor, over the same memory where it may be written."""
    return torch.frombuffer(bytearray(data) if memoryview(data).readonly else data, dtype=torch.uint8)


def host_buffer(num_bytes: int, device: torch.device) -> bytearray | memoryview:
    """Host memory for copies from `device`: pinned for a GPU, which then needs no detour, if any is left.

    Torch keeps what is freed for the next buffer of that size, so pinning is paid for once.
    """
    if device.type == "cuda" and num_bytes:
        try:
            return buffer_over(torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True))
        except RuntimeError as error:
            log.warning("no pinned memory for %d bytes, copies will be slower: %s", num_bytes, error)
    return bytearray(num_bytes)


def buffer_over(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in host memory, which lives as long as the view does."""
    block = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    block.tensor = tensor  # pyright: ignore[reportAttributeAccessIssue]  # keeps the memory alive
    return memoryview(block).cast("B")

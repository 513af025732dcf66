"""TorchStorage: the cache tensors behind page and slot numbers, and their way to host memory and back."""

import ctypes
import logging
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from k3agent.backend.cache.interfaces import Buffer
from k3agent.backend.errors import BackendError
from k3agent.backend.model.inputs import CacheTensors

log = logging.getLogger(__name__)

_POISON = float("nan")
_AT_ONCE = 128
"""Pages gathered at once: they take their size once more on the device."""


class TorchStorage:
    """Copies, clears, saves and restores whole pages and states; what `HybridCache` needs of the tensors."""

    def __init__(self, tensors: CacheTensors) -> None:
        self.tensors = tensors
        self._latents = list(tensors.latents.values())
        self._device = self._latents[0].device if self._latents else torch.device("cpu")
        self._states = [*tensors.kda_states.values(), *tensors.conv_tails.values()]
        self.page_bytes = _row_bytes(self._latents)
        self.state_bytes = _row_bytes(self._states)

    def copy_page(self, src_page: int, dst_page: int) -> None:
        for latents in self._latents:
            latents[dst_page].copy_(latents[src_page])

    def copy_state(self, src_slot: int, dst_slot: int) -> None:
        self.tensors.copy_state(src_slot, dst_slot)

    def zero_state(self, slot: int) -> None:
        self.tensors.zero_state(slot)

    def poison_state(self, slot: int) -> None:
        for tensor in self._states:
            tensor[slot].fill_(_POISON)

    def read_page(self, page: int) -> Buffer:
        return _read(self._latents, page, self.page_bytes)

    def read_pages(self, pages: Sequence[int]) -> list[Buffer]:
        """Copies that lie side by side in host memory, gathered on the device first."""
        copies: list[Buffer] = []
        for begin in range(0, len(pages), _AT_ONCE):
            some = pages[begin : begin + _AT_ONCE]
            copies += self._read_some(torch.tensor(some, device=self._device))
        return copies

    def _read_some(self, index: Tensor) -> list[Buffer]:
        num_pages = len(index)
        rows = [latents[index].reshape(num_pages, -1).view(torch.uint8) for latents in self._latents]
        data = host_buffer(num_pages * self.page_bytes, self._device)
        if data:
            flat = torch.frombuffer(data, dtype=torch.uint8)
            flat.view(num_pages, self.page_bytes).copy_(torch.cat(rows, dim=1))
        view = memoryview(data)
        return [view[page * self.page_bytes : (page + 1) * self.page_bytes] for page in range(num_pages)]

    def write_pages(self, pages: Sequence[int], data: Sequence[Buffer]) -> None:
        for content in data:
            _check_size(content, self.page_bytes)
        if not self.page_bytes or not pages:
            return
        flat = torch.frombuffer(bytearray(b"".join(data)), dtype=torch.uint8)
        rows = flat.view(len(pages), self.page_bytes).to(self._device)
        index = torch.tensor(pages, device=self._device)
        begin = 0
        for latents in self._latents:
            end = begin + latents[0].nbytes
            values = rows[:, begin:end].contiguous().view(latents.dtype)
            latents[index] = values.view(len(pages), *latents.shape[1:])
            begin = end

    def read_state(self, slot: int) -> Buffer:
        return _read(self._states, slot, self.state_bytes)

    def write_state(self, slot: int, data: Buffer) -> None:
        _write(self._states, slot, data, self.state_bytes)


def _row_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)


def _read(tensors: list[Tensor], row: int, num_bytes: int) -> Buffer:
    """The row of each tensor, one after another, in host memory: pinned, if they lie on a GPU.

    The copy waits for the work queued before it on the device, so it never reads what is not written yet.
    """
    data = host_buffer(num_bytes, tensors[0].device) if tensors else bytearray()
    begin = 0
    for tensor in tensors:
        begin += _host_view(data, begin, tensor[row]).copy_(tensor[row]).nbytes
    return data


def _write(tensors: list[Tensor], row: int, data: Buffer, num_bytes: int) -> None:
    _check_size(data, num_bytes)
    writable = bytearray(data) if memoryview(data).readonly else data
    begin = 0
    for tensor in tensors:
        source = _host_view(writable, begin, tensor[row])
        tensor[row].copy_(source)
        begin += source.nbytes


def _check_size(data: Buffer, num_bytes: int) -> None:
    if len(data) != num_bytes:
        raise BackendError(f"a cache record has {len(data)} bytes where the model wants {num_bytes}.")


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


def _host_view(data: Buffer, begin: int, like: Tensor) -> Tensor:
    """A tensor of the shape of `like` over the bytes from `begin` on."""
    if like.numel() == 0:
        return torch.empty_like(like, device="cpu")
    flat = torch.frombuffer(data, dtype=like.dtype, count=like.numel(), offset=begin)
    return flat.view(like.shape)

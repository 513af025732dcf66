"""TorchStorage: the cache tensors behind page and slot numbers, and their way to host memory and back."""

from collections.abc import Iterable

import torch
from torch import Tensor

from k3agent.backend.cache.interfaces import Buffer
from k3agent.backend.errors import BackendError
from k3agent.backend.model.inputs import CacheTensors

_POISON = float("nan")


class TorchStorage:
    """Copies, clears, saves and restores whole pages and states; what `HybridCache` needs of the tensors."""

    def __init__(self, tensors: CacheTensors) -> None:
        self.tensors = tensors
        self._latents = list(tensors.latents.values())
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

    def write_page(self, page: int, data: Buffer) -> None:
        _write(self._latents, page, data, self.page_bytes)

    def read_state(self, slot: int) -> Buffer:
        return _read(self._states, slot, self.state_bytes)

    def write_state(self, slot: int, data: Buffer) -> None:
        _write(self._states, slot, data, self.state_bytes)


def _row_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)


def _read(tensors: Iterable[Tensor], row: int, num_bytes: int) -> bytearray:
    """The row of each tensor, one after another, in host memory.

    The copy waits for the work queued before it on the device, so it never reads what is not written yet.
    """
    data = bytearray(num_bytes)
    begin = 0
    for tensor in tensors:
        begin += _host_view(data, begin, tensor[row]).copy_(tensor[row]).nbytes
    return data


def _write(tensors: Iterable[Tensor], row: int, data: Buffer, num_bytes: int) -> None:
    if len(data) != num_bytes:
        raise BackendError(f"a cache record has {len(data)} bytes where the model wants {num_bytes}.")
    writable = data if isinstance(data, bytearray) else bytearray(data)
    begin = 0
    for tensor in tensors:
        source = _host_view(writable, begin, tensor[row])
        tensor[row].copy_(source)
        begin += source.nbytes


def _host_view(data: bytearray, begin: int, like: Tensor) -> Tensor:
    """A tensor of the shape of `like` over the bytes from `begin` on."""
    if like.numel() == 0:
        return torch.empty_like(like, device="cpu")
    flat = torch.frombuffer(data, dtype=like.dtype, count=like.numel(), offset=begin)
    return flat.view(like.shape)

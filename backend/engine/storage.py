"""The cache tensors behind the page and slot numbers of the cache."""

from k3agent.backend.model.inputs import CacheTensors


class TorchStorage:
    """Copies and clears whole pages and states; what `HybridCache` needs of the tensors."""

    def __init__(self, tensors: CacheTensors) -> None:
        self.tensors = tensors

    def copy_page(self, src_page: int, dst_page: int) -> None:
        for latents in self.tensors.latents.values():
            latents[dst_page].copy_(latents[src_page])

    def copy_state(self, src_slot: int, dst_slot: int) -> None:
        self.tensors.copy_state(src_slot, dst_slot)

    def zero_state(self, slot: int) -> None:
        self.tensors.zero_state(slot)

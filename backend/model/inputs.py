"""One step of the model as tensors, and the cache tensors that a step reads and writes.

The engine decides what is in a step and which pages and slots it uses; the model only sees these two objects.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE, ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.model.tables import Tables

__all__ = ["PAGE_SIZE", "CacheTensors", "ForwardBatch", "allocate_cache", "wide_dtype"]


@dataclass
class ForwardBatch:
    """One step: B sequences packed into T tokens, in the order of their positions."""

    token_ids: Tensor
    """[T]"""
    cu_seqlens: list[int]
    """B+1 offsets into the T tokens; sequence b owns rows cu_seqlens[b] to cu_seqlens[b+1]."""
    context_lens: list[int]
    """B counts of tokens that the cache holds of each sequence before this step."""
    page_table: Tensor
    """[B, P], page of each run of PAGE_SIZE positions; entries past the end of a sequence are ignored."""
    state_slots: list[int]
    """B slots of KDA state, updated in place."""
    has_state: list[bool]
    """False: start from zero, whatever the slot holds."""
    logits_at: Tensor | None = None
    """[N] rows of the T tokens whose logits are wanted; None: the last token of each sequence."""
    trail_slots: list[list[int]] | None = None
    """For each sequence slots that receive its state before its last token, the one before that, and so on,
    the latest at the end; fewer than it has tokens. None: for no sequence."""
    image_rows: Tensor | None = None
    """[M] rows of the T tokens that are placeholders of images."""
    image_features: Tensor | None = None
    """[M, D] what stands there instead of their embeddings (K3ForCausalLM.encode_images)."""
    tables: Tables | None = None
    """The same for kernels that take the step whole; with padding it is what a graph reads. None: made when
    it is asked for (`Step.tables`)."""
    scratch_slot: int | None = None
    """A slot that several padding sequences may share, since nobody reads it."""

    def check(self) -> None:
        """Raise BackendError when the parts do not fit together. Costs no tensor work."""
        num_sequences = len(self.cu_seqlens) - 1
        lengths = {
            "context_lens": len(self.context_lens),
            "page_table": self.page_table.shape[0],
            "state_slots": len(self.state_slots),
            "has_state": len(self.has_state),
        }
        for name, length in lengths.items():
            if length != num_sequences:
                raise BackendError(f"{name} is for {length} sequences, cu_seqlens for {num_sequences}.")
        if self.cu_seqlens[0] != 0 or self.cu_seqlens[-1] != self.token_ids.shape[0]:
            raise BackendError(f"cu_seqlens {self.cu_seqlens} spans not {self.token_ids.shape[0]} tokens.")
        for b in range(num_sequences):
            num_tokens = self.cu_seqlens[b + 1] - self.cu_seqlens[b]
            end = self.context_lens[b] + num_tokens
            if num_tokens < 1:
                raise BackendError(f"sequence {b} of the step has no token.")
            if end > self.page_table.shape[1] * PAGE_SIZE:
                raise BackendError(f"sequence {b} ends at {end}, past its {self.page_table.shape[1]} pages.")
        trails = self.trail_slots or []
        if trails and len(trails) != num_sequences:
            raise BackendError(f"trail_slots is for {len(trails)} sequences, cu_seqlens for {num_sequences}.")
        for b, trail in enumerate(trails):
            if len(trail) >= self.cu_seqlens[b + 1] - self.cu_seqlens[b]:
                raise BackendError(f"sequence {b} has no {len(trail)} states before its last token.")
        rows, features = self.image_rows, self.image_features
        if (rows is None) != (features is None) or (
            rows is not None and features is not None and len(rows) != len(features)
        ):
            raise BackendError("image_rows and image_features do not belong together.")
        slots = [*self.state_slots, *(slot for trail in trails for slot in trail)]
        slots = [slot for slot in slots if slot != self.scratch_slot]
        if len(set(slots)) != len(slots):
            raise BackendError(f"state_slots and trail_slots {slots} give one slot to two states.")


class Arrivals(Protocol):
    """Parts of the cache that are still on their way to the device."""

    def await_layer(self, layer: int) -> None:
        """What the device is given to do from now on comes after this layer's part."""
        ...

    def await_all(self) -> None: ...


@dataclass
class CacheTensors:
    """What the layers remember between steps, by layer index (from 0)."""

    latents: dict[int, Tensor] = field(default_factory=dict)
    """MLA layers: [num_pages, PAGE_SIZE, kv_lora_rank + qk_rope_head_dim], activation dtype."""
    kda_states: dict[int, Tensor] = field(default_factory=dict)
    """KDA layers: [num_slots, H, K, V], fp32 (rows are key channels)."""
    conv_tails: dict[int, Tensor] = field(default_factory=dict)
    """KDA layers: [num_slots, kernel-1, 3*H*K], activation dtype; what the convolution of q, k and v last
    read, oldest first."""
    arrivals: Arrivals | None = None
    """None: everything is there."""

    def await_layer(self, layer: int) -> None:
        """Call before a layer's part is used."""
        if self.arrivals is not None:
            self.arrivals.await_layer(layer)

    def await_all(self) -> None:
        """Call before the parts of all layers are used."""
        if self.arrivals is not None:
            self.arrivals.await_all()

    def copy_state(self, src_slot: int, dst_slot: int) -> None:
        """Make `dst_slot` equal to `src_slot` in each KDA layer."""
        for table in (self.kda_states, self.conv_tails):
            for tensor in table.values():
                tensor[dst_slot].copy_(tensor[src_slot])

    def zero_state(self, slot: int) -> None:
        """Make `slot` the state of a sequence without tokens."""
        for table in (self.kda_states, self.conv_tails):
            for tensor in table.values():
                tensor[slot].zero_()


def allocate_cache(
    config: ModelConfig,
    num_pages: int,
    num_slots: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> CacheTensors:
    """Zeroed cache tensors; `dtype` is that of the activations."""
    linear = config.linear_attn_config
    cache = CacheTensors()
    for i in range(config.num_hidden_layers):
        if config.is_kda(i):
            state = (num_slots, linear.num_heads, linear.head_dim, linear.head_dim)
            tail = (num_slots, linear.short_conv_kernel_size - 1, 3 * linear.width)
            cache.kda_states[i] = torch.zeros(state, dtype=wide_dtype(dtype), device=device)
            cache.conv_tails[i] = torch.zeros(tail, dtype=dtype, device=device)
        else:
            page = (num_pages, PAGE_SIZE, config.latent_width)
            cache.latents[i] = torch.zeros(page, dtype=dtype, device=device)
    return cache

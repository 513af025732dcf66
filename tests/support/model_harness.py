"""Runs a model over token ids in any pieces, with pages and slots chosen by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.model.inputs import CacheTensors, ForwardBatch, allocate_cache
from k3agent.backend.model.k3 import K3ForCausalLM

KIMI_LINEAR = {
    "attn_res_block_size": None,
    "q_lora_rank": None,
    "mla_use_output_gate": False,
    "hidden_act": "silu",
    "routed_expert_hidden_size": None,
    "latent_moe_use_norm": False,
    "routed_scaling_factor": 2.446,
    "linear_attn_config": {"use_full_rank_gate": False, "gate_lower_bound": None},
}


@dataclass
class Place:
    """Where one test sequence lives in the cache, and how far it is."""

    pages: list[int]
    slot: int
    length: int = 0


@dataclass
class Harness:
    """A model with a small cache; sequences are added and advanced by hand."""

    model: K3ForCausalLM
    num_pages: int = 12
    num_slots: int = 4
    cache: CacheTensors = field(init=False)

    def __post_init__(self) -> None:
        self.cache = allocate_cache(self.model.config, self.num_pages, self.num_slots, self.model.dtype)

    def step(self, work: Sequence[tuple[Place, Tensor]], taps: list[Tensor] | None = None) -> list[Tensor]:
        """Run one step over (sequence, next ids) pairs; returns the logits of all their tokens."""
        lengths = [len(ids) for _, ids in work]
        offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        table = torch.zeros((len(work), max(len(s.pages) for s, _ in work)), dtype=torch.long)
        for row, (sequence, _) in zip(table, work, strict=True):
            row[: len(sequence.pages)] = torch.tensor(sequence.pages)
        batch = ForwardBatch(
            token_ids=torch.cat([ids for _, ids in work]),
            cu_seqlens=offsets,
            context_lens=[s.length for s, _ in work],
            page_table=table,
            state_slots=[s.slot for s, _ in work],
            has_state=[s.length > 0 for s, _ in work],
            logits_at=torch.arange(offsets[-1]),
        )
        logits = self.model(batch, self.cache, taps)
        for (sequence, _), length in zip(work, lengths, strict=True):
            sequence.length += length
        return list(logits.split(lengths))

    def run(self, ids: Tensor, pieces: Sequence[int], sequence: Place | None = None) -> Tensor:
        """Logits of one sequence fed in pieces, [T, vocab]."""
        assert sum(pieces) == len(ids)
        sequence = sequence or Place(list(range(-(-len(ids) // PAGE_SIZE))), 0)
        return torch.cat([self.step([(sequence, part)])[0] for part in ids.split(list(pieces))])

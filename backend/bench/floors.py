"""The least time that a model's passes can take on a GPU: bytes over bandwidth or operations over rate."""

from dataclasses import dataclass, field

from k3agent.backend.config import ModelConfig
from k3agent.backend.kernels.bench import Ceiling
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.moe import Experts

_LATENT_BYTES = 2
_STATE_BYTES = 4


@dataclass(frozen=True)
class Floors:
    """Of one model on one GPU. Weights that a pass needs are read once, whatever the batch."""

    config: ModelConfig
    ceiling: Ceiling
    dense_bytes: int
    """Of all weights but routed experts and the embedding table."""
    dense_flops: float
    """Of one token, in products with these weights."""
    expert_bytes: int
    """Of one routed expert of one layer."""
    num_moe_layers: int
    num_experts: int
    """That the model, or this rank of it, holds in a layer."""
    targets: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, model: K3ForCausalLM, ceiling: Ceiling, targets: dict[str, float]) -> "Floors":
        embedding = model.model.embed_tokens.weight
        dense = [p for p in model.parameters() if p is not embedding]
        experts = [module for module in model.modules() if isinstance(module, Experts)]
        return cls(
            config=model.config,
            ceiling=ceiling,
            dense_bytes=sum(p.nbytes for p in dense),
            dense_flops=2.0 * sum(p.numel() for p in dense if p.dim() > 1),
            expert_bytes=experts[0].stacks.bytes_each if experts else 0,
            num_moe_layers=len(experts),
            num_experts=experts[0].stacks.count if experts else 0,
            targets=targets,
        )

    def active_experts(self, num_tokens: int) -> float:
        """Expected number of different experts that some tokens choose in one layer, of those held here."""
        config = self.config
        missed = (1 - config.num_experts_per_token / max(config.num_experts or 1, 1)) ** num_tokens
        return self.num_experts * (1 - missed)

    def decode_s(self, users: int, context: int) -> float:
        """One step of so many users, each with so many tokens in the cache."""
        config = self.config
        num_kda = sum(config.is_kda(i) for i in range(config.num_hidden_layers))
        linear = config.linear_attn_config
        states = users * num_kda * linear.width * linear.head_dim * _STATE_BYTES * 2
        latents = users * context * self._latent_bytes()
        experts = self.num_moe_layers * self.active_experts(users) * self.expert_bytes
        return (self.dense_bytes + experts + states + latents) / self.ceiling.bytes_per_s

    def prefill_s(self, num_tokens: int, context: int, chunk: int) -> float:
        """A prompt behind a cached context, in passes of `chunk` tokens: of each the longer of bytes and
        operations."""
        total = 0.0
        for begin in range(0, num_tokens, chunk):
            count = min(chunk, num_tokens - begin)
            before = context + begin
            experts = self.num_moe_layers * self.active_experts(count) * self.expert_bytes
            num_bytes = self.dense_bytes + experts + (before + count) * self._latent_bytes()
            total += max(
                num_bytes / self.ceiling.bytes_per_s,
                self._flops(count, before) / self.ceiling.flops_per_s,
            )
        return total

    def _flops(self, count: int, before: int) -> float:
        config = self.config
        share = self.num_experts / max(config.num_experts or 1, 1)
        chosen = self.num_moe_layers * config.num_experts_per_token * share
        experts = chosen * 6.0 * config.expert_width * config.moe_intermediate_size
        num_mla = sum(not config.is_kda(i) for i in range(config.num_hidden_layers))
        width = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
        attended = count * before + count * count / 2
        return (
            count * (self.dense_flops + experts)
            + 2.0 * attended * num_mla * config.num_attention_heads * width
        )

    def _latent_bytes(self) -> int:
        """Of one token in all MLA layers."""
        config = self.config
        num_mla = sum(not config.is_kda(i) for i in range(config.num_hidden_layers))
        return num_mla * config.latent_width * _LATENT_BYTES

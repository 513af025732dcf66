"""Memory arithmetic: bytes of weights, caches and activations of a model, and what a set of GPUs holds.

All sizes are bytes, exact for weights and caches; activations are what the largest step needs, by formula.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from k3agent.backend.config import PAGE_SIZE, ModelConfig
from k3agent.backend.shapes import TensorSpec

CACHE_BYTES = {"bf16": 2, "fp8": 1}
STATE_BYTES = {"fp32": 4, "bf16": 2}
_ACTIVATION_BYTES = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU type. `memory_gb` counts 10^9 bytes as the vendor does; `link` is how many of them are one fast
    group."""

    name: str
    memory_gb: int
    has_fp8_latents: bool
    """Can the attention kernels of the fast engine read an FP8 latent cache on it? (Not on Hopper.)"""
    link: int = 8

    @property
    def memory_bytes(self) -> int:
        return self.memory_gb * 10**9


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100", 80, False),
        Gpu("H100", 80, False),
        Gpu("H200", 141, False),
        Gpu("B200", 180, True),
        Gpu("GB200", 186, True, link=72),
        Gpu("B300", 288, True),
        Gpu("GB300", 288, True, link=72),
        Gpu("MI300X", 192, True),
        Gpu("MI325X", 256, True),
        Gpu("MI355X", 288, True),
        Gpu("RTX-PRO-6000", 96, True, link=1),
        Gpu("L40S", 48, True, link=1),
        Gpu("RTX-5090", 32, True, link=1),
        Gpu("RTX-4090", 24, True, link=1),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be served: tokens of one sequence, how they are cached, tokens of one prefill chunk."""

    context: int
    cache_dtype: str = "bf16"
    state_dtype: str = "fp32"
    chunk: int = 8192
    memory_share: float = 0.95
    """Part of a GPU's memory that may be used; the rest is for the driver, kernels and fragmentation."""
    keeps_vision: bool = True


class Model:
    """Sizes of one model under one configuration."""

    def __init__(self, name: str, config: ModelConfig, tensors: Sequence[TensorSpec]) -> None:
        self.name, self.config, self.tensors = name, config, list(tensors)
        self.num_kda = sum(config.is_kda(i) for i in range(config.num_hidden_layers))
        self.num_mla = config.num_hidden_layers - self.num_kda

    @property
    def weight_bytes(self) -> int:
        return sum(t.num_bytes for t in self.tensors)

    @property
    def expert_bytes(self) -> int:
        """Of the routed experts alone."""
        return sum(t.num_bytes for t in self.tensors if t.part == "experts")

    def latent_bytes(self, num_tokens: int, dtype: str) -> int:
        """Cache rows of all MLA layers. Every head reads all of them: tensor parallelism divides nothing."""
        return num_tokens * self.num_mla * self.config.latent_width * CACHE_BYTES[dtype]

    def state_bytes(self, dtype: str, ranks: int = 1) -> int:
        """Recurrent states of one sequence in all KDA layers, of one of `ranks`."""
        linear = self.config.linear_attn_config
        values = self.num_kda * linear.num_heads * linear.head_dim**2
        return values * STATE_BYTES[dtype] // ranks

    def tail_bytes(self, ranks: int = 1) -> int:
        """Inputs that the convolutions of one sequence remember, of one of `ranks`."""
        linear = self.config.linear_attn_config
        values = self.num_kda * 3 * (linear.short_conv_kernel_size - 1) * linear.width
        return values * _ACTIVATION_BYTES // ranks

    def attn_res_bytes(self, num_tokens: int) -> int:
        """Finished blocks that a forward over `num_tokens` keeps; none without attention residuals."""
        block = self.config.attn_res_block_size
        if block is None:
            return 0
        num_blocks = math.ceil(self.config.num_hidden_layers / block)
        return num_blocks * num_tokens * self.config.hidden_size * _ACTIVATION_BYTES

    def workspace_bytes(self, num_tokens: int, ranks: int = 1) -> int:
        """Largest set of intermediates of one sublayer over `num_tokens`, beside the residual stream."""
        config, linear = self.config, self.config.linear_attn_config
        heads_width = config.num_attention_heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
        kda = 6 * linear.width / ranks
        mla = (2 * heads_width + 2 * config.num_attention_heads * config.v_head_dim) / ranks
        dense = 3 * config.intermediate_size / ranks
        moe = 0.0
        if config.num_experts is not None:
            routed = config.num_experts_per_token * (config.expert_width + 3 * config.moe_intermediate_size)
            moe = routed / ranks + 3 * config.shared_width / ranks + 2 * config.expert_width
        widest = max(kda, mla, dense, moe) + 3 * config.hidden_size
        logits = config.vocab_size * 4
        return int(num_tokens * widest * _ACTIVATION_BYTES) + logits

    def rank_weight_bytes(self, layout: "Layout", keeps_vision: bool = True) -> int:
        """Weights of the fullest rank. Routers, latent projections and low-rank inputs are on every rank."""
        total = 0
        for tensor in self.tensors:
            if tensor.part == "vision" and not keeps_vision:
                continue
            total += -(-tensor.num_bytes // layout.ranks_of(tensor))
        return total


@dataclass(frozen=True, slots=True)
class Layout:
    """How `num_ranks` share a model: matrices are cut among `tensor_ranks`, in `groups` copies that serve
    different sequences, and the experts are dealt out to all. With one tensor rank each rank has the whole
    attention."""

    num_ranks: int
    tensor_ranks: int

    @property
    def groups(self) -> int:
        """Sets of ranks that serve different sequences."""
        return self.num_ranks // self.tensor_ranks

    @property
    def name(self) -> str:
        if self.num_ranks == 1:
            return "1 GPU"
        parts = [f"TP{self.tensor_ranks}"] if self.tensor_ranks > 1 else []
        if self.groups > 1:
            parts.append(f"DP{self.groups}")
            parts.append(f"EP{self.num_ranks}")
        return " x ".join(parts)

    def ranks_of(self, tensor: TensorSpec) -> int:
        """Ranks that share the tensor."""
        if tensor.split == "expert":
            return self.num_ranks
        return 1 if tensor.split == "none" else self.tensor_ranks


def layouts(config: ModelConfig, num_ranks: int, link: int) -> list[Layout]:
    """All layouts that the sizes of the model allow; tensor parallelism stays within a fast group."""
    found = []
    experts = config.num_experts
    for tensor_ranks in (n for n in range(1, num_ranks + 1) if num_ranks % n == 0):
        if tensor_ranks > 1 and (tensor_ranks > link or not _divides_heads(config, tensor_ranks)):
            continue
        if tensor_ranks < num_ranks and (experts is None or experts % num_ranks):
            continue
        found.append(Layout(num_ranks, tensor_ranks))
    return found


def _divides_heads(config: ModelConfig, ranks: int) -> bool:
    widths = [config.num_attention_heads, config.linear_attn_config.num_heads, config.vocab_size]
    widths.append(config.intermediate_size)
    return not any(width % ranks for width in widths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One layout on one set of GPUs, the bytes of its fullest rank, and what that leaves."""

    gpu: Gpu
    count: int
    layout: Layout
    workload: Workload
    weight_bytes: int
    latent_bytes: int
    """Of one sequence at the full context."""
    state_bytes: int
    """Of one sequence, with the tails of the convolutions."""
    activation_bytes: int
    reasons: list[str] = field(default_factory=list)
    """Why it does not fit, or what to know."""

    @property
    def usable_bytes(self) -> int:
        return int(self.gpu.memory_bytes * self.workload.memory_share)

    @property
    def free_bytes(self) -> int:
        """For caches; negative when weights and activations alone are too much."""
        return self.usable_bytes - self.weight_bytes - self.activation_bytes

    @property
    def num_sequences(self) -> int:
        """Sequences of the full context that all GPUs hold at once."""
        one = self.latent_bytes + self.state_bytes
        return max(0, self.free_bytes // one) * self.layout.groups

    @property
    def max_context(self) -> int:
        """Longest context of a single sequence in whole pages."""
        room = self.free_bytes - self.state_bytes
        per_token = self.latent_bytes / self.workload.context
        tokens = int(room / per_token) if per_token else self.workload.context
        return max(0, tokens // PAGE_SIZE * PAGE_SIZE)

    @property
    def fits(self) -> bool:
        return self.num_sequences > 0


def place(model: Model, gpu: Gpu, count: int, layout: Layout, workload: Workload) -> Placement:
    """Work out one layout."""
    ranks = layout.tensor_ranks
    state = model.state_bytes(workload.state_dtype, ranks) + model.tail_bytes(ranks)
    activations = model.attn_res_bytes(workload.chunk) + model.workspace_bytes(workload.chunk, ranks)
    reasons = []
    if workload.cache_dtype == "fp8" and not gpu.has_fp8_latents:
        reasons.append(f"no engine reads FP8 latents on {gpu.name}: plan with bf16 to get a command")
    placement = Placement(
        gpu=gpu,
        count=count,
        layout=layout,
        workload=workload,
        weight_bytes=model.rank_weight_bytes(layout, workload.keeps_vision),
        latent_bytes=model.latent_bytes(workload.context, workload.cache_dtype),
        state_bytes=state,
        activation_bytes=activations,
        reasons=reasons,
    )
    if placement.weight_bytes > placement.usable_bytes:
        reasons.append(
            f"weights of {_gb(placement.weight_bytes)} a GPU are over {_gb(placement.usable_bytes)}"
        )
    elif not placement.fits:
        one = placement.latent_bytes + placement.state_bytes
        reasons.append(
            f"{_gb(placement.free_bytes)} left for caches, one sequence needs {_gb(one)}:"
            f" at most {placement.max_context} tokens fit (--context {placement.max_context})"
        )
    return placement


def best_placement(model: Model, gpu: Gpu, count: int, workload: Workload) -> Placement | None:
    """The layout that holds most sequences, the simplest among equals; None when none divides evenly."""
    found = [place(model, gpu, count, one, workload) for one in layouts(model.config, count, gpu.link)]
    # what serves most; then what leaves most room; then fewer groups
    return max(found, key=lambda p: (p.num_sequences, p.free_bytes, -p.layout.groups), default=None)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"

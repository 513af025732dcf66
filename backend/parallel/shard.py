"""Which part of a model one rank holds: sizes of its layers, and the piece of each stored tensor.

Attention is divided by heads, MLPs by inner width, tables by vocabulary; experts by inner width or, expert
parallel, whole ones. Everything else is on every rank. Sums over ranks come back before anything nonlinear.
"""

from dataclasses import dataclass, field, replace

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.parallel.comm import Comm, SoloComm

_ROWS = frozenset(
    [
        "q_proj",
        "k_proj",
        "v_proj",
        "g_proj",
        "g_b_proj",
        "f_b_proj",
        "b_proj",
        "q_conv1d",
        "k_conv1d",
        "v_conv1d",
        "dt_bias",
        "A_log",
        "q_b_proj",
        "kv_b_proj",
        "gate_proj",
        "up_proj",
        "embed_tokens",
        "lm_head",
        "w1",
        "w3",
    ]
)
_COLUMNS = ("o_proj", "down_proj", "w2")


@dataclass(frozen=True)
class Shard:
    """Rank and number of ranks, with the collectives between them.

    `expert_parallel` deals out whole experts.
    """

    comm: Comm = field(default_factory=SoloComm)
    expert_parallel: bool = False

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def world(self) -> int:
        return self.comm.world

    def share(self, total: int, what: str) -> int:
        """An equal part of `total`; raises when it does not divide."""
        if total % self.world:
            raise BackendError(f"{what} {total} is not divisible by {self.world} ranks; use another number.")
        return total // self.world

    def local(self, config: ModelConfig) -> ModelConfig:
        """The configuration of this rank's layers: fewer heads, narrower MLPs. The vocabulary stays whole."""
        if self.world == 1:
            return config
        linear = config.linear_attn_config
        inner = config.moe_intermediate_size
        if config.num_experts is not None and not self.expert_parallel:
            inner = self.share(inner, "moe_intermediate_size")
        heads = self.share(linear.num_heads, "linear_attn_config.num_heads")
        return replace(
            config,
            num_attention_heads=self.share(config.num_attention_heads, "num_attention_heads"),
            linear_attn_config=replace(linear, num_heads=heads),
            intermediate_size=self.share(config.intermediate_size, "intermediate_size"),
            moe_intermediate_size=inner,
        )

    def experts(self, num_experts: int) -> range:
        """Numbers of the experts of this rank."""
        if not self.expert_parallel or self.world == 1:
            return range(num_experts)
        count = self.share(num_experts, "num_experts")
        return range(self.rank * count, (self.rank + 1) * count)

    def split_dim(self, name: str) -> int | None:
        """The dimension by which ranks divide the released tensor `name`; None: each has all of it."""
        if self.world == 1 or name.startswith(("vision_tower.", "mm_projector.")):
            return None
        parts = name.split(".")
        module = parts[-1] if parts[-1] in ("dt_bias", "A_log") else parts[-2]
        if "experts" in parts and self.expert_parallel:
            return None
        if module in _ROWS:
            return 0
        return 1 if module in _COLUMNS else None

    def piece(self, size: int) -> slice:
        """This rank's part of a dimension of `size`."""
        part = size // self.world
        return slice(self.rank * part, (self.rank + 1) * part)

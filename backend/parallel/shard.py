"""Which part of a model one rank holds: sizes of its layers, and the piece of each stored tensor.

Attention is divided by heads, MLPs by inner width, tables by vocabulary; experts by inner width or, expert
parallel, in groups of whole ones. Everything else is on every rank. Sums over ranks come back before anything
nonlinear.
"""

from dataclasses import dataclass, field, replace
from math import gcd

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


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor is cut into `ways` equal parts along dimension `dim`; this rank has part number `index`."""

    dim: int
    ways: int
    index: int

    def piece(self, size: int) -> slice:
        """This rank's part of a dimension of `size`."""
        part = size // self.ways
        return slice(self.index * part, (self.index + 1) * part)


@dataclass(frozen=True)
class Shard:
    """Rank and number of ranks, with the collectives between them.

    `expert_parallel` is the number of groups of ranks to which whole experts are dealt; it divides the number
    of ranks, and the ranks of one group cut its experts by width.
    """

    comm: Comm = field(default_factory=SoloComm)
    expert_parallel: int = 1

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def world(self) -> int:
        return self.comm.world

    @property
    def expert_ranks(self) -> int:
        """Ranks that cut one expert among them."""
        return self.world // self.expert_parallel

    def share(self, total: int, what: str, ways: int | None = None) -> int:
        """An equal part of `total`; raises when it does not divide. `ways` None: among all ranks."""
        ways = self.world if ways is None else ways
        if total % ways:
            raise BackendError(f"{what} {total} is not divisible by {ways} ranks; use another number.")
        return total // ways

    def local(self, config: ModelConfig) -> ModelConfig:
        """The configuration of this rank's layers: fewer heads, narrower MLPs. The vocabulary stays whole."""
        if self.world == 1:
            return config
        check_layout(config, self.world, self.expert_parallel)
        linear = config.linear_attn_config
        return replace(
            config,
            num_attention_heads=config.num_attention_heads // self.world,
            linear_attn_config=replace(linear, num_heads=linear.num_heads // self.world),
            intermediate_size=config.intermediate_size // self.world,
            moe_intermediate_size=config.moe_intermediate_size // self.expert_ranks,
        )

    def experts(self, num_experts: int) -> range:
        """Numbers of the experts of this rank."""
        count = self.share(num_experts, "num_experts", self.expert_parallel)
        group = self.rank // self.expert_ranks
        return range(group * count, (group + 1) * count)

    def split(self, name: str) -> Split | None:
        """How ranks divide the released tensor `name`; None: each has all of it, or of the experts all of its
        own."""
        if self.world == 1 or name.startswith(("vision_tower.", "mm_projector.")):
            return None
        parts = name.split(".")
        module = parts[-1] if parts[-1] in ("dt_bias", "A_log") else parts[-2]
        if module not in _ROWS and module not in _COLUMNS:
            return None
        ways, index = self.world, self.rank
        if "experts" in parts:
            ways, index = self.expert_ranks, self.rank % self.expert_ranks
        return Split(0 if module in _ROWS else 1, ways, index) if ways > 1 else None


def check_layout(config: ModelConfig, world: int, expert_parallel: int) -> None:
    """Raise BackendError, with the numbers and what to use instead, when the model cannot be divided so."""
    if world % expert_parallel:
        raise BackendError(
            f"expert_parallel {expert_parallel} does not divide tensor_parallel {world};"
            f" use {_some(_divisors(world))}"
        )
    sizes = {
        "num_attention_heads": config.num_attention_heads,
        "linear_attn_config.num_heads": config.linear_attn_config.num_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
    }
    for name, size in sizes.items():
        if size % world:
            fitting = [n for n in _divisors(gcd(*sizes.values())) if n <= world]
            raise BackendError(
                f"tensor_parallel {world} does not divide {name} {size} of this model; use {_some(fitting)}"
            )
    if config.num_experts is None:
        if expert_parallel > 1:
            raise BackendError(f"expert_parallel {expert_parallel}: this model has no experts; leave it out")
        return
    if config.num_experts % expert_parallel:
        fitting = [n for n in _divisors(world) if config.num_experts % n == 0]
        raise BackendError(
            f"expert_parallel {expert_parallel} does not divide num_experts {config.num_experts} of this"
            f" model; use {_some(fitting)}"
        )
    width, ways = config.moe_intermediate_size, world // expert_parallel
    if width % ways or config.shared_width % world:
        raise BackendError(
            f"tensor_parallel {world} with expert_parallel {expert_parallel} cuts each expert {ways} times"
            f" and the shared ones {world} times: that does not divide moe_intermediate_size {width} (shared"
            f" {config.shared_width}); use fewer ranks, or more of expert_parallel"
        )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _some(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"

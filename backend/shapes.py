"""Every tensor of a released checkpoint by name, shape, dtype and place, computed from the configuration.

Needs no torch and no file: planning and the loader's checks start here. The names are those of the release.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from k3agent.backend.config import ModelConfig, VisionConfig

Part = Literal["experts", "attention", "dense", "shared", "router", "latent", "norms", "vocabulary", "vision"]
Split = Literal["rows", "columns", "expert", "none"]
"""How ranks share a tensor: by rows, by columns, by whole experts, or each has all of it."""

DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "U8": 1}
_GROUP = 32


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor; with `count` above 1 one for each expert, the name having `{e}` for its number."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    part: Part
    split: Split = "none"
    count: int = 1

    @property
    def num_values(self) -> int:
        """Of all `count` tensors."""
        return math.prod(self.shape) * self.count

    @property
    def num_bytes(self) -> int:
        """Of all `count` tensors."""
        return self.num_values * DTYPE_BYTES[self.dtype]

    @property
    def num_parameters(self) -> int:
        """Weights that the tensor stands for: packed bytes hold two, scales none."""
        if self.name.endswith("_packed"):
            return 2 * self.num_values
        return 0 if self.name.endswith("_scale") else self.num_values


def checkpoint_tensors(config: ModelConfig, *, is_packed: bool, is_nested: bool) -> Iterator[TensorSpec]:
    """All tensors of the file. `is_packed`: experts are MXFP4. `is_nested`: K3's file (prefix of the text
    model, small tensors in F32, A_log padded); else Kimi-Linear's."""
    prefix = "language_model." if is_nested else ""
    small = "F32" if is_nested else "BF16"
    yield from _vocabulary(config, prefix)
    for i in range(config.num_hidden_layers):
        layer = f"{prefix}model.layers.{i}."
        yield from _norms(config, layer)
        if config.is_kda(i):
            yield from _kda(config, f"{layer}self_attn.", small, is_nested)
        else:
            yield from _mla(config, f"{layer}self_attn.")
        if config.is_moe(i):
            yield from _moe(config, f"{layer}block_sparse_moe.", small, is_packed)
        else:
            yield from _mlp(f"{layer}mlp.", config.hidden_size, config.intermediate_size, "dense")
    if config.vision_config is not None:
        yield from _vision(config.vision_config)


def as_stored(
    tensors: Iterable[TensorSpec], found: Mapping[str, tuple[str, tuple[int, ...]]]
) -> Iterator[TensorSpec]:
    """The plain tensors with the dtypes and shapes of a file that holds them, which may be packed ones.

    `found`: dtype and shape by name; of experts the first one stands for all.
    """
    for tensor in tensors:
        name = tensor.name.replace("{e}", "0")
        kinds = ("",) if name in found else ("_packed", "_scale")
        if any(name + kind not in found or found[name + kind][0] not in DTYPE_BYTES for kind in kinds):
            yield tensor
            continue
        for kind in kinds:
            dtype, shape = found[name + kind]
            yield replace(tensor, name=tensor.name + kind, dtype=dtype, shape=shape)


def num_tensors(tensors: Iterable[TensorSpec]) -> int:
    return sum(t.count for t in tensors)


def num_active_parameters(config: ModelConfig, tensors: Iterable[TensorSpec]) -> int:
    """Weights that one text token passes through: with the head, without the embedding table and the biases
    that only choose experts."""
    total = 0
    for tensor in tensors:
        if tensor.part == "vision" or tensor.name.endswith(("embed_tokens.weight", "correction_bias")):
            continue
        share = config.num_experts_per_token if tensor.count > 1 else 1
        total += tensor.num_parameters // tensor.count * share
    return total


def _vocabulary(config: ModelConfig, prefix: str) -> Iterator[TensorSpec]:
    width = config.hidden_size
    table = (config.vocab_size, width)
    yield TensorSpec(f"{prefix}model.embed_tokens.weight", table, "BF16", "vocabulary", "rows")
    yield TensorSpec(f"{prefix}lm_head.weight", table, "BF16", "vocabulary", "rows")
    yield TensorSpec(f"{prefix}model.norm.weight", (width,), "BF16", "norms")
    if config.attn_res_block_size is not None:
        yield TensorSpec(f"{prefix}model.output_attn_res_norm.weight", (width,), "BF16", "norms")
        yield TensorSpec(f"{prefix}model.output_attn_res_proj.weight", (1, width), "BF16", "norms")


def _norms(config: ModelConfig, layer: str) -> Iterator[TensorSpec]:
    width = config.hidden_size
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield TensorSpec(f"{layer}{name}.weight", (width,), "BF16", "norms")
    if config.attn_res_block_size is not None:
        for name in ("self_attention_res", "mlp_res"):
            yield TensorSpec(f"{layer}{name}_norm.weight", (width,), "BF16", "norms")
            yield TensorSpec(f"{layer}{name}_proj.weight", (1, width), "BF16", "norms")


def _kda(config: ModelConfig, at: str, small: str, is_nested: bool) -> Iterator[TensorSpec]:
    linear, width = config.linear_attn_config, config.hidden_size
    inner, head = linear.width, linear.head_dim

    def spec(name: str, shape: tuple[int, ...], dtype: str = "BF16", split: Split = "rows") -> TensorSpec:
        return TensorSpec(f"{at}{name}", shape, dtype, "attention", split)

    for name in "qkv":
        yield spec(f"{name}_proj.weight", (inner, width))
        yield spec(f"{name}_conv1d.weight", (inner, 1, linear.short_conv_kernel_size), small)
    yield spec("f_a_proj.weight", (head, width), split="none")
    yield spec("f_b_proj.weight", (inner, head))
    if linear.use_full_rank_gate:
        yield spec("g_proj.weight", (inner, width))
    else:
        yield spec("g_a_proj.weight", (head, width), split="none")
        yield spec("g_b_proj.weight", (inner, head))
    yield spec("b_proj.weight", (linear.num_heads, width))
    padded = (max(linear.num_heads, head),)
    yield spec("A_log", padded if is_nested else (1, 1, linear.num_heads, 1), small, "none")
    yield spec("dt_bias", (inner,), small)
    yield spec("o_norm.weight", (head,), small, "none")
    yield spec("o_proj.weight", (width, inner), split="columns")


def _mla(config: ModelConfig, at: str) -> Iterator[TensorSpec]:
    heads, width, rank = config.num_attention_heads, config.hidden_size, config.kv_lora_rank
    q_width = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)

    def spec(name: str, shape: tuple[int, ...], split: Split = "rows") -> TensorSpec:
        return TensorSpec(f"{at}{name}.weight", shape, "BF16", "attention", split)

    if config.q_lora_rank is None:
        yield spec("q_proj", (q_width, width))
    else:
        yield spec("q_a_proj", (config.q_lora_rank, width), "none")
        yield spec("q_a_layernorm", (config.q_lora_rank,), "none")
        yield spec("q_b_proj", (q_width, config.q_lora_rank))
    yield spec("kv_a_proj_with_mqa", (config.latent_width, width), "none")
    yield spec("kv_a_layernorm", (rank,), "none")
    yield spec("kv_b_proj", (heads * (config.qk_nope_head_dim + config.v_head_dim), rank))
    if config.mla_use_output_gate:
        yield spec("g_proj", (heads * config.v_head_dim, width))
    yield spec("o_proj", (width, heads * config.v_head_dim), "columns")


def _mlp(at: str, width: int, inner: int, part: Part) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{at}gate_proj.weight", (inner, width), "BF16", part, "rows")
    yield TensorSpec(f"{at}up_proj.weight", (inner, width), "BF16", part, "rows")
    yield TensorSpec(f"{at}down_proj.weight", (width, inner), "BF16", part, "columns")


def _moe(config: ModelConfig, at: str, small: str, is_packed: bool) -> Iterator[TensorSpec]:
    count, width, latent = config.num_experts or 0, config.hidden_size, config.routed_expert_hidden_size
    yield TensorSpec(f"{at}gate.weight", (count, width), "BF16", "router")
    yield TensorSpec(f"{at}gate.e_score_correction_bias", (count,), small, "router")
    if latent:
        yield TensorSpec(f"{at}routed_expert_down_proj.weight", (latent, width), "BF16", "latent")
        yield TensorSpec(f"{at}routed_expert_up_proj.weight", (width, latent), "BF16", "latent")
    if config.latent_moe_use_norm:
        yield TensorSpec(f"{at}routed_expert_norm.weight", (config.expert_width,), "BF16", "norms")
    if config.shared_width:
        yield from _mlp(f"{at}shared_experts.", width, config.shared_width, "shared")
    outer, inner = config.expert_width, config.moe_intermediate_size
    for name, rows, columns in (("w1", inner, outer), ("w3", inner, outer), ("w2", outer, inner)):
        weight = f"{at}experts.{{e}}.{name}.weight"
        # a row that is no whole number of groups cannot be packed
        if is_packed and columns % _GROUP == 0:
            packed, scale = (rows, columns // 2), (rows, columns // _GROUP)
            yield TensorSpec(f"{weight}_packed", packed, "U8", "experts", "expert", count)
            yield TensorSpec(f"{weight}_scale", scale, "U8", "experts", "expert", count)
        else:
            yield TensorSpec(weight, (rows, columns), "BF16", "experts", "expert", count)


def _vision(config: VisionConfig) -> Iterator[TensorSpec]:
    width, inner, merged = config.vt_hidden_size, config.vt_intermediate_size, config.merged_width

    def spec(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(f"{name}.weight", shape, "BF16", "vision")

    yield spec("vision_tower.patch_embed.proj", width, 3, config.patch_size, config.patch_size)
    yield spec(
        "vision_tower.patch_embed.pos_emb", config.init_pos_emb_height, config.init_pos_emb_width, width
    )
    for b in range(config.vt_num_hidden_layers):
        block = f"vision_tower.encoder.blocks.{b}."
        yield spec(f"{block}norm0", width)
        yield spec(f"{block}norm1", width)
        yield spec(f"{block}wqkv", 3 * config.qkv_hidden_size, width)
        yield spec(f"{block}wo", width, config.qkv_hidden_size)
        yield spec(f"{block}mlp.fc0", inner, width)
        yield spec(f"{block}mlp.fc1", width, inner)
    yield spec("vision_tower.encoder.final_layernorm", width)
    yield spec("mm_projector.proj.0", merged, merged)
    yield spec("mm_projector.proj.2", config.text_hidden_size, merged)
    yield spec("mm_projector.post_norm", config.text_hidden_size)

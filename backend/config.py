"""ModelConfig: everything the text model needs to know, read from a released `config.json`.

K3 nests the text model under `text_config`, Kimi-Linear is flat. Each feature is a field, never a model name:
what the file leaves out is switched off, so both families (and miniatures of them) run through the same code.
Source: the published configuration of Kimi K3 and of Kimi-Linear-48B-A3B.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from k3agent.backend.errors import BackendError, ModelFilesError

PAGE_SIZE = 64
"""Tokens of one cache page, and the grid on which a prefill may be cut without changing its arithmetic."""

ARCHITECTURES = ("KimiK3ForConditionalGeneration", "KimiLinearForCausalLM")
MODEL_TYPES = ("kimi_k3", "kimi_linear")
ACTIVATIONS = ("situ", "silu")
ROUTER_ACTIVATIONS = ("sigmoid", "softmax")


_POSITIVE = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "kv_lora_rank",
        "v_head_dim",
        "head_dim",
        "num_heads",
        "short_conv_kernel_size",
        "attn_res_block_size",
        "num_experts",
        "num_experts_per_token",
        "moe_layer_freq",
        "patch_size",
        "vt_num_attention_heads",
        "vt_hidden_size",
    }
)


@dataclass(frozen=True)
class LinearAttnConfig:
    """The KDA layers. `kda_layers` and `full_attn_layers` count from 1, as in the released file."""

    kda_layers: tuple[int, ...]
    full_attn_layers: tuple[int, ...]
    head_dim: int
    num_heads: int
    short_conv_kernel_size: int = 4
    use_full_rank_gate: bool = False
    gate_lower_bound: float | None = None

    @property
    def width(self) -> int:
        """Channels of q, k or v over all heads."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class VisionConfig:
    """The image encoder and its projector; names are those of the released file."""

    patch_size: int
    init_pos_emb_height: int
    init_pos_emb_width: int
    vt_num_attention_heads: int
    vt_num_hidden_layers: int
    vt_hidden_size: int
    vt_intermediate_size: int
    qkv_hidden_size: int
    text_hidden_size: int
    init_pos_emb_time: int = 4
    merge_kernel_size: tuple[int, int] = (2, 2)
    projector_ln_eps: float = 1e-5
    pos_emb_type: str = "divided_fixed"
    pos_emb_interpolation_mode: str = "bilinear"
    merge_type: str = "sd2_tpool"
    norm_type: str = "rmsnorm"
    mlp_type: str = "mlp2"
    activation_func: str = "gelu_pytorch_tanh"
    mm_projector_type: str = "patchmergerv2"
    projector_hidden_act: str = "gelu"
    attn_bias: bool = False
    linear_bias: bool = False
    patch_embed_proj_bias: bool = False

    def __post_init__(self) -> None:
        for name in _ONE_VISION_VALUE:
            value, known = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != known:
                raise BackendError(f"vision_config.{name} {value!r} is not supported: only {known!r} is.")
        if self.qkv_hidden_size % (4 * self.vt_num_attention_heads):
            raise BackendError(
                f"vision_config.qkv_hidden_size {self.qkv_hidden_size} is no multiple of 4 *"
                f" vt_num_attention_heads ({self.vt_num_attention_heads}), which the rotation needs."
            )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head; wider in sum than the residual stream."""
        return self.qkv_hidden_size // self.vt_num_attention_heads

    @property
    def merged_width(self) -> int:
        """Channels of the patches that become one token, side by side."""
        return self.vt_hidden_size * self.merge_kernel_size[0] * self.merge_kernel_size[1]


# The code implements exactly these: another value in a file would mean another model.
_ONE_VISION_VALUE = (
    "merge_kernel_size",
    "pos_emb_type",
    "pos_emb_interpolation_mode",
    "merge_type",
    "norm_type",
    "mlp_type",
    "activation_func",
    "mm_projector_type",
    "projector_hidden_act",
    "attn_bias",
    "linear_bias",
    "patch_embed_proj_bias",
)


@dataclass(frozen=True)
class ModelConfig:
    """The text model, and the image encoder where there is one.

    Names are those of the released file; layer indices in the methods count from 0.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    linear_attn_config: LinearAttnConfig
    q_lora_rank: int | None = None
    mla_use_output_gate: bool = False
    mla_latent_norm_eps: float = 1e-6
    """eps of q_a_layernorm and kv_a_layernorm: the release builds them with the default of its norm class."""
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float = 25.0
    attn_res_block_size: int | None = None
    num_experts: int | None = None
    num_experts_per_token: int = 1
    num_shared_experts: int = 0
    moe_intermediate_size: int = 0
    routed_expert_hidden_size: int | None = None
    latent_moe_use_norm: bool = False
    moe_router_activation_func: str = "sigmoid"
    moe_renormalize: bool = True
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: int = 0
    moe_layer_freq: int = 1
    num_expert_group: int = 1
    topk_group: int = 1
    max_position_embeddings: int = 1048576
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    media_placeholder_token_id: int | None = None
    vision_config: VisionConfig | None = None
    """None: the model reads text only."""
    kda_layer_set: frozenset[int] = field(init=False, repr=False, compare=False, default=frozenset())

    def __post_init__(self) -> None:
        object.__setattr__(self, "kda_layer_set", frozenset(self.linear_attn_config.kda_layers))
        self._check()

    @classmethod
    def from_dir(cls, path: str | Path) -> "ModelConfig":
        """Read `config.json` of a weights folder."""
        file = Path(path) / "config.json"
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelFilesError(f"{file}: {error.strerror}. Give the folder of a model.") from error
        except (ValueError, RecursionError) as error:
            raise ModelFilesError(f"{file} is not valid JSON ({error}). Fetch the model again.") from error
        if not isinstance(raw, dict):
            raise ModelFilesError(
                f"{file} holds a {type(raw).__name__}, not an object. Fetch the model again."
            )
        try:
            return cls.from_dict(raw)
        except BackendError as error:
            raise ModelFilesError(f"{file}: {error}") from error

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Build from the parsed file, nested (K3) or flat (Kimi-Linear)."""
        text = raw.get("text_config") or raw
        if not isinstance(text, Mapping):
            raise BackendError(
                f"text_config is a {type(text).__name__}, not an object. Fetch the model again."
            )
        _check_family(raw, text)
        known = {f.name for f in fields(cls) if f.init}
        values = {name: text[name] for name in known if text.get(name) is not None}
        # The outer object is the authority only for what the inner one lacks.
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "media_placeholder_token_id"):
            if name not in values and raw.get(name) is not None:
                values[name] = raw[name]
        linear = text.get("linear_attn_config")
        if linear is not None:
            values["linear_attn_config"] = _part(LinearAttnConfig, "linear_attn_config", linear)
        if raw.get("vision_config") is not None:
            values["vision_config"] = _part(VisionConfig, "vision_config", raw["vision_config"])
        return _build(cls, "", values)

    def is_kda(self, layer_index: int) -> bool:
        """Is the attention of this layer KDA? (Else it is MLA.)"""
        return layer_index + 1 in self.kda_layer_set

    def is_moe(self, layer_index: int) -> bool:
        """Has this layer routed experts? (Else a dense MLP.)"""
        return (
            self.num_experts is not None
            and layer_index >= self.first_k_dense_replace
            and layer_index % self.moe_layer_freq == 0
        )

    @property
    def latent_width(self) -> int:
        """Numbers that one token leaves in the cache of one MLA layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def expert_width(self) -> int:
        """Input and output width of a routed expert."""
        return self.routed_expert_hidden_size or self.hidden_size

    @property
    def shared_width(self) -> int:
        """Inner width of the shared experts, which are stored as one MLP."""
        return self.moe_intermediate_size * self.num_shared_experts

    def _check(self) -> None:
        layers = self.linear_attn_config
        named = sorted((*layers.kda_layers, *layers.full_attn_layers))
        if named != list(range(1, self.num_hidden_layers + 1)):
            raise BackendError(
                f"linear_attn_config names layers {named}, but each of 1..{self.num_hidden_layers} must be"
                " in exactly one of kda_layers and full_attn_layers."
            )
        if self.hidden_act not in ACTIVATIONS:
            raise BackendError(f"hidden_act {self.hidden_act!r} is not one of {', '.join(ACTIVATIONS)}.")
        if self.moe_router_activation_func not in ROUTER_ACTIVATIONS:
            raise BackendError(
                f"moe_router_activation_func {self.moe_router_activation_func!r} is not one of"
                f" {', '.join(ROUTER_ACTIVATIONS)}."
            )
        if self.num_experts is not None and self.num_experts_per_token > self.num_experts:
            raise BackendError(
                f"num_experts_per_token {self.num_experts_per_token} is over num_experts {self.num_experts}."
            )
        if self.num_expert_group != 1:
            raise BackendError(f"num_expert_group {self.num_expert_group} is not supported: only 1 is.")
        vision = self.vision_config
        if vision is not None and vision.text_hidden_size != self.hidden_size:
            raise BackendError(
                f"vision_config.text_hidden_size {vision.text_hidden_size} is not the hidden_size of the text"
                f" model, {self.hidden_size}."
            )
        if self.tie_word_embeddings:
            raise BackendError("tie_word_embeddings true is not supported: give lm_head its own weights.")


def _check_family(raw: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Refuse files of other models, and what the released code of these asserts."""
    named: list[Any] = []
    for part in (raw, text):
        found = part.get("architectures") or []
        named += found if isinstance(found, list) else [found]
    kinds = [part["model_type"] for part in (raw, text) if part.get("model_type")]
    if not named and not kinds:
        raise BackendError("architectures and model_type are missing: this is no model that is known here.")
    for field_name, names, known in (
        ("architectures", named, ARCHITECTURES),
        ("model_type", kinds, MODEL_TYPES),
    ):
        for name in names:
            if name not in known:
                raise BackendError(
                    f"{field_name} {name!r} is not supported; use a model with {' or '.join(known)}."
                )
    for name, known_value in (("mla_use_nope", True), ("topk_method", "noaux_tc")):
        if text.get(name, known_value) != known_value:
            raise BackendError(f"{name} {text[name]!r} is not supported: only {known_value!r} is.")


def _part(kind: type[Any], where: str, raw: Any) -> Any:
    """A nested object of the file as its dataclass; unknown names are left out, lists become tuples."""
    if not isinstance(raw, Mapping):
        raise BackendError(f"{where} is a {type(raw).__name__}, not an object. Fetch the model again.")
    known = {f.name for f in fields(kind)}
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in raw.items()
        if name in known and value is not None
    }
    return _build(kind, f"{where}.", values)


def _build(kind: type[Any], prefix: str, values: dict[str, Any]) -> Any:
    """The dataclass from its values; names the first field that is missing or of a wrong kind."""
    for one in fields(kind):
        if not one.init:
            continue
        if one.name not in values:
            if one.default is MISSING and one.default_factory is MISSING:
                raise BackendError(f"{prefix}{one.name} is missing. Fetch the model's own config.json.")
            continue
        annotation = one.type.__name__ if isinstance(one.type, type) else str(one.type)
        _check_kind(f"{prefix}{one.name}", values[one.name], annotation)
    return kind(**values)


def _check_kind(name: str, value: Any, annotation: str) -> None:
    """Numbers, strings and booleans only; the nested parts check themselves."""
    kind = annotation.removesuffix(" | None")
    if "Config" in kind:
        return
    if kind.startswith("tuple"):
        is_right, kind = isinstance(value, tuple) and all(type(n) is int for n in value), "list of integers"
    elif kind == "float":
        is_right = type(value) in (int, float)
    else:
        is_right = type(value).__name__ == kind
    if not is_right:
        raise BackendError(f"{name} is {value!r}, not of type {kind}. Fetch the model's own config.json.")
    # counts and widths; ids and limits may be zero
    if type(value) is int and kind == "int" and value < (1 if name.rpartition(".")[2] in _POSITIVE else 0):
        raise BackendError(f"{name} {value} is too small. Fetch the model's own config.json.")

"""Tiny K3: the real architecture made small, with seeded weights under the released names."""

import copy
from pathlib import Path
from typing import Any

from k3agent.backend.config import ModelConfig
from k3agent.backend.model.random_weights import write_random

TEXT_CONFIG: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "mla_use_output_gate": True,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "attn_res_block_size": 2,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "num_shared_experts": 2,
    "moe_intermediate_size": 32,
    "routed_expert_hidden_size": 32,
    "latent_moe_use_norm": True,
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "max_position_embeddings": 4096,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4, 5],
        "head_dim": 32,
        "num_heads": 2,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
        "gate_lower_bound": -5.0,
    },
}


VISION_CONFIG: dict[str, Any] = {
    "patch_size": 14,
    "init_pos_emb_height": 6,
    "init_pos_emb_width": 5,
    "init_pos_emb_time": 4,
    "vt_num_hidden_layers": 2,
    "vt_hidden_size": 32,
    "vt_intermediate_size": 48,
    "vt_num_attention_heads": 3,
    "qkv_hidden_size": 48,
    "merge_kernel_size": [2, 2],
    "text_hidden_size": 64,
}


def write_tiny_k3(folder: Path, seed: int = 0, vocab_size: int = 256, **overrides: Any) -> ModelConfig:
    """Write a folder that `load_model` reads. `overrides` replace fields of the text config; `pack` says what
    is MXFP4.

    A `linear_attn_config` override is merged into the default one. `vision` adds an image encoder, whose
    placeholders have the given id.
    """
    placeholder = overrides.pop("vision", None)
    pack = overrides.pop("pack", "experts")
    text = copy.deepcopy(TEXT_CONFIG)
    text["linear_attn_config"] |= overrides.pop("linear_attn_config", {})
    text |= {"vocab_size": vocab_size, **overrides}
    raw: dict[str, Any] = {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "text_config": text,
    }
    if placeholder is not None:
        raw |= {"media_placeholder_token_id": placeholder}
        raw["vision_config"] = VISION_CONFIG | {"text_hidden_size": text["hidden_size"]}
    write_random(folder, raw, seed, pack=pack)
    return ModelConfig.from_dict(raw)

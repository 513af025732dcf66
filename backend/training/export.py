"""Trained parameters to a weights folder that `k3agent.backend.model` loads, and back into masters.

Names are the released ones. Matrices become packed MXFP4; convolutions, decay and the output norm stay fp32
as in the released files; everything else is bf16.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.model.mxfp4 import dequantize, quantize
from k3agent.backend.training.parameters import Parameters

PREFIX = "language_model.model."
HEAD = "lm_head.weight"
WEIGHTS_FILE = "model.safetensors"
PART_SIZE_BYTES = 15 * 1024 * 1024
VOCAB_SIZE = 4096
SPECIAL_TOKENS = (
    "[BOS]",
    "[EOS]",
    "<|end_of_msg|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
    "[UNK]",
    "[PAD]",
    *(f"<|reserved_token_{4092 + i}|>" for i in range(4)),
)
FIRST_SPECIAL = VOCAB_SIZE - len(SPECIAL_TOKENS)


def special_ids() -> dict[str, int]:
    """nano's special tokens and their ids, the last of the vocabulary."""
    return {name: FIRST_SPECIAL + i for i, name in enumerate(SPECIAL_TOKENS)}


def _linear_attn(num_layers: int, every: int, heads: int, head_dim: int) -> dict[str, Any]:
    layers = range(1, num_layers + 1)
    return {
        "kda_layers": [i for i in layers if i % every],
        "full_attn_layers": [i for i in layers if i % every == 0],
        "head_dim": head_dim,
        "num_heads": heads,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
        "gate_lower_bound": -5.0,
    }


def nano_config() -> dict[str, Any]:
    """config.json of nano, in K3's nested form."""
    ids = special_ids()
    tokens = {
        "bos_token_id": ids["[BOS]"],
        "eos_token_id": ids["<|end_of_msg|>"],
        "pad_token_id": ids["[PAD]"],
    }
    text = {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 448,
        "intermediate_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "q_lora_rank": 192,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 48,
        "qk_rope_head_dim": 16,
        "v_head_dim": 64,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "rms_norm_eps": 1e-05,
        "attn_res_block_size": 4,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "num_shared_experts": 2,
        "moe_intermediate_size": 128,
        "routed_expert_hidden_size": 224,
        "latent_moe_use_norm": True,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "routed_scaling_factor": 1.0,
        "topk_method": "noaux_tc",
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "max_position_embeddings": 16384,
        "linear_attn_config": _linear_attn(12, 4, 4, 128),
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **tokens,
    }
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        **tokens,
        "text_config": text,
        "k3agent": {"instructions": True},
    }


def tiny_config(vocab_size: int = VOCAB_SIZE) -> dict[str, Any]:
    """A miniature with every kind of layer, for tests and runs on a CPU."""
    config = nano_config()
    small = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "v_head_dim": 32,
        "attn_res_block_size": 2,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 32,
        "routed_expert_hidden_size": 32,
        "linear_attn_config": _linear_attn(4, 4, 2, 32),
    }
    return {**config, "text_config": {**config["text_config"], **small}}


def _released(name: str) -> str:
    return "language_model." + name if name == HEAD else PREFIX + name


def tensors(parameters: Parameters, bias: Tensor, *, packed: bool = True) -> dict[str, Tensor]:
    """All tensors of the file. `packed` false keeps matrices as the unrounded masters in fp32 or fp64."""
    config, found = parameters.config, {}
    for buffer, entry, piece in parameters.pieces():
        value = buffer.piece(buffer.master, entry, piece).detach()
        name = _released(piece.name)
        if entry.is_matrix and packed:
            for kind, part in zip(("packed", "scale"), quantize(value.contiguous()), strict=True):
                found[f"{name}_{kind}"] = part.cpu()
            continue
        value = value.cpu().reshape(piece.shape).contiguous().clone()
        if piece.name.endswith(".A_log"):
            # The released files pad this one to the head width.
            padded = value.new_zeros(config.linear_attn_config.head_dim)
            padded[: value.numel()] = value
            value = padded
        if packed:
            value = value.float() if entry.is_wide else value.bfloat16()
        found[name] = value
    layers = [i for i in range(config.num_hidden_layers) if config.is_moe(i)]
    for row, i in enumerate(layers):
        name = f"{PREFIX}layers.{i}.block_sparse_moe.gate.e_score_correction_bias"
        found[name] = (
            bias[row].detach().cpu().clone() if not packed else bias[row].detach().cpu().float().clone()
        )
    return found


def write_folder(
    folder: Path, raw_config: Mapping[str, Any], parameters: Parameters, bias: Tensor, *, packed: bool = True
) -> None:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(parameters, bias, packed=packed), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw_config, indent=2) + "\n", encoding="utf-8")


def read_masters(folder: Path, parameters: Parameters, bias: Tensor) -> None:
    """Fill masters and balancing bias from an exported folder: training goes on from rounded weights."""
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as source:
        names = set(source.keys())
        for buffer, entry, piece in parameters.pieces():
            name = _released(piece.name)
            if f"{name}_packed" in names:
                packed, scale = (source.get_tensor(f"{name}_{kind}") for kind in ("packed", "scale"))
                value = dequantize(packed, scale)
            else:
                value = source.get_tensor(name)
            target = buffer.piece(buffer.master, entry, piece)
            target.copy_(value.flatten()[: target.numel()].view(target.shape))
        layers = [i for i in range(parameters.config.num_hidden_layers) if parameters.config.is_moe(i)]
        for row, i in enumerate(layers):
            name = f"{PREFIX}layers.{i}.block_sparse_moe.gate.e_score_correction_bias"
            bias[row].copy_(source.get_tensor(name))


def checksums(folder: Path) -> str:
    """SHA256SUMS of the files in `folder`, as `sha256sum -c` reads it."""
    lines = []
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name != "SHA256SUMS":
            lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")
    return "".join(lines)


def split_file(file: Path, target: Path, part_size: int = PART_SIZE_BYTES) -> list[Path]:
    """Copy a file in parts of at most `part_size` bytes, `NAME.part0` and on; `cat NAME.part*` joins them."""
    target.mkdir(parents=True, exist_ok=True)
    data, parts = file.read_bytes(), []
    for number, start in enumerate(range(0, max(len(data), 1), part_size)):
        part = target / f"{file.name}.part{number}"
        part.write_bytes(data[start : start + part_size])
        parts.append(part)
    return parts


def model_config(raw: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig.from_dict(raw)


def compute_as_exported(parameters: Parameters) -> None:
    """Round the compute copies as the file does, so that the network computes what the loaded model will."""
    with torch.no_grad():
        for buffer, entry, piece in parameters.pieces():
            value = buffer.piece(buffer.master, entry, piece)
            if entry.is_matrix:
                value = dequantize(*quantize(value.contiguous()))
            buffer.piece(buffer.compute, entry, piece).copy_(value)

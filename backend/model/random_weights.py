"""Seeded random weights written like released ones: for tests on small models and for timing any
configuration.

Scales are chosen so that activations stay of order one and no part of the model is switched off.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.model.mxfp4 import GROUP, quantize
from k3agent.backend.model.weights import TEXT_PREFIX, VISION_PREFIXES, expected_tensors

FLOAT32_ENDINGS = ("conv1d.weight", ".A_log", ".dt_bias", ".o_norm.weight", ".e_score_correction_bias")
NEVER_PACKED = ("_res_proj.weight", "conv1d.weight", "embed_tokens.weight", "lm_head.weight")


def write_random(
    folder: str | Path, raw_config: Mapping[str, Any], seed: int, *, pack: str = "experts"
) -> None:
    """Write config.json and model.safetensors. `pack`: which matrices become MXFP4: "none", "experts" or
    "all" in the layers whose rows are whole groups."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = ModelConfig.from_dict(raw_config)
    is_nested = "text_config" in raw_config
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in expected_tensors(config):
        value = _random(name, shape, generator)
        is_text = not name.startswith(VISION_PREFIXES)
        stored_name = f"{TEXT_PREFIX}{name}" if is_nested and is_text else name
        if name.endswith(".A_log"):
            tensors[stored_name] = _released_a_log(value, config, is_nested)
        elif _is_packed(name, shape, pack):
            tensors[f"{stored_name}_packed"], tensors[f"{stored_name}_scale"] = quantize(value)
        else:
            tensors[stored_name] = value if name.endswith(FLOAT32_ENDINGS) else value.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw_config, indent=1), encoding="utf-8")


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1.0 + 0.1 * noise
    if name.endswith((".A_log", ".dt_bias")):
        return 0.5 * noise
    if name.endswith(".e_score_correction_bias"):
        return 0.1 * noise
    if name.endswith(("embed_tokens.weight", "conv1d.weight")):
        return 0.5 * noise
    return noise / math.sqrt(shape[-1])


def _released_a_log(value: Tensor, config: ModelConfig, is_nested: bool) -> Tensor:
    """K3 pads it with zeros to head_dim entries, Kimi-Linear stores it with four dimensions."""
    if not is_nested:
        return value.view(1, 1, -1, 1)
    padding = max(0, config.linear_attn_config.head_dim - value.numel())
    return torch.nn.functional.pad(value, (0, padding))


def _is_packed(name: str, shape: tuple[int, ...], pack: str) -> bool:
    is_never = name.endswith(NEVER_PACKED) or name.startswith(VISION_PREFIXES)
    if pack == "none" or len(shape) != 2 or shape[-1] % GROUP or is_never:
        return False
    return pack == "all" or ".experts." in name

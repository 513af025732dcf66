"""A model folder made wider so that ranks can divide it, without changing what it computes.

Heads are added that are zero, and so give nothing; words are added whose logits are zero; packed experts are
unpacked, which is exact. A folder without a tokenizer gets one of single bytes.
"""

import base64
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.kernels.reference.mxfp4 import mxfp4_dequantise
from k3agent.backend.model.weights import TEXT_PREFIX, VISION_PREFIXES, expected_tensors

VOCAB_SIZE = 320
"""All bytes, and the words of the markup."""
_PATTERN = r"\p{L}+| \p{L}+|\s+|\p{N}|[^\s\p{L}\p{N}]"
_SPECIALS = ("[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "[UNK]", "[PAD]")
_MEDIA = ("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>")


def widen(source: Path, target: Path, ranks: int) -> ModelConfig:
    """Write the folder `target` from `source`, for so many ranks."""
    raw = json.loads((source / "config.json").read_text("utf-8"))
    text = raw.get("text_config", raw)
    linear = text["linear_attn_config"]
    text["vocab_size"] = _up(max(text["vocab_size"], VOCAB_SIZE), ranks)
    text["num_attention_heads"] = _up(text["num_attention_heads"], ranks)
    linear["num_heads"] = _up(linear["num_heads"], ranks)
    config = ModelConfig.from_dict(raw)
    is_nested = "text_config" in raw
    stored = {
        name.removeprefix(TEXT_PREFIX): value
        for file in sorted(source.glob("*.safetensors"))
        for name, value in load_file(file).items()
    }
    tensors: dict[str, Tensor] = {}
    for name, shape in expected_tensors(config):
        prefix = TEXT_PREFIX if is_nested and not name.startswith(VISION_PREFIXES) else ""
        tensors[f"{prefix}{name}"] = _widened(name, _plain(name, stored), shape)
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(raw), "utf-8")
    write_tokenizer(target)
    return config


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _plain(name: str, stored: dict[str, Tensor]) -> Tensor:
    if name in stored:
        return stored[name]
    return mxfp4_dequantise(stored[f"{name}_packed"], stored[f"{name}_scale"], torch.float32)


def _widened(name: str, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros behind the last row and column: heads and words lie one behind the other."""
    if name.endswith(".A_log"):
        # the file may pad it, or give it four dimensions
        missing = max(0, shape[0] - value.numel())
        return value if not missing else torch.nn.functional.pad(value.flatten(), (0, missing))
    wide = value.new_zeros(shape)
    wide[tuple(slice(0, size) for size in value.shape)] = value
    return wide


def write_tokenizer(folder: Path) -> None:
    """Every byte is a token; special words have the last ids below VOCAB_SIZE."""
    lines = [f"{base64.b64encode(bytes([i])).decode()} {i}" for i in range(256)]
    (folder / "bytes.tiktoken").write_text("\n".join(lines) + "\n", "utf-8")
    names = (*_MEDIA, *_SPECIALS)
    first = VOCAB_SIZE - len(names)
    config: dict[str, Any] = {
        "pattern": _PATTERN,
        "special_tokens": {name: first + i for i, name in enumerate(names)},
        "ranks": "bytes.tiktoken",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")

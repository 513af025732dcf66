"""A stand-in of K3 that any number of ranks draws alike: each its part of the same weights, on its device.

Started as `python -m k3agent.backend.bench.rank_standin RANK COMMANDS_FD LIFE_FD` this is a rank of an engine
whose model is drawn, not read.
"""

import copy
import json
import math
import sys
import zlib
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3agent.backend.bench.standins import LEAST_DECAY, MOST_DECAY, find
from k3agent.backend.config import PAGE_SIZE, ModelConfig
from k3agent.backend.engine import worker
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.kernels.ahead import compiles, compiling_ahead
from k3agent.backend.model.inputs import CacheTensors, ForwardBatch, allocate_cache
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.parallel.groups import device_of
from k3agent.backend.parallel.shard import Shard
from k3agent.backend.released import K3
from k3agent.backend.shapes import checkpoint_tensors

MODULE = "k3agent.backend.bench.rank_standin"
SOME_EXPERTS = 64
"""Drawn at once: a rank that has others leaves them out."""
COMPILED = ((2048,), (16,) * 8, (16,) * 32)
"""Lengths of prompts side by side that kernels are compiled for."""
_DIVIDED = ("experts", "attention", "dense", "shared", "vocabulary")


def slice_of_k3(num_layers: int) -> dict[str, Any]:
    """config.json of the first layers of K3."""
    raw = copy.deepcopy(K3)
    del raw["vision_config"]
    text = raw["text_config"]
    text["num_hidden_layers"] = num_layers
    linear = text["linear_attn_config"]
    for kind in ("kda_layers", "full_attn_layers"):
        linear[kind] = [layer for layer in linear[kind] if layer <= num_layers]
    return raw


def group_of_k3(tiny: bool, ranks: int) -> dict[str, Any]:
    """Three KDA layers and one MLA, all with experts; the tiny one divides among the ranks."""
    raw = find("tiny-k3" if tiny else "k3-group").raw()
    if tiny:
        text = raw["text_config"]
        text |= {
            "num_attention_heads": 2 * ranks,
            "moe_intermediate_size": 32 * ranks,
            "num_experts": 4 * ranks,
        }
        text["linear_attn_config"]["num_heads"] = 2 * ranks
    return raw


def rank_bytes(raw: dict[str, Any], ranks: int) -> tuple[int, int]:
    """Weights of the whole model, and of one rank of so many."""
    whole = part = 0
    for tensor in checkpoint_tensors(ModelConfig.from_dict(raw), is_packed=True, is_nested=True):
        whole += tensor.num_bytes
        part += tensor.num_bytes // (ranks if tensor.part in _DIVIDED else 1)
    return whole, part


def layers_that_fit(ranks: int, card_bytes: int, most: int = 24, share: float = 0.88) -> int:
    """The longest slice, in whole groups of four layers, whose part fits a card with room to work in."""
    for count in range(most, 4, -4):
        if rank_bytes(slice_of_k3(count), ranks)[1] <= share * card_bytes:
            return count
    return 4


def write_config(folder: Path, raw: dict[str, Any]) -> str:
    """A model folder without weights, for settings to name."""
    (folder / "config.json").write_text(json.dumps(raw), "utf-8")
    return str(folder)


def load(settings: EngineSettings, shard: Shard) -> K3ForCausalLM:
    """What one rank has of the model that `settings.model_dir` describes."""
    config = ModelConfig.from_dir(settings.model_dir)
    device = device_of(shard.rank, shard.world, settings.device)
    with torch.device(device):
        model = K3ForCausalLM(
            config,
            torch.bfloat16,
            packed_experts=True,
            shard=shard,
            vision=False,
            kernels=settings.kernels,
        )
    fill(model)
    model.finish_loading()
    if compiles(device):
        compile_kernels(model)
    return model.eval()


def compile_kernels(model: K3ForCausalLM) -> None:
    """Compile on all cores what short and long passes need; all ranks do so side by side."""
    with compiling_ahead(model.device):
        for lengths in COMPILED:
            several = batches(model.whole_config.vocab_size, lengths, model.device)
            cache = cache_for(model, several[0])
            for batch in several:
                model(batch, cache)
    torch.cuda.synchronize(model.device)


def batches(vocab_size: int, lengths: Sequence[int], device: torch.device) -> list[ForwardBatch]:
    """Prompts side by side, and a token more for each; the same on all ranks."""
    generator = torch.Generator().manual_seed(5)
    widest = max(-(-(length + 1) // PAGE_SIZE) for length in lengths)
    count = len(lengths)
    table = torch.arange(count * widest, device=device).view(count, widest)

    def batch(contexts: list[int], counts: list[int]) -> ForwardBatch:
        starts = [0, *accumulate(counts)]
        ids = torch.randint(vocab_size, (starts[-1],), generator=generator).to(device)
        has_state = [context > 0 for context in contexts]
        return ForwardBatch(ids, starts, contexts, table, list(range(count)), has_state)  # pyright: ignore[reportArgumentType]  # plain tensors

    return [batch([0] * count, list(lengths)), batch(list(lengths), [1] * count)]


def cache_for(model: K3ForCausalLM, batch: ForwardBatch) -> CacheTensors:
    """An empty cache that has room for the batch."""
    table = batch.page_table
    return allocate_cache(model.config, table.numel(), table.shape[0], model.dtype, model.device)


@torch.no_grad()
def fill(model: K3ForCausalLM) -> None:
    """Draw every tensor of the whole model by its name and keep this rank's part."""
    for name, target in model.destinations().items():
        if ".experts.w" in name:
            _fill_experts(model, name, target)
            continue
        split = model.shard.split(name)
        whole = list(target.shape)
        if split is not None:
            whole[split.dim] *= split.ways
        value = torch.empty(whole, dtype=target.dtype, device=target.device)
        _draw(name, value, _generator(name, target.device), model.config)
        part = [slice(None)] * value.dim()
        if split is not None:
            part[split.dim] = split.piece(whole[split.dim])
        target.copy_(value[tuple(part)])
    if model.device.type == "cuda":
        torch.cuda.empty_cache()


def _fill_experts(model: K3ForCausalLM, name: str, target: Tensor) -> None:
    split, numbers = model.shard.split(name), model.shard.experts(model.config.num_experts or 0)
    for first in range(0, model.config.num_experts or 0, SOME_EXPERTS):
        last = min(first + SOME_EXPERTS, model.config.num_experts or 0)
        begin, end = max(first, numbers.start), min(last, numbers.stop)
        if begin >= end:
            continue
        whole = [last - first, *target.shape[1:]]
        part = [slice(begin - first, end - first), slice(None), slice(None)]
        if split is not None:
            whole[split.dim + 1] *= split.ways
            part[split.dim + 1] = split.piece(whole[split.dim + 1])
        value = torch.empty(whole, dtype=target.dtype, device=target.device)
        _draw_experts(name, value, _generator(f"{name}/{first}", target.device), model)
        target[begin - numbers.start : end - numbers.start].copy_(value[tuple(part)])


def _generator(name: str, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(zlib.crc32(name.encode()))


def _draw_experts(name: str, value: Tensor, generator: torch.Generator, model: K3ForCausalLM) -> None:
    if name.endswith("_packed"):
        value.random_(0, 256, generator=generator)
        return
    # of what a matrix reads, however it is cut; a random code has a root mean square of about 3
    config = model.whole_config
    columns = config.moe_intermediate_size if ".w2." in name else config.expert_width
    exponent = round(math.log2(columns**-0.5 / 3)) + 127
    value.random_(exponent - 1, exponent + 2, generator=generator)


def _draw(name: str, value: Tensor, generator: torch.Generator, config: ModelConfig) -> None:
    """As the stand-ins of one rank are drawn."""
    if name.endswith("norm.weight"):
        value.fill_(1.0)
    elif name.endswith("A_log"):
        value.zero_()
    elif name.endswith("dt_bias"):
        value.uniform_(math.log(LEAST_DECAY), math.log(MOST_DECAY), generator=generator).exp_()
        bound = config.linear_attn_config.gate_lower_bound
        if bound is None:
            value.copy_(torch.log(torch.expm1(value)))
        else:
            value.copy_(torch.logit(value / -bound))
    elif name.endswith("e_score_correction_bias"):
        value.normal_(std=0.01, generator=generator)
    else:
        columns = value.shape[-1] if value.dim() > 1 else 1
        scale = 0.01 if name.endswith("f_b_proj.weight") else 1.0
        value.normal_(std=scale * columns**-0.5, generator=generator)
        if name.endswith("gate.weight"):
            value.copy_(value.bfloat16())


if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], load))

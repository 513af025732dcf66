"""Models with random weights of real shape, made on the device: what a measurement needs of a checkpoint.

Weights are of order 1 / sqrt(columns). Decays are log-uniform from 1e-4 to 1: random ones would forget
everything within a few tokens, and a state could not be seen in any answer.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels.experts import ExpertStacks
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.kda import KDA
from k3agent.backend.model.layers import RMSNorm
from k3agent.backend.model.moe import Experts, Gate
from k3agent.backend.parallel.shard import Shard
from k3agent.backend.released import K3, KIMI_LINEAR

LEAST_DECAY, MOST_DECAY = 1e-4, 1.0
"""Of -log retention."""


@dataclass(frozen=True)
class AloneOf:
    """One of several ranks, without the others: sums are its own part, and nothing is exchanged. What it
    computes is no answer, but takes as long as a rank's part of one."""

    world: int
    rank: int = 0
    is_capturable: bool = True

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def least(self, value: int) -> int:
        return value


@dataclass(frozen=True)
class Standin:
    """A model to build. `ranks`: it is one of so many, each with whole experts."""

    name: str
    title: str
    raw: Callable[[], dict[str, Any]]
    is_packed: bool
    ranks: int = 1
    scale: float = 1.0
    """How many times its layers make the whole model."""

    @property
    def config(self) -> ModelConfig:
        return ModelConfig.from_dict(self.raw())


def _k3() -> dict[str, Any]:
    raw = copy.deepcopy(K3)
    del raw["vision_config"]
    return raw


def _k3_group() -> dict[str, Any]:
    """Three KDA layers and one MLA, all with experts."""
    raw = _k3()
    text = raw["text_config"]
    text |= {"num_hidden_layers": 4, "first_k_dense_replace": 0}
    text["linear_attn_config"] |= {"kda_layers": [1, 2, 3], "full_attn_layers": [4]}
    return raw


def _tiny_k3() -> dict[str, Any]:
    raw = _k3_group()
    raw["text_config"] |= {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "attn_res_block_size": 2,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 64,
        "routed_expert_hidden_size": 64,
        "max_position_embeddings": 4096,
    }
    raw["text_config"]["linear_attn_config"] |= {"num_heads": 2, "head_dim": 16}
    return raw


def _tiny_linear() -> dict[str, Any]:
    raw = copy.deepcopy(KIMI_LINEAR)
    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 2, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16}
    experts = {"v_head_dim": 16, "num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 64}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 4096}
    raw |= small | heads | experts | ids
    raw["linear_attn_config"] |= {"num_heads": 2, "head_dim": 16}
    raw["linear_attn_config"] |= {"kda_layers": [1, 2, 3], "full_attn_layers": [4]}
    return raw


STANDINS = {
    one.name: one
    for one in (
        Standin("kimi-linear", "Kimi-Linear-48B, bf16", lambda: copy.deepcopy(KIMI_LINEAR), False),
        Standin("k3-group", "K3, 3 KDA + 1 MLA with experts in MXFP4", _k3_group, True, scale=23.0),
        Standin("k3-rank", "K3, one rank of sixteen, 93 layers, experts in MXFP4", _k3, True, ranks=16),
        Standin("tiny-linear", "a tiny Kimi-Linear, for tests", _tiny_linear, False),
        Standin("tiny-k3", "a tiny K3 group, for tests", _tiny_k3, True),
        Standin("tiny-k3-rank", "a rank of two of a tiny K3, for tests", _tiny_k3, True, ranks=2),
    )
}


def find(name: str) -> Standin:
    """By name; raises BackendError for an unknown one."""
    if name not in STANDINS:
        raise BackendError(f"no stand-in {name!r}. Known: {', '.join(STANDINS)}.")
    return STANDINS[name]


def build(
    standin: Standin, device: torch.device, dtype: torch.dtype = torch.bfloat16, kernels: str = "auto"
) -> K3ForCausalLM:
    """The model, its weights drawn on the device; the same ones for the same seed of torch."""
    shard = Shard(AloneOf(standin.ranks), expert_parallel=standin.ranks) if standin.ranks > 1 else Shard()
    with torch.device(device):
        model = K3ForCausalLM(
            standin.config,
            dtype,
            packed_experts=standin.is_packed,
            shard=shard,
            vision=False,
            kernels=kernels,
        )
        draw(model)
    model.finish_loading()
    return model.eval()


@torch.no_grad()
def draw(model: K3ForCausalLM) -> None:
    """Fill every weight."""
    for parameter in model.parameters():
        columns = parameter.shape[-1] if parameter.dim() > 1 else 1
        parameter.normal_(std=columns**-0.5)
    for module in model.modules():
        match module:
            case RMSNorm():
                module.weight.fill_(1.0)
            case Gate():
                module.weight.copy_(module.weight.bfloat16())  # the released one is bf16
                module.e_score_correction_bias.normal_(std=0.01)
            case Experts():
                _draw_experts(module.stacks)
            case KDA():
                _draw_decays(module)
            case _:
                pass


def _draw_experts(stacks: ExpertStacks) -> None:
    for codes, scales in ((stacks.w13, stacks.w13_scale), (stacks.w2, stacks.w2_scale)):
        if scales is None:
            codes.normal_(std=codes.shape[-1] ** -0.5)
            continue
        codes.random_(0, 256)
        # a random code has a root mean square of about 3
        exponent = round(math.log2((2 * codes.shape[-1]) ** -0.5 / 3)) + 127
        scales.random_(exponent - 1, exponent + 2)


def _draw_decays(layer: KDA) -> None:
    """With the projection nearly off, the bias alone says how fast a channel forgets."""
    layer.A_log.zero_()
    layer.f_b_proj.weight.mul_(0.01)
    bias = layer.dt_bias
    decay = torch.exp(torch.empty_like(bias).uniform_(math.log(LEAST_DECAY), math.log(MOST_DECAY)))
    if layer.lower_bound is None:
        bias.copy_(torch.log(torch.expm1(decay)))
    else:
        bias.copy_(torch.logit(decay / -layer.lower_bound))

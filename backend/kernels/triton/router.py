"""Choice of experts, one program a token: scores, the best by biased score one after another, weights."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.gpu import gpu_name
from k3agent.backend.kernels.pinned import Row

OP = "route"
pinned.pin(OP, Row({"WARPS": 4}), candidates={"WARPS": (1, 2, 4, 8)})


def route(
    logits: Tensor, bias: Tensor, num_chosen: int, *, activation: str, renormalize: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """Arguments and result as in kernels.reference.router, but experts are int32; of equal ones the first."""
    num_tokens, num_experts = logits.shape
    chosen = torch.empty((num_tokens, num_chosen), dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_tokens, num_chosen), dtype=torch.float32, device=logits.device)
    values = pinned.pick(OP, gpu_name(logits.device), tokens=num_tokens, experts=num_experts)
    _route[(num_tokens,)](
        logits.contiguous(), bias, chosen, weights, float(scaling), num_experts,
        TOP=num_chosen, TOPS=triton.next_power_of_2(num_chosen), SIZE=triton.next_power_of_2(num_experts),
        IS_SIGMOID=activation == "sigmoid", RENORMALIZE=renormalize, num_warps=int(values["WARPS"]),
    )  # fmt: skip
    return chosen, weights


@triton.jit
def _route(
    logits, bias, chosen, weights, scaling, num_experts,
    TOP: tl.constexpr, TOPS: tl.constexpr, SIZE: tl.constexpr, IS_SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, SIZE)
    is_expert = expert < num_experts
    score = tl.load(logits + token * num_experts + expert, mask=is_expert, other=float("-inf"))
    score = score.to(tl.float32)
    if IS_SIGMOID:
        score = tl.sigmoid(score)
    else:
        score = tl.exp(score - tl.max(score, axis=0))
        score = score / tl.sum(score, axis=0)
    biased = score + tl.load(bias + expert, mask=is_expert, other=0.0).to(tl.float32)
    biased = tl.where(is_expert, biased, float("-inf"))
    place = tl.arange(0, TOPS)
    best = tl.zeros([TOPS], dtype=tl.int32)
    kept = tl.zeros([TOPS], dtype=tl.float32)
    for rank in tl.static_range(TOP):
        first = tl.argmax(biased, axis=0)
        best = tl.where(place == rank, first, best)
        kept = tl.where(place == rank, tl.sum(tl.where(expert == first, score, 0.0), axis=0), kept)
        biased = tl.where(expert == first, float("-inf"), biased)
    if RENORMALIZE:
        kept = kept / (tl.sum(kept, axis=0) + 1e-20)
    is_kept = place < TOP
    tl.store(chosen + token * TOP + place, best, mask=is_kept)
    tl.store(weights + token * TOP + place, kept * scaling, mask=is_kept)

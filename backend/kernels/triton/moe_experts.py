"""Routed experts of a step: plan of blocks, gate and up, down, and the sum over a token's experts.

Four launches (five with splits, one more for packed weights), none of which waits for the host. Which
configuration is used depends on the shape alone, never on what is chosen: equal shape, equal numbers.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from k3agent.backend.errors import BackendError
from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.experts import PLANES, Activation, ExpertStacks
from k3agent.backend.kernels.gpu import gpu_name, is_interpreting
from k3agent.backend.kernels.pinned import Row
from k3agent.backend.kernels.triton import moe_gemm
from k3agent.backend.kernels.triton.moe_plan import Plan, plan_blocks

PLAN, UP, DOWN = "moe_experts", "moe_gate_up", "moe_down"
"""The tables of configurations: rows of a block, and the tiles of both products."""
_COLUMNS = 1024
"""Output columns of one program where it only sums."""

# `each`: choices for each expert of the layer, on average, rounded up; `choices`: all of them.
pinned.pin(
    PLAN,
    Row({"BLOCK_M": 16}, most={"each": 16}),
    Row({"BLOCK_M": 32}, most={"each": 32}),
    # choices of experts differ: one block of 128 holds twice the average, two of 64 read the weights twice
    Row({"BLOCK_M": 64}, most={"each": 40}),
    Row({"BLOCK_M": 128}, most={"packed": 0}),
    # wider blocks do not leave enough registers for unpacking
    Row({"BLOCK_M": 64}),
    candidates={"BLOCK_M": (16, 32, 64, 128)},
)
_TILES = {
    "BLOCK_N": (16, 32, 64, 128),
    "BLOCK_K": (64, 128, 256),
    "WARPS": (2, 4, 8),
    "STAGES": (2, 3, 4),
    "SPLITS": (1, 2),
}
pinned.pin(
    UP,
    # few rows of plain weights: many small programs, so that no unit of the GPU waits for the last ones
    Row(
        {"BLOCK_N": 32, "BLOCK_K": 128, "WARPS": 4, "STAGES": 4, "SPLITS": 1}, most={"rows": 16, "packed": 0}
    ),
    Row({"BLOCK_N": 64, "BLOCK_K": 256, "WARPS": 4, "STAGES": 3, "SPLITS": 1}, most={"rows": 16}),
    Row({"BLOCK_N": 64, "BLOCK_K": 128, "WARPS": 4, "STAGES": 3, "SPLITS": 1}, most={"rows": 32}),
    Row({"BLOCK_N": 64, "BLOCK_K": 64, "WARPS": 4, "STAGES": 3, "SPLITS": 1}, most={"rows": 64}),
    Row({"BLOCK_N": 64, "BLOCK_K": 64, "WARPS": 8, "STAGES": 3, "SPLITS": 1}),
    candidates=_TILES,
)
pinned.pin(
    DOWN,
    Row(
        {"BLOCK_N": 32, "BLOCK_K": 128, "WARPS": 4, "STAGES": 4, "SPLITS": 1}, most={"rows": 16, "packed": 0}
    ),
    Row({"BLOCK_N": 64, "BLOCK_K": 256, "WARPS": 4, "STAGES": 3, "SPLITS": 1}, most={"rows": 16}),
    Row({"BLOCK_N": 64, "BLOCK_K": 128, "WARPS": 4, "STAGES": 3, "SPLITS": 1}, most={"rows": 32}),
    Row({"BLOCK_N": 128, "BLOCK_K": 64, "WARPS": 4, "STAGES": 3, "SPLITS": 1}, most={"rows": 64}),
    Row({"BLOCK_N": 128, "BLOCK_K": 64, "WARPS": 8, "STAGES": 3, "SPLITS": 1}),
    candidates=_TILES,
)


@dataclass(frozen=True)
class Tile:
    """The configuration of one product, with sides that divide it: nothing in its loop needs a mask."""

    n: int
    k: int
    warps: int
    stages: int
    splits: int


def moe_experts(
    z: Tensor,
    chosen: Tensor,
    weights: Tensor,
    stacks: ExpertStacks,
    act: Activation,
    num_rows: Tensor | None = None,
) -> Tensor:
    """Arguments and result as in kernels.reference.moe; `z` bf16 (or fp32 with plain weights)."""
    if stacks.is_packed and z.dtype != torch.bfloat16:
        raise BackendError(f"packed experts work on bf16, not {z.dtype}. Use --kernels reference.")
    num_tokens, top = chosen.shape
    chosen = chosen.to(torch.int32)
    limits, gpu = limits_of(stacks, num_tokens, top), gpu_name(z.device)
    block_rows = limits["rows"]
    plan = plan_blocks(chosen, stacks.first, stacks.count, block_rows, num_rows)
    if stacks.is_packed:
        # one plane after another
        z = z.unflatten(-1, (-1, PLANES)).transpose(-1, -2)
    tile = _tile(pinned.pick(UP, gpu, **limits), stacks.inner, stacks.width, stacks.least_columns)
    inner = _gate_up(z.contiguous(), chosen, plan, stacks, act, tile)
    tile = _tile(pinned.pick(DOWN, gpu, **limits), stacks.width, stacks.inner, stacks.least_columns)
    partial = _down(inner, weights.contiguous(), plan, stacks, tile)
    out = z.new_empty((num_tokens, stacks.width), dtype=torch.float32)
    block = min(_COLUMNS, triton.next_power_of_2(stacks.width))
    moe_gemm.combine[(num_tokens, triton.cdiv(stacks.width, block))](
        partial, chosen, out, chosen if num_rows is None else num_rows, stacks.first, stacks.count,
        num_tokens * top, WIDTH=stacks.width, TOP=top, SPLITS=tile.splits, BLOCK_N=block,
        HAS_ROWS=num_rows is not None, num_warps=4,
    )  # fmt: skip
    return out


def limits_of(stacks: ExpertStacks, num_tokens: int, top: int) -> dict[str, int]:
    """The shape as the tables know it."""
    num_choices = num_tokens * top
    limits = {
        "each": -(-num_choices // (stacks.of or stacks.count)),
        "choices": num_choices,
        "packed": int(stacks.is_packed),
        "width": stacks.width,
        "inner": stacks.inner,
        "held": stacks.count,
    }
    gpu = gpu_name(stacks.w13.device)
    # the tiles of the products depend on how many choices lie side by side
    return limits | {"rows": int(pinned.pick(PLAN, gpu, **limits)["BLOCK_M"])}


def _gate_up(
    z: Tensor, chosen: Tensor, plan: Plan, stacks: ExpertStacks, act: Activation, tile: Tile
) -> Tensor:
    """[choices, I], for packed weights in planes."""
    num_choices, size = chosen.numel(), stacks.inner
    inner = z.new_empty((num_choices, size))
    partial = inner
    if tile.splits > 1:
        partial = z.new_empty((tile.splits, num_choices, 2 * size), dtype=torch.float32)
    scale = stacks.w13 if stacks.w13_scale is None else stacks.w13_scale
    moe_gemm.gate_up[(plan.num_blocks, size // tile.n, tile.splits)](
        z, _codes_of(stacks.w13, stacks.is_packed), scale, plan.expert, plan.choices, inner, partial,
        num_choices, act.beta, act.linear_beta,
        K=stacks.width, INNER=size, TOP=chosen.shape[1], IS_SITU=act.is_situ, PACKED=stacks.is_packed,
        BLOCK_M=plan.block_rows, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits,
        ASM=not is_interpreting(), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if tile.splits > 1:
        block = min(_COLUMNS, triton.next_power_of_2(size))
        moe_gemm.sum_gate_up[(num_choices, triton.cdiv(size, block))](
            partial, chosen, inner, stacks.first, stacks.count, num_choices, act.beta, act.linear_beta,
            INNER=size, IS_SITU=act.is_situ, PACKED=stacks.is_packed, SPLITS=tile.splits, BLOCK_N=block,
            num_warps=4,
        )  # fmt: skip
    return inner


def _down(inner: Tensor, weights: Tensor, plan: Plan, stacks: ExpertStacks, tile: Tile) -> Tensor:
    """[splits, choices, W] fp32; rows of choices that are not here are not written."""
    num_choices = inner.shape[0]
    partial = inner.new_empty((tile.splits, num_choices, stacks.width), dtype=torch.float32)
    scale = stacks.w2 if stacks.w2_scale is None else stacks.w2_scale
    moe_gemm.down[(plan.num_blocks, stacks.width // tile.n, tile.splits)](
        inner, _codes_of(stacks.w2, stacks.is_packed), scale, plan.expert, plan.choices, weights, partial,
        num_choices, INNER=stacks.inner, WIDTH=stacks.width, PACKED=stacks.is_packed,
        BLOCK_M=plan.block_rows, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits,
        ASM=not is_interpreting(), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return partial


def _tile(values: pinned.Values, rows: int, columns: int, least: int) -> Tile:
    """What the table says, cut to what divides the matrix."""
    splits = int(values["SPLITS"])
    while columns % (splits * least):
        splits //= 2
    return Tile(
        n=min(int(values["BLOCK_N"]), _power_of_2_in(rows)),
        k=min(int(values["BLOCK_K"]), _power_of_2_in(columns // splits)),
        warps=int(values["WARPS"]),
        stages=int(values["STAGES"]),
        splits=splits,
    )


def _codes_of(stack: Tensor, is_packed: bool) -> Tensor:
    """Packed codes four at a time."""
    return stack.view(torch.int16) if is_packed else stack


def _power_of_2_in(count: int) -> int:
    """The largest power of two that divides it."""
    return count & -count

"""Absorbed attention over pages of latents: for decoding, and for few new tokens behind a long prefix.

All heads read the same latents, so a program takes a block of (token, head) pairs of one sequence and a part
of its pages. Into how many parts pages go depends on the shape of the step, where they end on the sequence
alone; the parts are joined in one fixed order.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.arguments import StepTables
from k3agent.backend.kernels.gpu import gpu_name
from k3agent.backend.kernels.pinned import Row
from k3agent.backend.kernels.triton.mla_parts import (
    dot_block,
    joined_kernel,
    load_tile,
    multiply,
    parts_at_once,
    soften,
)

pinned.pin(
    "mla_decode",
    # Triton's interpreter takes its time for each program
    Row({"block_m": 16, "block_n": 64, "splits": 2, "num_warps": 4, "num_stages": 1, "join_warps": 1},
        gpu="cpu"),
    # parts cost memory traffic, too: with many sequences fewer of each fill the GPU
    Row({"block_m": 16, "block_n": 64, "splits": 128, "num_warps": 8, "num_stages": 3, "join_warps": 4},
        most={"rows": 16, "sequences": 4}),
    Row({"block_m": 16, "block_n": 64, "splits": 16, "num_warps": 8, "num_stages": 3, "join_warps": 4},
        most={"rows": 16}),
    Row({"block_m": 32, "block_n": 64, "splits": 128, "num_warps": 8, "num_stages": 3, "join_warps": 4},
        most={"rows": 32, "sequences": 4}),
    Row({"block_m": 32, "block_n": 64, "splits": 16, "num_warps": 8, "num_stages": 3, "join_warps": 4},
        most={"rows": 32}),
    Row({"block_m": 64, "block_n": 64, "splits": 64, "num_warps": 8, "num_stages": 2, "join_warps": 4},
        most={"rows": 128, "sequences": 4}),
    Row({"block_m": 64, "block_n": 64, "splits": 8, "num_warps": 8, "num_stages": 2, "join_warps": 4},
        most={"rows": 128}),
    Row({"block_m": 64, "block_n": 64, "splits": 16, "num_warps": 8, "num_stages": 2, "join_warps": 4},
        most={"rows": 512}),
    Row({"block_m": 64, "block_n": 64, "splits": 4, "num_warps": 8, "num_stages": 2, "join_warps": 4},
        most={"rows": 4096}),
    Row({"block_m": 64, "block_n": 64, "splits": 1, "num_warps": 8, "num_stages": 2, "join_warps": 4}),
    candidates={
        "block_m": [16, 32, 64], "block_n": [16, 32, 64], "splits": [1, 4, 8, 16, 32, 64, 128],
        "num_warps": [4, 8], "num_stages": [2, 3, 4], "join_warps": [4],
    },
)  # fmt: skip


@triton.jit
def _read_page(
    latents_ptr, page, position, offset, end, column_c, column_s,
    RANK: tl.constexpr, SHARED: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """Latents and shared keys of some positions, all in one page; zero from `end` on."""
    line = (page.to(tl.int64) * PAGE + position % PAGE + offset)[:, None] * (RANK + SHARED)
    exists = position + offset < end
    latent = load_tile(latents_ptr, line + column_c[None, :], exists, column_c, RANK, BLOCK_C)
    shared = load_tile(latents_ptr, line + RANK + column_s[None, :], exists, column_s, SHARED, BLOCK_S)
    return latent, shared


@triton.jit(do_not_specialize=["pages_stride", "num_rows", "splits"])
def _attend_kernel(
    absorbed_ptr, absorbed_head, absorbed_row, q_ptr, q_row, q_head, latents_ptr, part_ptr, peak_ptr,
    cu_ptr, context_ptr, pages_ptr, pages_stride, scale, num_rows, splits,
    HEADS: tl.constexpr, NOPE: tl.constexpr, RANK: tl.constexpr, SHARED: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_S: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of (token, head), splits, sequences. `scale` includes log2(e)."""
    split, sequence = tl.program_id(1), tl.program_id(2)
    start, context = tl.load(cu_ptr + sequence), tl.load(context_ptr + sequence)
    num_tokens = tl.load(cu_ptr + sequence + 1) - start
    pair = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if tl.program_id(0) * BLOCK_M >= num_tokens * HEADS:
        return
    token, head = pair // HEADS, pair % HEADS
    valid = token < num_tokens
    row = (start + token).to(tl.int64)
    column_c, column_s = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_S)
    at_c = (head * absorbed_head + row * absorbed_row)[:, None] + column_c[None, :]
    query_c = load_tile(absorbed_ptr, at_c, valid, column_c, RANK, BLOCK_C)
    at_s = (row * q_row + head * q_head + NOPE)[:, None] + column_s[None, :]
    query_s = load_tile(q_ptr, at_s, valid, column_s, SHARED, BLOCK_S)

    own = tl.cdiv(tl.cdiv(context + num_tokens, PAGE), splits) * PAGE
    last_token = tl.minimum((tl.program_id(0) * BLOCK_M + BLOCK_M - 1) // HEADS, num_tokens - 1)
    end = tl.minimum(split * own + own, context + last_token + 1)
    peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    out = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    offset = tl.arange(0, BLOCK_N)
    own_pages_ptr = pages_ptr + sequence * pages_stride
    # a page is looked up one round ahead: where latents lie must not wait for a load of the same round, or
    # no more than one round of them would be on its way
    page = tl.load(own_pages_ptr + tl.minimum(split * own, end - 1) // PAGE)
    for position in tl.range(split * own, end, BLOCK_N, num_stages=STAGES):
        latent, shared = _read_page(
            latents_ptr, page, position, offset, end, column_c, column_s,
            RANK, SHARED, BLOCK_C, BLOCK_S, PAGE,
        )  # fmt: skip
        page = tl.load(own_pages_ptr + tl.minimum(position + BLOCK_N, end - 1) // PAGE)
        scores = multiply(query_c, tl.trans(latent), PRECISION) + multiply(
            query_s, tl.trans(shared), PRECISION
        )
        seen = (position + offset)[None, :] <= (context + token)[:, None]
        seen = seen & (position + offset < end)[None, :]
        weights, factor, peak, total = soften(scores * scale, seen, peak, total)
        out = out * factor[:, None] + multiply(weights.to(latent.dtype), latent, PRECISION)
    found = total > 0.0
    out = out / tl.where(found, total, 1.0)[:, None]
    place = (split * num_rows + row) * HEADS + head
    size = tl.where(found, peak + tl.log2(tl.where(found, total, 1.0)), float("-inf"))
    tl.store(peak_ptr + place, size, mask=valid)
    at = place[:, None] * RANK + column_c[None, :]
    tl.store(part_ptr + at, out, mask=(valid & found)[:, None] & (column_c < RANK)[None, :])


def mla_decode(
    q: Tensor, key_up: Tensor, value_up: Tensor, scale: float, latents: Tensor, tables: StepTables
) -> Tensor:
    """q: [T, H, N+R]; key_up: [H, N, C]; value_up: [H, V, C]; latents: [pages, PAGE_SIZE, C+R], those of the
    step included. Each token sees its sequence up to itself. Returns [T, H, V]."""
    num_rows, heads, _ = q.shape
    nope, rank = key_up.shape[1:]
    shared = q.shape[-1] - nope
    absorbed = torch.bmm(q[..., :nope].transpose(0, 1), key_up)
    values = pinned.pick(
        "mla_decode", gpu_name(q.device), rows=tables.longest * heads, sequences=tables.slots.shape[0]
    )
    splits, block_m = int(values["splits"]), dot_block(int(values["block_m"]))
    parts = torch.empty((splits, num_rows, heads, rank), dtype=q.dtype, device=q.device)
    sizes = torch.empty((splits, num_rows, heads), dtype=torch.float32, device=q.device)
    of_step = (tables.cu_seqlens, tables.context_lens, tables.page_table, tables.page_table.stride(0))
    num_sequences = tables.slots.shape[0]
    _attend_kernel[(triton.cdiv(tables.longest * heads, block_m), splits, num_sequences)](
        absorbed, absorbed.stride(0), absorbed.stride(1), q, q.stride(0), q.stride(1), latents, parts, sizes,
        *of_step, scale * math.log2(math.e), num_rows, splits,
        HEADS=heads, NOPE=nope, RANK=rank, SHARED=shared, PAGE=PAGE_SIZE, BLOCK_M=block_m,
        BLOCK_N=values["block_n"], BLOCK_C=dot_block(rank), BLOCK_S=dot_block(shared),
        PRECISION="ieee" if q.dtype == torch.float32 else "bf16", STAGES=values["num_stages"],
        num_warps=values["num_warps"],
    )  # fmt: skip
    context = torch.empty_like(absorbed)
    joined_kernel[(tables.longest, heads, num_sequences)](
        parts, sizes, context, tables.cu_seqlens, splits, num_rows, context.stride(0), context.stride(1),
        HEADS=heads, WIDTH=rank, BLOCK=triton.next_power_of_2(rank), SPLITS=triton.next_power_of_2(splits),
        GROUP=parts_at_once(splits),
        num_warps=values["join_warps"],
    )  # fmt: skip
    return torch.bmm(context, value_up.transpose(1, 2)).transpose(0, 1)

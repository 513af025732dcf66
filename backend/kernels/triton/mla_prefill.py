"""Expanded attention for many new tokens: keys and values of each head are made from the latents, a segment
of the sequence at a time, and attended in the ordinary way; the segments are joined in order.

Per query this is three times cheaper than to attend latents, but the expansion costs as much as 170 tokens
do; so it pays for long pieces. Segments bound the memory: expanded, a row takes a hundred times its latents.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.arguments import StepTables
from k3agent.backend.kernels.gpu import gpu_name
from k3agent.backend.kernels.pinned import Row
from k3agent.backend.kernels.triton.mla_attend import mla_decode
from k3agent.backend.kernels.triton.mla_parts import (
    dot_block,
    joined_kernel,
    load_keys,
    load_tile,
    multiply,
    parts_at_once,
    soften,
    soften_all,
)

pinned.pin(
    "mla_prefill",
    Row({
        "least_tokens": 160, "segment": 32768, "block_m": 128, "block_n": 64, "num_warps": 8, "num_stages": 2,
        "join_warps": 4,
    }),
    candidates={
        # `least_tokens` is the engine's EXPANDING_TOKENS
        "segment": [32768], "block_m": [64, 128], "block_n": [32, 64, 128],
        "num_warps": [4, 8], "num_stages": [2, 3], "join_warps": [4],
    },
)  # fmt: skip


@triton.jit
def _attend_keys(
    query, query_s, peak, total, out, kv_ptr, rows_ptr, head, place, count, last_seen, scale,
    HEADS: tl.constexpr, NOPE: tl.constexpr, RANK: tl.constexpr, SHARED: tl.constexpr, VALUE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Some keys and values of a segment, `place`, of which each query sees those up to its `last_seen`; not
    MASKED: each sees all, and all exist."""
    column_k, column_s, column_v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_V)
    exists = place < count if MASKED else place >= 0
    line = place.to(tl.int64)[:, None] * (HEADS * (NOPE + VALUE)) + head * (NOPE + VALUE)
    key = load_keys(kv_ptr, line + column_k[None, :], exists, column_k, NOPE, BLOCK_K, MASKED)
    shared_at = place[:, None] * (RANK + SHARED) + RANK + column_s[None, :]
    shared = load_keys(rows_ptr, shared_at, exists, column_s, SHARED, BLOCK_S, MASKED)
    scores = multiply(query, tl.trans(key), PRECISION) + multiply(query_s, tl.trans(shared), PRECISION)
    if MASKED:
        seen = (place[None, :] <= last_seen[:, None]) & exists[None, :]
        weights, factor, peak, total = soften(scores * scale, seen, peak, total)
    else:
        weights, factor, peak, total = soften_all(scores * scale, peak, total)
    value = load_keys(kv_ptr, line + NOPE + column_v[None, :], exists, column_v, VALUE, BLOCK_V, MASKED)
    out = out * factor[:, None] + multiply(weights.to(value.dtype), value, PRECISION)
    return peak, total, out


# numbers of the step: a kernel for each kind of number would be compiled while a user waits
@triton.jit(do_not_specialize=["sequence", "num_rows", "segment", "begin", "count", "context"])
def _segment_kernel(
    q_ptr, q_row, q_head, kv_ptr, rows_ptr, part_ptr, peak_ptr, cu_ptr, sequence, scale, num_rows, segment,
    begin, count, context,
    HEADS: tl.constexpr, NOPE: tl.constexpr, RANK: tl.constexpr, SHARED: tl.constexpr, VALUE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_V: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of tokens, heads. Rows `begin` to `begin + count` of the sequence lie expanded in kv_ptr,
    [count, H, NOPE+VALUE], and as latents in rows_ptr, [count, RANK+SHARED]."""
    head = tl.program_id(1)
    start = tl.load(cu_ptr + sequence)
    num_tokens = tl.load(cu_ptr + sequence + 1) - start
    first_token = tl.program_id(0) * BLOCK_M
    token = first_token + tl.arange(0, BLOCK_M)
    valid = token < num_tokens
    row = (start + token).to(tl.int64)
    column_k, column_s, column_v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_V)
    at = (row * q_row + head * q_head)[:, None]
    query = load_tile(q_ptr, at + column_k[None, :], valid, column_k, NOPE, BLOCK_K)
    query_s = load_tile(q_ptr, at + NOPE + column_s[None, :], valid, column_s, SHARED, BLOCK_S)
    last_token = tl.minimum(first_token + BLOCK_M, num_tokens)
    end = tl.minimum(count, context + last_token - begin)
    last_seen = context + token - begin
    peak = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    out = tl.zeros((BLOCK_M, BLOCK_V), dtype=tl.float32)
    offset = tl.arange(0, BLOCK_N)
    # most keys are seen by all queries: no need to ask
    seen_by_all = tl.maximum(tl.minimum(count, context + first_token + 1 - begin), 0) // BLOCK_N * BLOCK_N
    for position in tl.range(0, seen_by_all, BLOCK_N, num_stages=STAGES):
        peak, total, out = _attend_keys(
            query, query_s, peak, total, out, kv_ptr, rows_ptr, head, position + offset, count, last_seen,
            scale, HEADS, NOPE, RANK, SHARED, VALUE, BLOCK_K, BLOCK_S, BLOCK_V, PRECISION, False,
        )  # fmt: skip
    for position in tl.range(seen_by_all, end, BLOCK_N, num_stages=STAGES):
        peak, total, out = _attend_keys(
            query, query_s, peak, total, out, kv_ptr, rows_ptr, head, position + offset, count, last_seen,
            scale, HEADS, NOPE, RANK, SHARED, VALUE, BLOCK_K, BLOCK_S, BLOCK_V, PRECISION, True,
        )  # fmt: skip
    found = total > 0.0
    out = out / tl.where(found, total, 1.0)[:, None]
    to = (segment * num_rows + row) * HEADS + head
    size = tl.where(found, peak + tl.log2(tl.where(found, total, 1.0)), float("-inf"))
    tl.store(peak_ptr + to, size, mask=valid)
    mask = (valid & found)[:, None] & (column_v < VALUE)[None, :]
    tl.store(part_ptr + to[:, None] * VALUE + column_v[None, :], out, mask=mask)


def mla_prefill(
    q: Tensor,
    key_up: Tensor,
    value_up: Tensor,
    scale: float,
    latents: Tensor,
    tables: StepTables,
    pieces: Sequence[tuple[int, int]] | None = None,
) -> Tensor:
    """As mla_decode. `pieces`: tokens and cached tokens of each sequence, if the host knows them; without
    them, or where it is cheaper, latents are attended as they are."""
    values = pinned.pick("mla_prefill", gpu_name(q.device), heads=q.shape[1])
    if pieces is None or tables.longest < int(values["least_tokens"]):
        return mla_decode(q, key_up, value_up, scale, latents, tables)
    (num_rows, heads, _), (nope, rank), size = q.shape, key_up.shape[1:], int(values["segment"])
    num_segments = triton.cdiv(max(before + length for length, before in pieces), size)
    shape = (num_segments, num_rows, heads)
    parts = torch.empty((*shape, value_up.shape[1]), dtype=q.dtype, device=q.device)
    # a segment that a shorter sequence does not have weighs nothing
    sizes = torch.full(shape, -math.inf, dtype=torch.float32, device=q.device)
    up = torch.cat((key_up, value_up), dim=1).flatten(0, 1)
    for b, (length, before) in enumerate(pieces):
        end = before + length
        for segment in range(triton.cdiv(end, size) if length else 0):
            begin = segment * size
            last_page = triton.cdiv(min(begin + size, end), PAGE_SIZE)
            pages = tables.page_table[b, begin // PAGE_SIZE : last_page]
            rows = latents[pages.long()].flatten(0, 1)[: end - begin]
            place = _Place(b, segment, begin, before, length)
            kv = rows[:, :rank] @ up.t()
            _attend_segment(q, kv, rows, parts, sizes, tables, values, scale, place, nope)
    out = torch.empty((num_rows, heads, value_up.shape[1]), dtype=q.dtype, device=q.device)
    joined_kernel[(tables.longest, heads, tables.slots.shape[0])](
        parts, sizes, out, tables.cu_seqlens, num_segments, num_rows, out.stride(1), out.stride(0),
        HEADS=heads, WIDTH=out.shape[-1], BLOCK=triton.next_power_of_2(out.shape[-1]),
        SPLITS=triton.next_power_of_2(num_segments), GROUP=parts_at_once(num_segments),
        num_warps=values["join_warps"],
    )  # fmt: skip
    return out


@dataclass(frozen=True)
class _Place:
    """Which segment of which sequence, and what the host knows of it."""

    sequence: int
    segment: int
    begin: int
    context: int
    num_tokens: int


def _attend_segment(
    q: Tensor,
    kv: Tensor,
    rows: Tensor,
    parts: Tensor,
    sizes: Tensor,
    tables: StepTables,
    values: pinned.Values,
    scale: float,
    place: _Place,
    nope: int,
) -> None:
    _, heads, value = parts.shape[1:]
    shared = q.shape[-1] - nope
    block_m = int(values["block_m"])
    _segment_kernel[(triton.cdiv(place.num_tokens, block_m), heads)](
        q, q.stride(0), q.stride(1), kv, rows, parts, sizes, tables.cu_seqlens, place.sequence,
        scale * math.log2(math.e), q.shape[0], place.segment, place.begin, rows.shape[0], place.context,
        HEADS=heads, NOPE=nope, RANK=rows.shape[1] - shared, SHARED=shared, VALUE=value, BLOCK_M=block_m,
        BLOCK_N=values["block_n"], BLOCK_K=dot_block(nope), BLOCK_S=dot_block(shared),
        BLOCK_V=dot_block(value),
        PRECISION="ieee" if q.dtype == torch.float32 else "bf16", STAGES=values["num_stages"],
        num_warps=values["num_warps"],
    )  # fmt: skip

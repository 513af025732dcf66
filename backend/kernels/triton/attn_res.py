"""One read of the residual stream in one launch: what the last sublayer gave is added to the running sum, the
sum is mixed with the finished blocks (attention residuals), and the mixture is normed for the next sublayer.

A program has one row and reads each source once: the softmax over sources runs along. Without blocks it is an
addition with the norm that follows. Arithmetic as in kernels.reference.attn_res.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.gpu import gpu_name
from k3agent.backend.kernels.pinned import Row

pinned.pin(
    "stream_read",
    Row({"num_warps": 4}, most={"width": 2304}),
    Row({"num_warps": 16}, most={"rows": 132}),
    Row({"num_warps": 8}),
    candidates={"num_warps": [4, 8, 16]},
)


@triton.jit
def _load(ptr, column, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    if WIDTH == BLOCK:
        x = tl.load(ptr + column)
    else:
        x = tl.load(ptr + column, mask=column < WIDTH, other=0.0)
    return x


@triton.jit
def _running_sum(
    total_ptr, delta_ptr, column, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """The running sum with what is new, which is also stored."""
    kind = total_ptr.dtype.element_ty
    if ADDS:
        total = _load(delta_ptr, column, WIDTH, BLOCK).to(tl.float32)
        if not FIRST:
            total += _load(total_ptr, column, WIDTH, BLOCK).to(tl.float32)
        tl.store(total_ptr + column, total.to(kind), mask=column < WIDTH)
        total = total.to(kind)
    else:
        total = _load(total_ptr, column, WIDTH, BLOCK)
    return total.to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _read_kernel(
    sources_ptr, rms_ptr, delta_ptr, delta_stride, query_ptr, weight_ptr, out_ptr, mix_eps, norm_eps,
    num_rows,
    BLOCKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr, FIRST: tl.constexpr,
    MIXES: tl.constexpr,
):  # fmt: skip
    """Grid: rows."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    kind = sources_ptr.dtype.element_ty
    total_ptr = sources_ptr + (BLOCKS * num_rows + row) * WIDTH
    read = _running_sum(total_ptr, delta_ptr + row * delta_stride, column, WIDTH, BLOCK, ADDS, FIRST)
    inverse = tl.rsqrt(tl.sum(read * read, axis=0) / WIDTH + mix_eps)
    tl.store(rms_ptr + BLOCKS * num_rows + row, inverse)
    if MIXES:
        query = _load(query_ptr, column, WIDTH, BLOCK)
        peak = tl.sum(read * query, axis=0) * inverse
        weights = tl.exp(peak - peak)
        for block in tl.static_range(BLOCKS):
            source_ptr = sources_ptr + (block * num_rows + row) * WIDTH
            source = _load(source_ptr, column, WIDTH, BLOCK).to(tl.float32)
            score = tl.sum(source * query, axis=0) * tl.load(rms_ptr + block * num_rows + row)
            new_peak = tl.maximum(peak, score)
            factor, weight = tl.exp(peak - new_peak), tl.exp(score - new_peak)
            read = read * factor + source * weight
            weights = weights * factor + weight
            peak = new_peak
        read = (read / weights).to(kind).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(read * read, axis=0) / WIDTH + norm_eps)
    normed = (read * inverse).to(kind).to(tl.float32) * _load(weight_ptr, column, WIDTH, BLOCK).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, normed.to(kind), mask=column < WIDTH)


def read_stream(
    sources: Tensor,
    inverse_rms: Tensor,
    num_blocks: int,
    delta: Tensor | None,
    is_first: bool,
    query: Tensor | None,
    mix_eps: float,
    norm_weight: Tensor,
    norm_eps: float,
) -> Tensor:
    """Arguments and result as in kernels.reference.attn_res; sources and inverse_rms are contiguous."""
    num_rows, width = sources.shape[1:]
    out = torch.empty((num_rows, width), dtype=sources.dtype, device=sources.device)
    values = pinned.pick("stream_read", gpu_name(sources.device), rows=num_rows, width=width)
    added, asked = sources if delta is None else delta, norm_weight if query is None else query
    _read_kernel[(num_rows,)](
        sources, inverse_rms, added, added.stride(-2), asked, norm_weight, out, mix_eps, norm_eps,
        num_rows,
        BLOCKS=num_blocks, WIDTH=width, BLOCK=triton.next_power_of_2(width), ADDS=delta is not None,
        FIRST=is_first, MIXES=query is not None, num_warps=values["num_warps"],
    )  # fmt: skip
    return out

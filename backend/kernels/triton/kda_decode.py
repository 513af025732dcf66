"""KDA token by token, everything from the convolution to the gated norm in one launch: a program has one head
of one sequence and keeps its state in registers.

The arithmetic is that of kernels.reference.kda_layer. With blocks of V smaller than the head the norm, which
needs all of a head, and the tails, which all blocks read, come in a second launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.arguments import SHORT, KdaCache, KdaInputs, KdaWeights, StepTables
from k3agent.backend.kernels.gpu import gpu_name
from k3agent.backend.kernels.pinned import Row
from k3agent.backend.kernels.triton.kda_parts import (
    LOG2_E,
    convolve,
    gated_norm,
    log_decay,
    move_tails,
    power2,
    sigmoid,
    unit_rows,
)

pinned.pin(
    "kda_decode",
    Row({"block_v": 128, "num_warps": 8, "registers": 128, "norm_warps": 1}),
    candidates={
        "block_v": [16, 32, 64, 128],
        "num_warps": [1, 2, 4, 8, 16],
        "registers": [0, 64, 80, 128],
        "norm_warps": [1],
    },
)
"""`registers`: at most so many for a thread, so that more programs fit a processor; 0: no limit."""


@triton.jit
def _column(values):
    """[1, n] to [n]."""
    return tl.sum(values, axis=0)


@triton.jit
def _token(
    S, row, start, head, values_v, in_v, in_head, inner, keeps,
    x_ptr, x_stride, z_ptr, z_stride, beta_ptr, beta_stride, tail_ptr, taps_ptr, bias_ptr, a, lower_bound,
    l2_eps, scale, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TAPS: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """One token of one head: the new state and what it reads from it. All loads come first, so that none
    waits behind a barrier; what the columns of the state share is computed once and then spread."""
    WIDTH: tl.constexpr = 3 * HEADS * HEAD_DIM
    rows = row + tl.arange(0, 1)
    valid = rows >= 0
    at = head * HEAD_DIM + inner
    q = convolve(x_ptr, x_stride, tail_ptr, taps_ptr, at, in_head, rows, valid, start, keeps, WIDTH, TAPS)
    k_at = at + HEADS * HEAD_DIM
    k = convolve(x_ptr, x_stride, tail_ptr, taps_ptr, k_at, in_head, rows, valid, start, keeps, WIDTH, TAPS)
    v_at = (2 * HEADS + head) * HEAD_DIM + values_v
    v = convolve(x_ptr, x_stride, tail_ptr, taps_ptr, v_at, in_v, rows, valid, start, keeps, WIDTH, TAPS)
    z_at = rows.to(tl.int64)[:, None] * z_stride + at[None, :]
    z = tl.load(z_ptr + z_at, mask=in_head[None, :], other=0.0).to(tl.float32)
    z += tl.load(bias_ptr + at, mask=in_head, other=0.0)[None, :]
    beta = sigmoid(tl.load(beta_ptr + row.to(tl.int64) * beta_stride + head).to(tl.float32))
    decay = power2(log_decay(z, a, lower_bound, BOUNDED) * LOG2_E)
    q, k = unit_rows(q, l2_eps) * scale, unit_rows(k, l2_eps)
    overlap = tl.sum(tl.sum(q * k, axis=1), axis=0)
    q, k, v, decay = _column(q), _column(k), _column(v), _column(decay)
    S = S * decay[:, None]
    update = beta * (v - tl.sum(S * k[:, None], axis=0))
    # what q reads from the new state, without waiting for it
    o = tl.sum(S * q[:, None], axis=0) + overlap * update
    return S + k[:, None] * update[None, :], o


@triton.jit
def _recurrent_kernel(
    x_ptr, x_stride, z_ptr, z_stride, beta_ptr, beta_stride, gate_ptr, gate_stride, y_ptr,
    tails_ptr, states_ptr, taps_ptr, a_log_ptr, bias_ptr, norm_ptr,
    cu_ptr, slots_ptr, has_state_ptr, exports_ptr, lower_bound, norm_eps, l2_eps, scale, most_tokens,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    TAPS: tl.constexpr, TAIL: tl.constexpr, BOUNDED: tl.constexpr, EXPORTS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of V, heads, sequences. Sequences with more than `most_tokens` are left to others."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    slot, keeps = tl.load(slots_ptr + sequence), tl.load(has_state_ptr + sequence)
    if stop - start > most_tokens:
        stop = start
    inner = tl.arange(0, BLOCK_K)
    in_head = inner < HEAD_DIM
    values_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_v = values_v < HEAD_DIM
    square = in_head[:, None] & in_v[None, :]
    # wide, so that rows are constants away from one address
    place = inner[:, None].to(tl.int64) * HEAD_DIM + values_v[None, :]
    STATE: tl.constexpr = HEADS * HEAD_DIM * HEAD_DIM
    states_ptr += head * (HEAD_DIM * HEAD_DIM)
    state_ptr = states_ptr + slot.to(tl.int64) * STATE
    S = tl.load(state_ptr + place, mask=square & (keeps != 0) & (stop > start), other=0.0)
    a = tl.exp(tl.load(a_log_ptr + head))
    tail_ptr = tails_ptr + slot.to(tl.int64) * ((TAPS - 1) * 3 * HEADS * HEAD_DIM)
    weight = tl.load(norm_ptr + values_v, mask=in_v, other=0.0)
    for count in range(stop - start):
        row = start + count
        gate_at = row.to(tl.int64) * gate_stride + head * HEAD_DIM + values_v
        gate = tl.load(gate_ptr + gate_at, mask=in_v & WHOLE, other=0.0).to(tl.float32)
        S, o = _token(
            S, row, start, head, values_v, in_v, in_head, inner, keeps,
            x_ptr, x_stride, z_ptr, z_stride, beta_ptr, beta_stride, tail_ptr, taps_ptr, bias_ptr, a,
            lower_bound, l2_eps, scale, HEADS, HEAD_DIM, TAPS, BOUNDED,
        )  # fmt: skip
        at = row.to(tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM + values_v
        o = o.to(y_ptr.dtype.element_ty)
        if WHOLE:
            y = gated_norm(o.to(tl.float32)[None, :], gate[None, :], weight, norm_eps, HEAD_DIM)
            o = _column(y).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + at, o, mask=in_v)
        if EXPORTS:
            target = tl.load(exports_ptr + row)
            if target >= 0:
                tl.store(states_ptr + target.to(tl.int64) * STATE + place, S, mask=square)
                if WHOLE:
                    move_tails(
                        x_ptr, x_stride, tails_ptr, slot, target, head, start, row + 1, keeps,
                        HEADS, HEAD_DIM, BLOCK_K, TAPS, TAIL,
                    )  # fmt: skip
    if stop > start:
        tl.store(state_ptr + place, S, mask=square)
        if WHOLE:
            tl.debug_barrier()
            move_tails(
                x_ptr, x_stride, tails_ptr, slot, slot, head, start, stop, keeps,
                HEADS, HEAD_DIM, BLOCK_K, TAPS, TAIL,
            )  # fmt: skip


@triton.jit
def _finish_kernel(
    x_ptr, x_stride, gate_ptr, gate_stride, y_ptr, tails_ptr, norm_ptr,
    cu_ptr, slots_ptr, has_state_ptr, exports_ptr, norm_eps, most_tokens,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, TAIL: tl.constexpr,
    EXPORTS: tl.constexpr,
):  # fmt: skip
    """Grid: heads, sequences. The gated norm of what the recurrence left in y, and the tails."""
    head, sequence = tl.program_id(0), tl.program_id(1)
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    slot, keeps = tl.load(slots_ptr + sequence), tl.load(has_state_ptr + sequence)
    if stop - start > most_tokens:
        stop = start
    inner = tl.arange(0, BLOCK)
    in_head = inner < HEAD_DIM
    weight = tl.load(norm_ptr + inner, mask=in_head, other=0.0)
    for count in range(stop - start):
        row = start + count
        at = row.to(tl.int64) * (HEADS * HEAD_DIM) + head * HEAD_DIM + inner
        o = tl.load(y_ptr + at, mask=in_head, other=0.0).to(tl.float32)
        gate_at = row.to(tl.int64) * gate_stride + head * HEAD_DIM + inner
        gate = tl.load(gate_ptr + gate_at, mask=in_head, other=0.0).to(tl.float32)
        y = gated_norm(o[None, :], gate[None, :], weight, norm_eps, HEAD_DIM)
        tl.store(y_ptr + at, _column(y).to(y_ptr.dtype.element_ty), mask=in_head)
        if EXPORTS:
            target = tl.load(exports_ptr + row)
            if target >= 0:
                move_tails(
                    x_ptr, x_stride, tails_ptr, slot, target, head, start, row + 1, keeps,
                    HEADS, HEAD_DIM, BLOCK, TAPS, TAIL,
                )  # fmt: skip
    if stop > start:
        tl.debug_barrier()
        move_tails(
            x_ptr, x_stride, tails_ptr, slot, slot, head, start, stop, keeps,
            HEADS, HEAD_DIM, BLOCK, TAPS, TAIL,
        )  # fmt: skip


def recurrent(
    inputs: KdaInputs, weights: KdaWeights, cache: KdaCache, tables: StepTables, y: Tensor, most_tokens: int
) -> None:
    """Advance the sequences of at most `most_tokens` tokens and write their rows of y, [T, H*V]."""
    heads, dim, taps = weights.heads, weights.head_dim, weights.taps.shape[0]
    num_sequences = tables.slots.shape[0]
    values = pinned.pick("kda_decode", gpu_name(y.device), sequences=num_sequences, heads=heads)
    block = triton.next_power_of_2(dim)
    block_v = min(int(values["block_v"]), block)
    is_whole = block_v == block
    exports = tables.cu_seqlens if tables.exports is None else tables.exports
    of_layer = {
        "HEADS": heads,
        "HEAD_DIM": dim,
        "TAPS": taps,
        "TAIL": triton.next_power_of_2(max(taps - 1, 1)),
    }
    of_layer["EXPORTS"] = tables.exports is not None
    of_step = (tables.cu_seqlens, tables.slots, tables.has_state, exports)
    gate = (inputs.gate, inputs.gate.stride(0))
    _recurrent_kernel[(block // block_v, heads, num_sequences)](
        inputs.qkv, inputs.qkv.stride(0), inputs.z, inputs.z.stride(0), inputs.beta, inputs.beta.stride(0),
        *gate, y, cache.tails, cache.states, weights.taps, weights.A_log, weights.dt_bias, weights.norm,
        *of_step, weights.lower_bound or 0.0, weights.norm_eps, weights.l2_eps, dim**-0.5, most_tokens,
        BLOCK_K=block, BLOCK_V=block_v, BOUNDED=weights.lower_bound is not None, WHOLE=is_whole,
        num_warps=values["num_warps"], num_stages=1, maxnreg=values.get("registers") or None, **of_layer,
    )  # fmt: skip
    if not is_whole:
        _finish_kernel[(heads, num_sequences)](
            inputs.qkv, inputs.qkv.stride(0), *gate, y, cache.tails, weights.norm, *of_step,
            weights.norm_eps, most_tokens, BLOCK=block, num_warps=values["norm_warps"], **of_layer,
        )  # fmt: skip


def kda_decode(inputs: KdaInputs, weights: KdaWeights, cache: KdaCache, tables: StepTables) -> Tensor:
    """Advance all sequences token by token. Returns [T, H*V] in the activation dtype, before the output
    projection; rows of padding are not written."""
    y = torch.empty_like(inputs.z, memory_format=torch.contiguous_format)
    recurrent(inputs, weights, cache, tables, y, max(tables.longest, SHORT))
    return y

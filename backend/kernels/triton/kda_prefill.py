"""KDA over many tokens: chunks in parallel (kda_chunk), then a walk over them with the state in registers.

Every result of a sequence depends on its own tokens and on how far they lie behind its first token in the
step, and on nothing else: a prefill in pieces that begin at multiples of 64 tokens gives the same bits as one
in a single piece, alone or with others, if no piece is as short as SHORT. So configurations must not depend
on the number of tokens.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.arguments import CHUNK, SHORT, KdaCache, KdaInputs, KdaWeights, StepTables
from k3agent.backend.kernels.gpu import gpu_name
from k3agent.backend.kernels.pinned import Row
from k3agent.backend.kernels.triton.kda_chunk import (
    add_dot,
    apply_kernel,
    dot,
    gates_kernel,
    invert_kernel,
    scores_kernel,
)
from k3agent.backend.kernels.triton.kda_decode import recurrent
from k3agent.backend.kernels.triton.kda_parts import fetch_ahead, gated_norm, move_tails, power2
from k3agent.backend.kernels.triton.mla_parts import dot_block

TILE = 16
_AHEAD = tl.constexpr(256)
"""Chunks that are looked through at once for states that are wanted."""

_CHUNKS = {
    "scores": "bf16",
    "solve": "tf32x3",
    "apply": "bf16",
    "walk": "bf16",
    "walk_ahead": 1,
    "walk_form": "upright/2",
    "gate_warps": 1,
    "chunk_warps": 8,
    "chunk_form": "32/128",
    "solve_form": "1/0",
    "apply_form": "64/128",
    "apply_warps": 4,
    "norm_warps": 4,
}
"""What does not depend on the number of heads. `chunk_form` and `apply_form`: columns of a head at a time,
and registers of a thread if they are limited, so that more programs fit a processor at the price of some
spilling; `solve_form`: warps, and the same limit; `walk_form`: how the state lies, and stages; `walk_ahead`:
chunks that the L2 cache is filled ahead. The fewer heads, the narrower are the blocks of the walk, so that
there are programs for the whole GPU. A block of all of V also norms."""

_MOST_EXACT = 32
"""Columns at a time with fp32 inputs, whose tiles are twice as large and whose products take more
registers."""

pinned.pin(
    "kda_prefill",
    Row({**_CHUNKS, "block_v": 16, "walk_warps": 4, "walk_form": "upright/3"}, most={"heads": 16}),
    Row({**_CHUNKS, "block_v": 32, "walk_warps": 4, "walk_form": "upright/3"}, most={"heads": 33}),
    Row({**_CHUNKS, "block_v": 64, "walk_warps": 4, "walk_form": "upright/2"}, most={"heads": 66}),
    Row({**_CHUNKS, "block_v": 128, "walk_warps": 8, "walk_form": "turned/3"}),
    candidates={
        "block_v": [16, 32, 64, 128], "walk_warps": [4, 8], "walk_ahead": [0, 1, 2],
        "walk_form": ["upright/1", "upright/2", "upright/3", "turned/2", "turned/3"],
        "chunk_warps": [4, 8],
        "chunk_form": ["32/128", "32/0", "64/0", "64/128", "16/128", "32/168"],
        "solve": ["tf32x3", "ieee", "tf32"], "solve_form": ["1/0", "1/128", "2/0", "4/0"],
        "apply_form": ["64/128", "32/0", "64/0", "32/80", "128/128"], "apply_warps": [4, 8],
        "gate_warps": [1, 2, 4], "norm_warps": [4, 8],
    },
)  # fmt: skip


def _values(heads: int, dtype: torch.dtype, device: torch.device) -> dict[str, int | str]:
    """The configuration; for fp32 inputs one that is exact and fits."""
    # rows that were measured before there was a value lack it
    values = {**_CHUNKS, **pinned.pick("kda_prefill", gpu_name(device), heads=heads)}
    if dtype == torch.float32:
        values |= dict.fromkeys(("scores", "solve", "apply", "walk"), "ieee")
        for name in ("chunk_form", "apply_form"):
            values[name] = f"{min(_split(values[name])[0], _MOST_EXACT)}/0"
        values |= {
            "block_v": min(int(values["block_v"]), _MOST_EXACT),
            "walk_warps": 8,
            "walk_form": "upright/1",
        }
    return values


def _split(form: int | str) -> tuple[int, int]:
    """The two numbers of a form."""
    first, registers = str(form).split("/")
    return int(first), int(registers)


@triton.jit
def _load_chunk(
    number, first, head, start, stop, gate_ptr, gate_stride, w_ptr, u_ptr, q_ptr, k_ptr, b_ptr, l_ptr,
    factors_ptr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The tiles of a chunk, the decay to its end, the factors of its queries and its gate."""
    index, inner = tl.arange(0, CHUNK), tl.arange(0, BLOCK)
    values_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = ((first + number) * HEADS + head) * CHUNK
    tile = place * BLOCK + index[:, None] * BLOCK + inner[None, :]
    narrow = place * BLOCK + index[:, None] * BLOCK + values_v[None, :]
    w, u, q, k = tl.load(w_ptr + tile), tl.load(u_ptr + narrow), tl.load(q_ptr + tile), tl.load(k_ptr + tile)
    scores = tl.load(b_ptr + place * CHUNK + index[:, None] * CHUNK + index[None, :])
    end = tl.load(l_ptr + place * BLOCK + (CHUNK - 1) * BLOCK + inner)
    q_factor = tl.load(factors_ptr + 2 * place + index)
    gate = u
    if WHOLE:
        rows = start + number * CHUNK + index
        at = rows.to(tl.int64)[:, None] * gate_stride + (head * HEAD_DIM + values_v)[None, :]
        mask = (rows < stop)[:, None] & (values_v < HEAD_DIM)[None, :]
        gate = tl.load(gate_ptr + at, mask=mask, other=0.0)
    return w, u, q, k, scores, end, q_factor, gate


@triton.jit
def _advance(S, w, u, q, k, scores, end, q_factor, PREC: tl.constexpr):
    """One chunk: the state behind it, and what its rows read."""
    update = u.to(tl.float32) - dot(w, S, PREC)
    o = add_dot(dot(q, S, PREC), scores, update, PREC) * q_factor[:, None]
    return add_dot(S * power2(end)[:, None], tl.trans(k), update, PREC), o


@triton.jit
def _advance_turned(S, w, u, q, k, scores, end, q_factor, PREC: tl.constexpr):
    """The same with the state turned, [V, K]: a warp then has the same rows in all products, which pass their
    results on in registers, and more warps than four need not repeat what others do."""
    update = tl.trans(u).to(tl.float32) - dot(S, tl.trans(w), PREC)
    o = add_dot(dot(S, tl.trans(q), PREC), update, tl.trans(scores), PREC) * q_factor[None, :]
    return add_dot(S * power2(end)[None, :], update, k, PREC), tl.trans(o)


@triton.jit
def _store_rows(
    o, gate, weight, y_ptr, head, rows, stop, values_v, eps,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Store the rows of a head, with the norm if they have all of it."""
    o = o.to(y_ptr.dtype.element_ty)
    if WHOLE:
        y = gated_norm(o.to(tl.float32), gate.to(tl.float32), weight, eps, HEAD_DIM)
        o = y.to(y_ptr.dtype.element_ty)
    at = rows.to(tl.int64)[:, None] * (HEADS * HEAD_DIM) + (head * HEAD_DIM + values_v)[None, :]
    tl.store(y_ptr + at, o, mask=(rows < stop)[:, None] & (values_v < HEAD_DIM)[None, :])


@triton.jit
def _fetch_chunk(
    number, first, head, start, stop, gate_ptr, gate_stride, w_ptr, u_ptr, q_ptr, k_ptr,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Let most of what a chunk reads come into the L2 cache."""
    LINE: tl.constexpr = 1024 // w_ptr.dtype.element_ty.primitive_bitwidth
    place = ((first + number) * HEADS + head) * CHUNK
    at = place * BLOCK + tl.arange(0, CHUNK * BLOCK // LINE) * LINE
    fetch_ahead(w_ptr, at)
    fetch_ahead(u_ptr, at)
    fetch_ahead(q_ptr, at)
    fetch_ahead(k_ptr, at)
    row = tl.minimum(start + number * CHUNK + tl.arange(0, CHUNK), stop - 1).to(tl.int64)
    fetch_ahead(gate_ptr, row * gate_stride + head * HEAD_DIM)
    fetch_ahead(gate_ptr, row * gate_stride + head * HEAD_DIM + (HEAD_DIM - 1))


@triton.jit
def _walk_some(
    S, begin, end, first, start, stop, head, gate_ptr, gate_stride, norm_ptr, y_ptr,
    w_ptr, u_ptr, q_ptr, k_ptr, b_ptr, l_ptr, factors_ptr, eps,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr, WHOLE: tl.constexpr, PREC: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    TURNED: tl.constexpr,
):  # fmt: skip
    """Some chunks of a sequence with tiles from `first` on. Nothing here may keep loads from running ahead.
    With two stages they do so no further than to the end of the chunk before; so the L2 cache is filled
    earlier, AHEAD chunks."""
    index = tl.arange(0, CHUNK)
    values_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    for number in tl.range(begin, end, num_stages=STAGES):
        if AHEAD > 0:
            _fetch_chunk(
                tl.minimum(number + AHEAD, end - 1), first, head, start, stop, gate_ptr, gate_stride,
                w_ptr, u_ptr, q_ptr, k_ptr, HEADS, HEAD_DIM, BLOCK, CHUNK,
            )  # fmt: skip
        w, u, q, k, scores, total, q_factor, gate = _load_chunk(
            number, first, head, start, stop, gate_ptr, gate_stride, w_ptr, u_ptr, q_ptr, k_ptr, b_ptr, l_ptr,
            factors_ptr, HEADS, HEAD_DIM, BLOCK, BLOCK_V, CHUNK, WHOLE,
        )  # fmt: skip
        if TURNED:
            S, o = _advance_turned(S, w, u, q, k, scores, total, q_factor, PREC)
        else:
            S, o = _advance(S, w, u, q, k, scores, total, q_factor, PREC)
        rows = start + number * CHUNK + index
        weight = tl.load(norm_ptr + values_v, mask=values_v < HEAD_DIM, other=0.0)
        _store_rows(o, gate, weight, y_ptr, head, rows, stop, values_v, eps, HEADS, HEAD_DIM, WHOLE)
    return S


@triton.jit
def _next_export(exports_ptr, begin, start, stop, CHUNK: tl.constexpr):
    """The end of the chunks up to the next whose state is wanted as well, or of as many as are looked through
    at once, or of all."""
    number = begin + tl.arange(0, _AHEAD)
    row = start + (number + 1) * CHUNK - 1
    target = tl.load(exports_ptr + row, mask=row < stop, other=-1)
    most = tl.minimum(begin + _AHEAD, tl.cdiv(stop - start, CHUNK))
    return tl.min(tl.where(target >= 0, number + 1, most))


@triton.jit
def _walk_kernel(
    x_ptr, x_stride, gate_ptr, gate_stride, norm_ptr, y_ptr, tails_ptr, states_ptr,
    cu_ptr, slots_ptr, has_state_ptr, exports_ptr, w_ptr, u_ptr, q_ptr, k_ptr, b_ptr, l_ptr, factors_ptr,
    eps, most_short,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr, TAPS: tl.constexpr, TAIL: tl.constexpr, EXPORTS: tl.constexpr, WHOLE: tl.constexpr,
    PREC: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
    TURNED: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of V, heads, sequences."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    if stop - start <= most_short:
        return
    slot, keeps = tl.load(slots_ptr + sequence), tl.load(has_state_ptr + sequence)
    inner = tl.arange(0, BLOCK)
    values_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    square = (inner < HEAD_DIM)[:, None] & (values_v < HEAD_DIM)[None, :]
    STATE: tl.constexpr = HEADS * HEAD_DIM * HEAD_DIM
    at_state = (head * HEAD_DIM + inner)[:, None] * HEAD_DIM + values_v[None, :]
    if TURNED:
        square, at_state = tl.trans(square), tl.trans(at_state)
    state_ptr = states_ptr + slot.to(tl.int64) * STATE
    S = tl.load(state_ptr + at_state, mask=square & (keeps != 0), other=0.0)
    first = (start // CHUNK + sequence).to(tl.int64)
    number, count = 0, tl.cdiv(stop - start, CHUNK)
    if EXPORTS:
        while number < count:
            begin = number
            number = _next_export(exports_ptr, begin, start, stop, CHUNK)
            S = _walk_some(
                S, begin, number, first, start, stop, head, gate_ptr, gate_stride, norm_ptr, y_ptr,
                w_ptr, u_ptr, q_ptr, k_ptr, b_ptr, l_ptr, factors_ptr, eps,
                HEADS, HEAD_DIM, BLOCK, BLOCK_V, CHUNK, WHOLE, PREC, STAGES, AHEAD, TURNED,
            )  # fmt: skip
            end = start + number * CHUNK
            target = tl.load(exports_ptr + end - 1, mask=end <= stop, other=-1)
            if target >= 0:
                tl.store(states_ptr + target.to(tl.int64) * STATE + at_state, S, mask=square)
                if tl.program_id(0) == 0:
                    move_tails(
                        x_ptr, x_stride, tails_ptr, slot, target, head, start, end, keeps,
                        HEADS, HEAD_DIM, BLOCK, TAPS, TAIL,
                    )  # fmt: skip
    else:
        S = _walk_some(
            S, number, count, first, start, stop, head, gate_ptr, gate_stride, norm_ptr, y_ptr,
            w_ptr, u_ptr, q_ptr, k_ptr, b_ptr, l_ptr, factors_ptr, eps,
            HEADS, HEAD_DIM, BLOCK, BLOCK_V, CHUNK, WHOLE, PREC, STAGES, AHEAD, TURNED,
        )  # fmt: skip
    tl.store(state_ptr + at_state, S, mask=square)
    if tl.program_id(0) == 0:
        tl.debug_barrier()
        move_tails(
            x_ptr, x_stride, tails_ptr, slot, slot, head, start, stop, keeps,
            HEADS, HEAD_DIM, BLOCK, TAPS, TAIL,
        )  # fmt: skip


@triton.jit
def _norm_kernel(
    gate_ptr, gate_stride, norm_ptr, y_ptr, cu_ptr, eps, most_short,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid: heads, chunks of a sequence, sequences. The gated norm in place in y."""
    head, number, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    if (stop - start <= most_short) | (start + number * CHUNK >= stop):
        return
    rows = start + number * CHUNK + tl.arange(0, CHUNK)
    valid = rows < stop
    inner = tl.arange(0, BLOCK)
    in_head = inner < HEAD_DIM
    mask = valid[:, None] & in_head[None, :]
    at = rows.to(tl.int64)[:, None] * (HEADS * HEAD_DIM) + (head * HEAD_DIM + inner)[None, :]
    o = tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32)
    gate_at = rows.to(tl.int64)[:, None] * gate_stride + (head * HEAD_DIM + inner)[None, :]
    gate = tl.load(gate_ptr + gate_at, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(norm_ptr + inner, mask=in_head, other=0.0)
    y = gated_norm(o, gate, weight, eps, HEAD_DIM)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@dataclass
class _Tiles:
    """What the chunks leave for the walk, by chunk and head; chunks of one sequence follow each other."""

    w: Tensor
    u: Tensor
    q: Tensor
    k: Tensor
    scores: Tensor
    system: Tensor
    decay: Tensor
    factors: Tensor
    """Of each row of q and of k; these stand in their tiles without them."""

    @classmethod
    def make(
        cls, num_chunks: int, heads: int, block: int, dtype: torch.dtype, device: torch.device
    ) -> "_Tiles":
        def tiles(width: int, kind: torch.dtype) -> Tensor:
            return torch.empty((num_chunks, heads, CHUNK, width), dtype=kind, device=device)

        wide = torch.float32
        four = [tiles(block, dtype) for _ in range(4)]
        return cls(*four, tiles(CHUNK, dtype), tiles(CHUNK, wide), tiles(block, wide), tiles(2, wide))


def _fill(
    t: _Tiles, inputs: KdaInputs, weights: KdaWeights, cache: KdaCache, tables: StepTables,
    values: pinned.Values, most_short: int,
) -> None:  # fmt: skip
    """All chunks of the sequences of more than `most_short` tokens."""
    heads, dim, taps, block = weights.heads, weights.head_dim, weights.taps.shape[0], t.w.shape[3]
    (columns, registers), (part, most) = _split(values["chunk_form"]), _split(values["apply_form"])
    solve_warps, solve_most = _split(values["solve_form"])
    part = min(part, block)
    grid = (heads, triton.cdiv(tables.longest, CHUNK), tables.slots.shape[0])
    of_layer = {"HEADS": heads, "HEAD_DIM": dim, "BLOCK": block, "CHUNK": CHUNK}
    beta, x = (inputs.beta, inputs.beta.stride(0)), (inputs.qkv, inputs.qkv.stride(0))
    of_rows = (*x, *beta, cache.tails, weights.taps, tables.cu_seqlens, tables.slots, tables.has_state)
    gates_kernel[grid](
        inputs.z, inputs.z.stride(0), weights.A_log, weights.dt_bias, tables.cu_seqlens, t.decay,
        weights.lower_bound or 0.0, most_short, BOUNDED=weights.lower_bound is not None, **of_layer,
        num_warps=values["gate_warps"],
    )  # fmt: skip
    scores_kernel[grid](
        *of_rows, t.w, t.q, t.k, t.scores, t.system, t.decay, t.factors, weights.l2_eps, dim**-0.5,
        most_short,
        PART=min(columns, block), TAPS=taps, SAFE=weights.has_safe_gate, SCORES=values["scores"], **of_layer,
        num_warps=values["chunk_warps"], maxnreg=registers or None,
    )  # fmt: skip
    invert_kernel[grid](
        tables.cu_seqlens, t.system, most_short, HEADS=heads, CHUNK=CHUNK, TILE=TILE, SOLVE=values["solve"],
        num_warps=solve_warps, maxnreg=solve_most or None,
    )  # fmt: skip
    apply_kernel[(heads * (block // part), *grid[1:])](
        *of_rows, t.w, t.u, t.system, t.factors, most_short,
        PART=part, TAPS=taps, APPLY=values["apply"], **of_layer, num_warps=values["apply_warps"],
        maxnreg=most or None,
    )  # fmt: skip


def chunkwise(
    inputs: KdaInputs, weights: KdaWeights, cache: KdaCache, tables: StepTables, y: Tensor, most_short: int
) -> None:
    """Advance the sequences of more than `most_short` tokens and write their rows of y, [T, H*V]."""
    heads, dim, taps = weights.heads, weights.head_dim, weights.taps.shape[0]
    values = _values(heads, inputs.qkv.dtype, y.device)
    walk = values["walk"]
    block = dot_block(dim)
    num_sequences, most_chunks = tables.slots.shape[0], triton.cdiv(tables.longest, CHUNK)
    tile_dtype = torch.bfloat16 if walk == "bf16" else torch.float32
    t = _Tiles.make(y.shape[0] // CHUNK + num_sequences, heads, block, tile_dtype, y.device)
    _fill(t, inputs, weights, cache, tables, values, most_short)
    of_layer = {"HEADS": heads, "HEAD_DIM": dim, "BLOCK": block, "CHUNK": CHUNK}
    of_step = (tables.cu_seqlens, tables.slots, tables.has_state)
    x, gate = (inputs.qkv, inputs.qkv.stride(0)), (inputs.gate, inputs.gate.stride(0))
    block_v = min(int(values["block_v"]), block)
    form, stages = str(values["walk_form"]).split("/")
    exports = tables.cu_seqlens if tables.exports is None else tables.exports
    _walk_kernel[(block // block_v, heads, num_sequences)](
        *x, *gate, weights.norm, y, cache.tails, cache.states, *of_step, exports,
        t.w, t.u, t.q, t.k, t.scores, t.decay, t.factors, weights.norm_eps, most_short,
        BLOCK_V=block_v, TAPS=taps, TAIL=triton.next_power_of_2(max(taps - 1, 1)), WHOLE=block_v == block,
        EXPORTS=tables.exports is not None, PREC=walk, STAGES=int(stages),
        AHEAD=values["walk_ahead"], TURNED=form == "turned" and block_v >= CHUNK,
        num_warps=values["walk_warps"], **of_layer,
    )  # fmt: skip
    if block_v < block:
        _norm_kernel[(heads, most_chunks, num_sequences)](
            *gate, weights.norm, y, tables.cu_seqlens, weights.norm_eps, most_short,
            num_warps=values["norm_warps"], **of_layer,
        )  # fmt: skip


def kda_prefill(inputs: KdaInputs, weights: KdaWeights, cache: KdaCache, tables: StepTables) -> Tensor:
    """Advance all sequences, short ones token by token. Returns [T, H*V] in the activation dtype, before the
    output projection; rows of padding are not written."""
    y = torch.empty_like(inputs.z, memory_format=torch.contiguous_format)
    # The walk leaves short sequences to the recurrence, wherever they are in a step.
    if tables.shortest <= SHORT:
        recurrent(inputs, weights, cache, tables, y, SHORT)
    if tables.longest > SHORT:
        chunkwise(inputs, weights, cache, tables, y, SHORT)
    return y

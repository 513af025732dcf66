"""Grouped products of routed experts: gate and up with their activation, then down with the routing weight.

Weights are the left operand (rows of a tile are output columns), so that few tokens cost few columns and
packed weights go from memory to registers to the matrix unit. One program walks over one expert's columns for
one block of choices; every weight that is wanted is read once for each block of its expert.
MXFP4: two bytes hold four columns, so inputs come as four planes, of every fourth column each, and no value
moves between threads. A code is shifted into sign and exponent of bf16 as it is (2^-126 times its value) and
the scale, times 2^126, brings it up again: exact, denormals included.
"""

import triton
import triton.language as tl

from k3agent.backend.kernels import experts
from k3agent.backend.kernels.triton.rows import activate

GROUP = tl.constexpr(32)
PLANES = tl.constexpr(experts.PLANES)


@triton.jit
def _codes(packed, ASM: tl.constexpr):
    """The four planes of packed codes, times 2^-126: of each code the sign at bit 15, the rest at 6 to 8."""
    if ASM:
        # Two elements to a register and one code left in each half of it; the product puts the code to bits
        # 6 to 9 and once more to bits 12 to 15, of which a mask keeps what is wanted.
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b32 x;
            and.b32 x, $4, 0x000F000F; mul.lo.u32 x, x, 0x1040; and.b32 $0, x, 0x81C081C0;
            and.b32 x, $4, 0x00F000F0; mul.lo.u32 x, x, 0x104; and.b32 $1, x, 0x81C081C0;
            shr.b32 x, $4, 8; and.b32 x, x, 0x000F000F; mul.lo.u32 x, x, 0x1040; and.b32 $2, x, 0x81C081C0;
            shr.b32 x, $4, 8; and.b32 x, x, 0x00F000F0; mul.lo.u32 x, x, 0x104; and.b32 $3, x, 0x81C081C0;
            }""",
            "=&r,=&r,=&r,=&r,r", [packed], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        codes = packed.to(tl.uint16, bitcast=True)
        a = (((codes & 0x8) << 12) | ((codes & 0x7) << 6)).to(tl.bfloat16, bitcast=True)
        b = (((codes & 0x80) << 8) | ((codes & 0x70) << 2)).to(tl.bfloat16, bitcast=True)
        c = (((codes & 0x800) << 4) | ((codes & 0x700) >> 2)).to(tl.bfloat16, bitcast=True)
        d = ((codes & 0x8000) | ((codes & 0x7000) >> 6)).to(tl.bfloat16, bitcast=True)
    return a, b, c, d


@triton.jit
def _factors(scale, row, k, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """2^126 times the scales of a tile as bf16, one for each four columns of it."""
    groups = tl.arange(0, BLOCK_K // GROUP) + k // GROUP
    factor = tl.load(scale + row[:, None] * (K // GROUP) + groups[None, :])
    factor = ((factor.to(tl.uint16) + 126) << 7).to(tl.bfloat16, bitcast=True)
    factor = tl.broadcast_to(factor[:, :, None], (BLOCK_N, BLOCK_K // GROUP, GROUP // PLANES))
    return tl.reshape(factor, (BLOCK_N, BLOCK_K // PLANES))


@triton.jit
def _dot(
    acc, w, scale, row, k, x0, x1, x2, x3,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PACKED: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """acc [BLOCK_N, BLOCK_M] plus one tile of weights times one tile of inputs."""
    if PACKED:
        at = tl.arange(0, BLOCK_K // PLANES) + k // PLANES
        packed = tl.load(w + row[:, None] * (K // PLANES) + at[None, :])
        factor = _factors(scale, row, k, K, BLOCK_N, BLOCK_K)
        a, b, c, d = _codes(packed, ASM)
        acc = tl.dot(a * factor, x0, acc)
        acc = tl.dot(b * factor, x1, acc)
        acc = tl.dot(c * factor, x2, acc)
        acc = tl.dot(d * factor, x3, acc)
    else:
        at = tl.arange(0, BLOCK_K) + k
        acc = tl.dot(tl.load(w + row[:, None] * K + at[None, :]), x0, acc)
    return acc


@triton.jit
def _inputs(x, tokens, is_there, k, K: tl.constexpr, BLOCK_K: tl.constexpr, PACKED: tl.constexpr):
    """Columns k to k + BLOCK_K of some tokens, [BLOCK_K, BLOCK_M]: their four planes, or four times all."""
    if PACKED:
        source = x + tokens[None, :] * K + (tl.arange(0, BLOCK_K // PLANES) + k // PLANES)[:, None]
        x0 = tl.load(source, mask=is_there[None, :], other=0.0)
        x1 = tl.load(source + K // PLANES, mask=is_there[None, :], other=0.0)
        x2 = tl.load(source + K // PLANES * 2, mask=is_there[None, :], other=0.0)
        x3 = tl.load(source + K // PLANES * 3, mask=is_there[None, :], other=0.0)
    else:
        source = x + tokens[None, :] * K + (tl.arange(0, BLOCK_K) + k)[:, None]
        x0 = tl.load(source, mask=is_there[None, :], other=0.0)
        x1, x2, x3 = x0, x0, x0
    return x0, x1, x2, x3


@triton.jit
def _in_plane(column, INNER: tl.constexpr, PACKED: tl.constexpr):
    """Where a column of the inner activations lies in a row: in its plane if the weights are packed."""
    if PACKED:
        column = column % PLANES * (INNER // PLANES) + column // PLANES
    return column


@triton.jit
def gate_up(
    x, w, scale, expert, choices, inner, partial, num_choices, beta, linear_beta,
    K: tl.constexpr, INNER: tl.constexpr, TOP: tl.constexpr, IS_SITU: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Gate and up of one block of choices for BLOCK_N inner columns: activated to `inner`, or with splits the
    sums of one split to `partial` [SPLITS, choices, 2, INNER]."""
    block, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = tl.load(expert + block).to(tl.int64)
    if place < 0:
        return
    mine = tl.load(choices + block * BLOCK_M + tl.arange(0, BLOCK_M))
    is_there = mine >= 0
    mine = tl.where(is_there, mine, 0).to(tl.int64)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    begin, end = split * (K // SPLITS), (split + 1) * (K // SPLITS)
    row = place * (2 * INNER) + column
    gate = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for k in range(begin, end, BLOCK_K):
        x0, x1, x2, x3 = _inputs(x, mine // TOP, is_there, k, K, BLOCK_K, PACKED)
        gate = _dot(gate, w, scale, row, k, x0, x1, x2, x3, K, BLOCK_N, BLOCK_K, PACKED, ASM)
        up = _dot(up, w, scale, row + INNER, k, x0, x1, x2, x3, K, BLOCK_N, BLOCK_K, PACKED, ASM)
    if SPLITS == 1:
        out = activate(gate, up, beta, linear_beta, IS_SITU)
        target = inner + mine[None, :] * INNER + _in_plane(column, INNER, PACKED)[:, None]
        tl.store(target, out.to(inner.dtype.element_ty), mask=is_there[None, :])
    else:
        target = partial + (split * num_choices + mine[None, :]) * (2 * INNER) + column[:, None]
        tl.store(target, gate, mask=is_there[None, :])
        tl.store(target + INNER, up, mask=is_there[None, :])


@triton.jit
def sum_gate_up(
    partial, chosen, inner, first, num_experts, num_choices, beta, linear_beta,
    INNER: tl.constexpr, IS_SITU: tl.constexpr, PACKED: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Splits of one choice, summed in their order, and activated."""
    choice = tl.program_id(0).to(tl.int64)
    place = tl.load(chosen + choice) - first
    if (place < 0) | (place >= num_experts):
        return
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < INNER
    gate = tl.zeros([BLOCK_N], dtype=tl.float32)
    up = tl.zeros([BLOCK_N], dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        source = partial + (split * num_choices + choice) * (2 * INNER) + column
        gate += tl.load(source, mask=is_column, other=0.0)
        up += tl.load(source + INNER, mask=is_column, other=0.0)
    out = activate(gate, up, beta, linear_beta, IS_SITU).to(inner.dtype.element_ty)
    tl.store(inner + choice * INNER + _in_plane(column, INNER, PACKED), out, mask=is_column)


@triton.jit
def down(
    inner, w, scale, expert, choices, weights, partial, num_choices,
    INNER: tl.constexpr, WIDTH: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Down of one block of choices for BLOCK_N output columns, times the routing weight, to `partial`
    [SPLITS, choices, WIDTH]."""
    block, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = tl.load(expert + block).to(tl.int64)
    if place < 0:
        return
    mine = tl.load(choices + block * BLOCK_M + tl.arange(0, BLOCK_M))
    is_there = mine >= 0
    mine = tl.where(is_there, mine, 0).to(tl.int64)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    begin, end = split * (INNER // SPLITS), (split + 1) * (INNER // SPLITS)
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    row = place * WIDTH + column
    for k in range(begin, end, BLOCK_K):
        x0, x1, x2, x3 = _inputs(inner, mine, is_there, k, INNER, BLOCK_K, PACKED)
        acc = _dot(acc, w, scale, row, k, x0, x1, x2, x3, INNER, BLOCK_N, BLOCK_K, PACKED, ASM)
    weight = tl.load(weights + mine, mask=is_there, other=0.0).to(tl.float32)
    target = partial + (split * num_choices + mine[None, :]) * WIDTH + column[:, None]
    tl.store(target, acc * weight[None, :], mask=is_there[None, :])


@triton.jit
def combine(
    partial, chosen, out, rows, first, num_experts, num_choices,
    WIDTH: tl.constexpr, TOP: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_ROWS: tl.constexpr,
):  # fmt: skip
    """The sum over a token's choices and their splits, always in the same order; zero for padding."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < WIDTH
    total = tl.zeros([BLOCK_N], dtype=tl.float32)
    is_row = True
    if HAS_ROWS:
        is_row = token < tl.load(rows)
    for choice in tl.static_range(TOP):
        place = tl.load(chosen + token * TOP + choice) - first
        is_mine = (place >= 0) & (place < num_experts) & is_row
        for split in tl.static_range(SPLITS):
            source = partial + (split * num_choices + token * TOP + choice) * WIDTH + column
            total += tl.load(source, mask=is_column & is_mine, other=0.0)
    tl.store(out + token * WIDTH + column, total.to(out.dtype.element_ty), mask=is_column)

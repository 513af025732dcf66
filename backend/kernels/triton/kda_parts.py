"""Parts that the KDA kernels share: convolution of a head's channels, gates, the output norm, tails."""

import triton
import triton.language as tl

from k3agent.backend.kernels.gpu import is_interpreting

LOG2_E = tl.constexpr(1.4426950408889634)
_ON_GPU = tl.constexpr(not is_interpreting())
"""The interpreter knows no instructions."""


@triton.jit
def power2(x):
    """2^x by the GPU's own instruction; what would be denormal is zero."""
    if _ON_GPU:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        y = tl.exp2(x)
    return y


@triton.jit
def reciprocal(x):
    """1 / x to the last bit but one."""
    if _ON_GPU:
        y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        y = 1.0 / x
    return y


@triton.jit
def fetch_ahead(ptr, at):
    """Ask for the lines of memory at these places to come into the L2 cache."""
    if _ON_GPU:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [(ptr + at).to(tl.int64)], tl.int32, False, 1
        )


@triton.jit
def sigmoid(x):
    return reciprocal(1.0 + power2(x * -LOG2_E))


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def log1p(x):
    """log(1 + x) for x from 0 to 1, exact also where 1 + x rounds."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def log_decay(z, a, lower_bound, BOUNDED: tl.constexpr):
    """The log of the retention factor from z (with its bias) and a = exp(A_log)."""
    if BOUNDED:
        g = lower_bound * sigmoid(a * z)
    else:
        g = -a * (tl.maximum(z, 0.0) + log1p(power2(-tl.abs(z) * LOG2_E)))
    return g


@triton.jit
def _read_rows(
    x_ptr, x_stride, tail_ptr, channels, mask, source, start, keeps_tail, WIDTH, TAPS: tl.constexpr
):
    """Some channels of the inputs at the rows `source`; those before `start` come from the tail."""
    is_new = source >= start
    line_ptr = tl.where(
        is_new,
        x_ptr + source.to(tl.int64) * x_stride,
        tail_ptr + (source - start + (TAPS - 1)).to(tl.int64) * WIDTH,
    )
    exists = is_new | (keeps_tail != 0)
    return tl.load(line_ptr[:, None] + channels[None, :], mask=mask & exists[:, None], other=0.0)


@triton.jit
def convolve(
    x_ptr,
    x_stride,
    tail_ptr,
    tap_ptr,
    channels,
    in_head,
    rows,
    valid,
    start,
    keeps_tail,
    WIDTH,
    TAPS: tl.constexpr,
):
    """Causal convolution with SiLU of some channels at some rows of one sequence: [rows, channels] fp32,
    with the rounding of the activation dtype.

    `channels` are absolute; rows before `start` are read from the tail. `keeps_tail` 0: they are zero.
    """
    mask = valid[:, None] & in_head[None, :]
    y = tl.zeros(mask.shape, dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        x = _read_rows(
            x_ptr,
            x_stride,
            tail_ptr,
            channels,
            mask,
            rows + (tap - (TAPS - 1)),
            start,
            keeps_tail,
            WIDTH,
            TAPS,
        )
        weight = tl.load(tap_ptr + tap * WIDTH + channels, mask=in_head, other=0.0)
        y += x.to(tl.float32) * weight[None, :]
    return silu(y).to(x_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def convolve_within(
    x_ptr, x_stride, tap_ptr, channels, in_head, rows, valid, WIDTH, TAPS: tl.constexpr
):  # fmt: skip
    """The same where no row needs the tail."""
    mask = valid[:, None] & in_head[None, :]
    line_ptr = x_ptr + rows.to(tl.int64)[:, None] * x_stride + channels[None, :]
    y = tl.zeros(mask.shape, dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        x = tl.load(line_ptr + (tap - (TAPS - 1)) * x_stride, mask=mask, other=0.0)
        weight = tl.load(tap_ptr + tap * WIDTH + channels, mask=in_head, other=0.0)
        y += x.to(tl.float32) * weight[None, :]
    return silu(y).to(x_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def unit_rows(x, eps):
    """Rows scaled to length 1."""
    return x * tl.rsqrt(tl.sum(x * x, axis=1) + eps)[:, None]


@triton.jit
def gated_norm(o, gate, weight, eps, HEAD_DIM: tl.constexpr):
    """RMS norm of the rows of o times sigmoid(gate); columns behind HEAD_DIM must be zero."""
    inverse = tl.rsqrt(tl.sum(o * o, axis=1) / HEAD_DIM + eps)
    return o * inverse[:, None] * weight[None, :] * sigmoid(gate)


@triton.jit
def read_tail(
    x_ptr,
    x_stride,
    tail_ptr,
    channels,
    in_head,
    start,
    end,
    keeps_tail,
    WIDTH,
    TAPS: tl.constexpr,
    TAIL: tl.constexpr,
):
    """What the convolution reads before row `end` of a sequence that began at `start`: [TAIL, channels], of
    which TAPS - 1 rows count."""
    row = tl.arange(0, TAIL)
    source = end - (TAPS - 1) + row
    mask = (row < TAPS - 1)[:, None] & in_head[None, :]
    return _read_rows(x_ptr, x_stride, tail_ptr, channels, mask, source, start, keeps_tail, WIDTH, TAPS)


@triton.jit
def write_tail(tail_ptr, values, channels, in_head, WIDTH, TAPS: tl.constexpr, TAIL: tl.constexpr):
    """Store what `read_tail` gave."""
    row = tl.arange(0, TAIL)
    mask = (row < TAPS - 1)[:, None] & in_head[None, :]
    tl.store(tail_ptr + row[:, None] * WIDTH + channels[None, :], values, mask=mask)


@triton.jit
def move_tails(
    x_ptr, x_stride, tails_ptr, slot, target, head, start, end, keeps_tail,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """File the tails of q, k and v of one head, as they are after the rows before `end`, into a slot."""
    WIDTH: tl.constexpr = 3 * HEADS * HEAD_DIM
    SLOT: tl.constexpr = (TAPS - 1) * WIDTH
    inner = tl.arange(0, BLOCK)
    in_head = inner < HEAD_DIM
    old_ptr = tails_ptr + slot.to(tl.int64) * SLOT
    new_ptr = tails_ptr + target.to(tl.int64) * SLOT
    q_at = head * HEAD_DIM + inner
    k_at, v_at = q_at + HEADS * HEAD_DIM, q_at + 2 * HEADS * HEAD_DIM
    q = read_tail(x_ptr, x_stride, old_ptr, q_at, in_head, start, end, keeps_tail, WIDTH, TAPS, TAIL)
    k = read_tail(x_ptr, x_stride, old_ptr, k_at, in_head, start, end, keeps_tail, WIDTH, TAPS, TAIL)
    v = read_tail(x_ptr, x_stride, old_ptr, v_at, in_head, start, end, keeps_tail, WIDTH, TAPS, TAIL)
    # source and target may be the same rows, and other threads may still read them
    tl.debug_barrier()
    write_tail(new_ptr, q, q_at, in_head, WIDTH, TAPS, TAIL)
    write_tail(new_ptr, k, k_at, in_head, WIDTH, TAPS, TAIL)
    write_tail(new_ptr, v, v_at, in_head, WIDTH, TAPS, TAIL)

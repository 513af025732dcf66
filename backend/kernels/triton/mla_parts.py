"""Parts that the MLA kernels share: guarded loads, the running softmax, and joining what splits found."""

import triton
import triton.language as tl

_LEAST_DOT = 16


def dot_block(width: int) -> int:
    """The block that holds a width and suits a matrix product."""
    return max(1 << (width - 1).bit_length(), _LEAST_DOT)


def parts_at_once(splits: int) -> int:
    """Parts that a program of `joined_kernel` reads at once."""
    return min(16, 1 << (splits - 1).bit_length())


@triton.jit
def load_tile(ptr, at, rows_in, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a matrix; columns are guarded only where the block is wider than the matrix."""
    if WIDTH == BLOCK:
        tile = tl.load(ptr + at, mask=rows_in[:, None], other=0.0)
    else:
        tile = tl.load(ptr + at, mask=rows_in[:, None] & (columns < WIDTH)[None, :], other=0.0)
    return tile


@triton.jit
def load_keys(ptr, at, rows_in, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """The same; without MASKED all rows are there."""
    if MASKED:
        tile = load_tile(ptr, at, rows_in, columns, WIDTH, BLOCK)
    elif WIDTH == BLOCK:
        tile = tl.load(ptr + at)
    else:
        tile = tl.load(ptr + at, mask=(columns < WIDTH)[None, :], other=0.0)
    return tile


@triton.jit
def multiply(a, b, PRECISION: tl.constexpr):
    """Matrix product with fp32 sums."""
    if PRECISION == "bf16":
        c = tl.dot(a, b)
    else:
        c = tl.dot(a, b, input_precision=PRECISION)
    return c


@triton.jit
def soften(scores, visible, peak, total):
    """One step of the running softmax, in powers of two: weights, factor for what came before, peak, sum."""
    scores = tl.where(visible, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    # a row that has seen nothing yet has no peak to take away
    origin = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - origin[:, None])
    factor = tl.exp2(peak - origin)
    return weights, factor, new_peak, total * factor + tl.sum(weights, axis=1)


@triton.jit
def soften_all(scores, peak, total):
    """The same where each row sees all."""
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_peak[:, None])
    factor = tl.exp2(peak - new_peak)
    return weights, factor, new_peak, total * factor + tl.sum(weights, axis=1)


@triton.jit(do_not_specialize=["splits", "num_rows"])
def joined_kernel(
    part_ptr, peak_ptr, out_ptr, cu_ptr, splits, num_rows, out_head, out_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Grid: token and head of a sequence, sequences. Weighs the parts of each split, always in the same
    order; `part_ptr`: [splits, T, H, WIDTH], `peak_ptr`: [splits, T, H] fp32, log2 of each part's total."""
    token, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(cu_ptr + sequence) + token
    if row >= tl.load(cu_ptr + sequence + 1):
        return
    split = tl.arange(0, SPLITS)
    sizes = tl.load(
        peak_ptr + (split * num_rows + row) * HEADS + head, mask=split < splits, other=float("-inf")
    )
    peak = tl.max(sizes, axis=0)
    total = tl.sum(tl.exp2(sizes - peak), axis=0)
    columns = tl.arange(0, BLOCK)
    out = tl.zeros((BLOCK,), dtype=tl.float32)
    # several parts at once: one after another each would wait for memory
    for begin in range(0, splits, GROUP):
        number = begin + tl.arange(0, GROUP)
        place = (number * num_rows + row).to(tl.int64) * HEADS + head
        size = tl.load(peak_ptr + place, mask=number < splits, other=float("-inf"))
        weight = tl.exp2(size - peak) / total
        # a split that saw nothing weighs nothing, and its part was never written
        mask = (weight > 0.0)[:, None] & (columns < WIDTH)[None, :]
        part = tl.load(part_ptr + place[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0)
        out += tl.sum(weight[:, None] * part.to(tl.float32), axis=0)
    out_at = row.to(tl.int64) * out_row + head * out_head + columns
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=columns < WIDTH)

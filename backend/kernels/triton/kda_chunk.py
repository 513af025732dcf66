"""KDA within chunks of 64 tokens: all that does not need the state, for every chunk and head at once.

Four kernels, so that none holds much: gates_kernel sums the decays; scores_kernel convolves q and k and
scores queries and keys with keys; invert_kernel inverts I + M, M = diag(beta) A below the diagonal;
apply_kernel multiplies. They leave for kda_prefill, which walks over the states,
    W = T (beta k exp(L)),  U = T (beta v),  Q = q exp(L),  K = k exp(L_end - L),  B: scores of q with k
with T the inverse and L the running sum of log2 of the decays; exp is 2^. As the lengths of q and k are known
last, Q, K and B are left unscaled: the factors of K are in the rows of W and U, those of Q stand beside it.
Scores take decays relative to a reference in the middle of each half of a chunk, if they stay inside fp32 so;
else relative to borders between halves of halves, where no exponent is positive. Only some columns of a head
are in registers at a time. Arithmetic as in kernels.reference.kda_chunk.
"""

import triton
import triton.language as tl

from k3agent.backend.kernels.triton.kda_parts import (
    LOG2_E,
    convolve,
    convolve_within,
    log_decay,
    power2,
    sigmoid,
)

_MILD = tl.constexpr(-231.0)
"""A half of a chunk whose decays multiply to no less than this power of 2 keeps relative to its middle within
2^116, inside fp32; 32 tokens at a bound of -5 do."""


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """Matrix product with fp32 sums; PRECISION says what becomes of the factors."""
    return add_dot(tl.zeros((a.shape[0], b.shape[1]), dtype=tl.float32), a, b, PRECISION)


@triton.jit
def add_dot(sums, a, b, PRECISION: tl.constexpr):
    """The product added to fp32 sums."""
    if PRECISION == "bf16":
        c = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), sums)
    else:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision=PRECISION)
    return c


@triton.jit
def _put(ptr, tile, at):
    tl.store(ptr + at, tile.to(ptr.dtype.element_ty))


@triton.jit
def _decay_row(
    z_ptr, z_stride, row, stop, at, in_head, bias, a, lower_bound, BOUNDED: tl.constexpr
):  # fmt: skip
    """Log2 of the decays of one row; rows behind the end do not decay."""
    mask = in_head & (row < stop)
    z = tl.load(z_ptr + row.to(tl.int64) * z_stride + at, mask=mask, other=0.0).to(tl.float32)
    return tl.where(mask, log_decay(z + bias, a, lower_bound, BOUNDED) * LOG2_E, 0.0)


@triton.jit
def gates_kernel(
    z_ptr, z_stride, a_log_ptr, bias_ptr, cu_ptr, l_ptr, lower_bound, most_short,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    BOUNDED: tl.constexpr,
):  # fmt: skip
    """Grid: heads, chunks of a sequence, sequences, as in all kernels here; sequences of at most `most_short`
    tokens are left out. Leaves L. A thread has some columns and goes down the rows, four loads at a time."""
    head, number, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    if (stop - start <= most_short) | (start + number * CHUNK >= stop):
        return
    inner = tl.arange(0, BLOCK)
    in_head = inner < HEAD_DIM
    at = head * HEAD_DIM + inner
    bias = tl.load(bias_ptr + at, mask=in_head, other=0.0)
    a = tl.exp(tl.load(a_log_ptr + head))
    place = ((start // CHUNK + sequence + number).to(tl.int64) * HEADS + head) * CHUNK
    out_ptr = l_ptr + place * BLOCK + inner
    L = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.range(0, CHUNK, 4, num_stages=1):
        row = start + number * CHUNK + i
        g0 = _decay_row(z_ptr, z_stride, row, stop, at, in_head, bias, a, lower_bound, BOUNDED)
        g1 = _decay_row(z_ptr, z_stride, row + 1, stop, at, in_head, bias, a, lower_bound, BOUNDED)
        g2 = _decay_row(z_ptr, z_stride, row + 2, stop, at, in_head, bias, a, lower_bound, BOUNDED)
        g3 = _decay_row(z_ptr, z_stride, row + 3, stop, at, in_head, bias, a, lower_bound, BOUNDED)
        g1 += L + g0
        g2 += g1
        g3 += g2
        tl.store(out_ptr + i * BLOCK, L + g0)
        tl.store(out_ptr + (i + 1) * BLOCK, g1)
        tl.store(out_ptr + (i + 2) * BLOCK, g2)
        tl.store(out_ptr + (i + 3) * BLOCK, g3)
        L = g3


@triton.jit
def _scores_across(
    q, k, L, l_ptr, columns, SIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, PREC: tl.constexpr
):
    """Scores of the upper half with the lower half of each block of 2*SIZE rows, zero elsewhere."""
    index = tl.arange(0, CHUNK)
    part = index // SIZE
    is_upper = part % 2 == 1
    # the last row of the lower half, seen from either half
    border = tl.where(is_upper, part * SIZE - 1, part * SIZE + SIZE - 1)
    reference = tl.load(l_ptr + border[:, None] * BLOCK + columns[None, :])
    exponent = tl.where(is_upper[:, None], L - reference, reference - L)
    decay = power2(tl.minimum(exponent, 0.0))
    keys = k * decay
    pairs = is_upper[:, None] & (part[:, None] == part[None, :] + 1)
    A = tl.where(pairs, dot(keys, tl.trans(keys), PREC), 0.0)
    B = tl.where(pairs, dot(q * decay, tl.trans(keys), PREC), 0.0)
    return A, B


@triton.jit
def _add_any_scores(
    A, B, A_far, B_far, q, k, L, l_ptr, columns, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """What some columns add to A (keys with earlier keys) and B (queries with keys up to their own), for any
    decays."""
    index = tl.arange(0, CHUNK)
    for step in tl.static_range(1, 7):
        A_across, B_across = _scores_across(q, k, L, l_ptr, columns, CHUNK >> step, CHUNK, BLOCK, PREC)
        if step == 1:
            A_far += A_across
            B_far += B_across
        else:
            A += A_across
            B += B_across
    B += tl.where(index[:, None] == index[None, :], tl.sum(q * k, axis=1)[:, None], 0.0)
    return A, B, A_far, B_far


@triton.jit
def _add_mild_scores(
    A, B, A_far, B_far, q, k, L, lower, total, CHUNK: tl.constexpr, PREC: tl.constexpr
):  # fmt: skip
    """The same where each half keeps inside fp32 relative to its middle; the scores of the upper with the
    lower half into sums of their own, as two products after each other into one would be moved between
    layouts. What is not wanted of either is nonsense, perhaps infinite."""
    is_upper = (tl.arange(0, CHUNK) >= CHUNK // 2)[:, None]
    reference = tl.where(is_upper, 0.5 * (lower + total)[None, :], 0.5 * lower[None, :])
    rise, keys = power2(L - reference), k * power2(reference - L)
    near, far = tl.trans(keys), tl.trans(keys * power2(0.5 * total)[None, :])
    q_risen, k_risen = q * rise, k * rise
    A = add_dot(A, k_risen, near, PREC)
    B = add_dot(B, q_risen, near, PREC)
    A_far = add_dot(A_far, k_risen, far, PREC)
    B_far = add_dot(B_far, q_risen, far, PREC)
    return A, B, A_far, B_far


@triton.jit
def _read_channels(
    x_ptr, x_stride, tail_ptr, taps_ptr, channels, in_head, rows, valid, start, keeps, is_first, WIDTH,
    TAPS: tl.constexpr,
):  # fmt: skip
    """Convolved channels of the rows of a chunk; only the first chunk of a sequence reads the tail."""
    if is_first:
        y = convolve(
            x_ptr, x_stride, tail_ptr, taps_ptr, channels, in_head, rows, valid, start, keeps, WIDTH, TAPS
        )
    else:
        y = convolve_within(x_ptr, x_stride, taps_ptr, channels, in_head, rows, valid, WIDTH, TAPS)
    return y


@triton.jit
def _score_part(
    A, B, A_far, B_far, q_squares, k_squares, begin, x_ptr, x_stride, tail_ptr, taps_ptr,
    w_ptr, q_ptr, k_ptr, l_ptr, head, place, rows, valid, start, keeps, is_first,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
    CHUNK: tl.constexpr, TAPS: tl.constexpr, SAFE: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Some columns of q and k: what they add to the scores and to the lengths, and their tiles, of which k
    exp(L) waits in the place of W until T is known."""
    WIDTH: tl.constexpr = 3 * HEADS * HEAD_DIM
    index, columns = tl.arange(0, CHUNK), begin + tl.arange(0, PART)
    in_head = columns < HEAD_DIM
    at = place * BLOCK + index[:, None] * BLOCK + columns[None, :]
    L = tl.load(l_ptr + at)
    lower = tl.load(l_ptr + (place + CHUNK // 2 - 1) * BLOCK + columns)
    total = tl.load(l_ptr + (place + CHUNK - 1) * BLOCK + columns)
    own = head * HEAD_DIM + columns
    q = _read_channels(
        x_ptr, x_stride, tail_ptr, taps_ptr, own, in_head, rows, valid, start, keeps, is_first, WIDTH, TAPS
    )
    own += HEADS * HEAD_DIM
    k = _read_channels(
        x_ptr, x_stride, tail_ptr, taps_ptr, own, in_head, rows, valid, start, keeps, is_first, WIDTH, TAPS
    )
    q_squares += tl.sum(q * q, axis=1)
    k_squares += tl.sum(k * k, axis=1)
    if SAFE:
        is_mild: tl.constexpr = True
    else:
        is_mild = tl.min(tl.minimum(lower, total - lower)) >= _MILD
    if is_mild:
        A, B, A_far, B_far = _add_mild_scores(A, B, A_far, B_far, q, k, L, lower, total, CHUNK, SCORES)
    else:
        A, B, A_far, B_far = _add_any_scores(
            A, B, A_far, B_far, q, k, L, l_ptr + place * BLOCK, columns, CHUNK, BLOCK, SCORES
        )
    decay = power2(L)
    _put(q_ptr, q * decay, at)
    _put(w_ptr, k * decay, at)
    _put(k_ptr, k * power2(total[None, :] - L), at)
    return A, B, A_far, B_far, q_squares, k_squares


@triton.jit
def _put_scores(
    A, B, q_squares, k_squares, beta, b_ptr, m_ptr, factors_ptr, place, l2_eps, scale, CHUNK: tl.constexpr
):  # fmt: skip
    """File the scores, those of keys by their lengths and beta, and the factors of the rows."""
    index = tl.arange(0, CHUNK)
    q_factor = tl.rsqrt(q_squares + l2_eps) * scale
    k_factor = tl.rsqrt(k_squares + l2_eps)
    tl.store(factors_ptr + 2 * place + index, q_factor)
    tl.store(factors_ptr + 2 * place + CHUNK + index, k_factor)
    square = place * CHUNK + index[:, None] * CHUNK + index[None, :]
    _put(b_ptr, tl.where(index[:, None] >= index[None, :], B, 0.0), square)
    A = tl.where(index[:, None] > index[None, :], A * (beta * k_factor)[:, None] * k_factor[None, :], 0.0)
    tl.store(m_ptr + square, A)


@triton.jit
def scores_kernel(
    x_ptr, x_stride, beta_ptr, beta_stride, tails_ptr, taps_ptr, cu_ptr, slots_ptr, has_state_ptr,
    w_ptr, q_ptr, k_ptr, b_ptr, m_ptr, l_ptr, factors_ptr, l2_eps, scale, most_short,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
    CHUNK: tl.constexpr, TAPS: tl.constexpr, SAFE: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Leaves M, B, Q, K, k exp(L) and the factors of the rows. PART: columns of a head at a time."""
    head, number, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    if (stop - start <= most_short) | (start + number * CHUNK >= stop):
        return
    index = tl.arange(0, CHUNK)
    rows = start + number * CHUNK + index
    valid = rows < stop
    place = ((start // CHUNK + sequence + number).to(tl.int64) * HEADS + head) * CHUNK
    SLOT: tl.constexpr = (TAPS - 1) * 3 * HEADS * HEAD_DIM
    tail_ptr = tails_ptr + tl.load(slots_ptr + sequence).to(tl.int64) * SLOT
    keeps = tl.load(has_state_ptr + sequence)
    A = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    B, A_far, B_far = A, A, A
    q_squares = tl.zeros((CHUNK,), dtype=tl.float32)
    k_squares = q_squares
    for begin in tl.range(0, BLOCK, PART, num_stages=1):
        A, B, A_far, B_far, q_squares, k_squares = _score_part(
            A, B, A_far, B_far, q_squares, k_squares, begin, x_ptr, x_stride, tail_ptr, taps_ptr,
            w_ptr, q_ptr, k_ptr, l_ptr, head, place, rows, valid, start, keeps, number == 0,
            HEADS, HEAD_DIM, BLOCK, PART, CHUNK, TAPS, SAFE, SCORES,
        )  # fmt: skip
    beta = tl.load(beta_ptr + rows.to(tl.int64) * beta_stride + head, mask=valid, other=0.0).to(tl.float32)
    beta = tl.where(valid, sigmoid(beta), 0.0)
    half = index // (CHUNK // 2)
    is_far = half[:, None] != half[None, :]
    A, B = tl.where(is_far, A_far, A), tl.where(is_far, B_far, B)
    _put_scores(A, B, q_squares, k_squares, beta, b_ptr, m_ptr, factors_ptr, place, l2_eps, scale, CHUNK)


@triton.jit
def _load_block(m_ptr, row, column, CHUNK: tl.constexpr, SIZE: tl.constexpr):
    """A square block of the matrix in memory."""
    index = tl.arange(0, SIZE)
    return tl.load(m_ptr + (row + index)[:, None] * CHUNK + (column + index)[None, :])


@triton.jit
def _merge(m_ptr, begin, CHUNK: tl.constexpr, SIZE: tl.constexpr, PREC: tl.constexpr):
    """With two blocks on the diagonal inverted in place, replace what is below the first by its part of the
    inverse of both: minus second inverse, block, first inverse."""
    index = tl.arange(0, SIZE)
    first = _load_block(m_ptr, begin, begin, CHUNK, SIZE)
    second = _load_block(m_ptr, begin + SIZE, begin + SIZE, CHUNK, SIZE)
    below = _load_block(m_ptr, begin + SIZE, begin, CHUNK, SIZE)
    merged = -dot(second, dot(below, first, PREC), PREC)
    tl.debug_barrier()
    tl.store(m_ptr + (begin + SIZE + index)[:, None] * CHUNK + (begin + index)[None, :], merged)


@triton.jit
def _invert_tiles(m_ptr, CHUNK: tl.constexpr, TILE: tl.constexpr):
    """Invert the tiles on the diagonal in place by substitution, row by row."""
    tile, row = tl.arange(0, CHUNK // TILE), tl.arange(0, TILE)
    corner = tile * (TILE * CHUNK + TILE)
    is_one = (row[:, None] == row[None, :])[None, :, :]
    inverse = tl.where(is_one & (corner >= 0)[:, None, None], 1.0, 0.0)
    for i in range(1, TILE):
        line = tl.load(m_ptr + corner[:, None] + i * CHUNK + row[None, :])
        found = tl.sum(line[:, :, None] * inverse, axis=1)
        inverse -= tl.where((row == i)[None, :, None], found[:, None, :], 0.0)
    tl.debug_barrier()
    tl.store(m_ptr + corner[:, None, None] + row[None, :, None] * CHUNK + row[None, None, :], inverse)


@triton.jit
def invert_kernel(
    cu_ptr, m_ptr, most_short, HEADS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
    SOLVE: tl.constexpr,
):  # fmt: skip
    """M by the inverse of I + M: tiles of 16 by substitution, then merged."""
    head, number, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    if (stop - start <= most_short) | (start + number * CHUNK >= stop):
        return
    place = ((start // CHUNK + sequence + number).to(tl.int64) * HEADS + head) * CHUNK
    m_ptr += place * CHUNK
    _invert_tiles(m_ptr, CHUNK, TILE)
    tl.debug_barrier()
    for begin in tl.static_range(0, CHUNK, 2 * TILE):
        _merge(m_ptr, begin, CHUNK, TILE, SOLVE)
    tl.debug_barrier()
    _merge(m_ptr, 0, CHUNK, 2 * TILE, SOLVE)


@triton.jit
def apply_kernel(
    x_ptr, x_stride, beta_ptr, beta_stride, tails_ptr, taps_ptr, cu_ptr, slots_ptr, has_state_ptr,
    w_ptr, u_ptr, m_ptr, factors_ptr, most_short,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
    CHUNK: tl.constexpr, TAPS: tl.constexpr, APPLY: tl.constexpr,
):  # fmt: skip
    """Leaves W and U. A program has PART columns of a head."""
    number, sequence = tl.program_id(1), tl.program_id(2)
    PARTS: tl.constexpr = BLOCK // PART
    head, begin = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS * PART
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    if (stop - start <= most_short) | (start + number * CHUNK >= stop):
        return
    index, columns = tl.arange(0, CHUNK), begin + tl.arange(0, PART)
    in_head = columns < HEAD_DIM
    rows = start + number * CHUNK + index
    valid = rows < stop
    place = ((start // CHUNK + sequence + number).to(tl.int64) * HEADS + head) * CHUNK
    at = place * BLOCK + index[:, None] * BLOCK + columns[None, :]
    keys = tl.load(w_ptr + at)
    inverse = _load_block(m_ptr + place * CHUNK, 0, 0, CHUNK, CHUNK)
    beta = tl.load(beta_ptr + rows.to(tl.int64) * beta_stride + head, mask=valid, other=0.0).to(tl.float32)
    beta = tl.where(valid, sigmoid(beta), 0.0)
    k_factor = tl.load(factors_ptr + 2 * place + CHUNK + index)
    WIDTH: tl.constexpr = 3 * HEADS * HEAD_DIM
    tail_ptr = tails_ptr + tl.load(slots_ptr + sequence).to(tl.int64) * ((TAPS - 1) * WIDTH)
    keeps = tl.load(has_state_ptr + sequence)
    own = (2 * HEADS + head) * HEAD_DIM + columns
    v = _read_channels(
        x_ptr, x_stride, tail_ptr, taps_ptr, own, in_head, rows, valid, start, keeps, number == 0, WIDTH, TAPS
    )
    W = dot(inverse * (beta * k_factor)[None, :], keys, APPLY)
    U = dot(inverse * beta[None, :], v, APPLY)
    # other threads still read what is written now
    tl.debug_barrier()
    _put(w_ptr, W * k_factor[:, None], at)
    _put(u_ptr, U * k_factor[:, None], at)

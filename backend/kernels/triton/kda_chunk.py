"""KDA within chunks: all that does not need the state, for every chunk and head at once.

A program has one chunk of 64 tokens of one head. It convolves and gates, scores keys and queries with keys,
inverts I + diag(beta) A, and leaves five tiles from which kda_prefill walks the states:
    W = T (beta k exp(L)),  U = T (beta v),  Q = q exp(L),  K = k exp(L_end - L),  B: scores of q with k
with T the inverse and L the running sum of log2 of the decays; exp is 2^. No exponent is positive beyond what
a bounded gate keeps small: rows of two halves of a block are scored relative to the border between them,
sizes halving. Only some columns of a head are in registers at a time, so that two programs fit a processor;
so the lengths of q and k are known last, and Q and K are left unscaled beside them.
Arithmetic as in kernels.reference.kda_chunk.
"""

import triton
import triton.language as tl

from k3agent.backend.kernels.triton.kda_parts import LOG2_E, convolve, log_decay, power2, sigmoid


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """Matrix product with fp32 sums; PRECISION says what becomes of the factors."""
    if PRECISION == "bf16":
        c = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    return c


@triton.jit
def _running_decay(
    z_ptr, z_stride, bias_ptr, a_log_ptr, head, rows, valid, inner, in_head, lower_bound,
    HEAD_DIM: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Running sum of log2 of the decay over the rows of the chunk; rows behind the end do not decay."""
    at = head * HEAD_DIM + inner
    mask = valid[:, None] & in_head[None, :]
    z = tl.load(z_ptr + rows.to(tl.int64)[:, None] * z_stride + at[None, :], mask=mask, other=0.0).to(
        tl.float32
    )
    z += tl.load(bias_ptr + at, mask=in_head, other=0.0)[None, :]
    a = tl.exp(tl.load(a_log_ptr + head))
    g = log_decay(z, a, lower_bound, BOUNDED) * LOG2_E
    return tl.cumsum(tl.where(mask, g, 0.0), axis=0)


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
def _add_scores(
    A, B, q, k, L, l_ptr, columns, CHUNK: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    SAFE: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """What some columns add to A (keys with earlier keys) and B (queries with keys up to their own), [CHUNK,
    CHUNK]."""
    index = tl.arange(0, CHUNK)
    # halves of 32, 16, and without a safe bound on the gate also 8, 4, 2, 1
    for step in tl.static_range(2 if SAFE else 6):
        A_across, B_across = _scores_across(q, k, L, l_ptr, columns, CHUNK >> (step + 1), CHUNK, BLOCK, PREC)
        A += A_across
        B += B_across
    if SAFE:
        # within a tile 8 rows of the bound are e^40: far inside fp32
        middle = index // TILE * TILE + TILE // 2
        offset = L - tl.load(l_ptr + middle[:, None] * BLOCK + columns[None, :])
        fallen = tl.trans(k * power2(-offset))
        rise = power2(offset)
        same = index[:, None] // TILE == index[None, :] // TILE
        A += tl.where(same & (index[:, None] > index[None, :]), dot(k * rise, fallen, PREC), 0.0)
        B += tl.where(same & (index[:, None] >= index[None, :]), dot(q * rise, fallen, PREC), 0.0)
    else:
        B += tl.where(index[:, None] == index[None, :], tl.sum(q * k, axis=1)[:, None], 0.0)
    return A, B


@triton.jit
def _load_block(
    m_ptr, row, column, CHUNK: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, TRIANGLE: tl.constexpr
):
    """A square block of the matrix in memory; TRIANGLE: tiles above the diagonal count as zero."""
    index = tl.arange(0, SIZE)
    at = (row + index)[:, None] * CHUNK + (column + index)[None, :]
    if TRIANGLE:
        block = tl.load(m_ptr + at, mask=index[:, None] // TILE >= index[None, :] // TILE, other=0.0)
    else:
        block = tl.load(m_ptr + at)
    return block


@triton.jit
def _merge(m_ptr, begin, CHUNK: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, PREC: tl.constexpr):
    """With two blocks on the diagonal inverted in place, replace what is below the first by its part of the
    inverse of both: minus second inverse, block, first inverse."""
    index = tl.arange(0, SIZE)
    first = _load_block(m_ptr, begin, begin, CHUNK, SIZE, TILE, True)
    second = _load_block(m_ptr, begin + SIZE, begin + SIZE, CHUNK, SIZE, TILE, True)
    below = _load_block(m_ptr, begin + SIZE, begin, CHUNK, SIZE, TILE, False)
    merged = -dot(second, dot(below, first, PREC), PREC)
    tl.debug_barrier()
    tl.store(m_ptr + (begin + SIZE + index)[:, None] * CHUNK + (begin + index)[None, :], merged)


@triton.jit
def _invert(M, m_ptr, CHUNK: tl.constexpr, TILE: tl.constexpr, PREC: tl.constexpr):
    """The inverse of I + M, M below the diagonal, in memory: tiles of 16 by substitution, then merged."""
    index = tl.arange(0, CHUNK)
    tl.store(m_ptr + index[:, None] * CHUNK + index[None, :], M)
    tl.debug_barrier()
    TILES: tl.constexpr = CHUNK // TILE
    tile, row = tl.arange(0, TILES), tl.arange(0, TILE)
    corner = tile * (TILE * CHUNK + TILE)
    at = corner[:, None, None] + row[None, :, None] * CHUNK + row[None, None, :]
    tiles = tl.load(m_ptr + at)
    inverse = tl.zeros((TILES, TILE, TILE), dtype=tl.float32)
    for i in range(1, TILE):
        line = -tl.sum(tl.where((row == i)[None, :, None], tiles, 0.0), axis=1)
        line += tl.sum(line[:, :, None] * inverse, axis=1)
        inverse = tl.where((row == i)[None, :, None], line[:, None, :], inverse)
    inverse = tl.where((row[:, None] == row[None, :])[None, :, :], 1.0, inverse)
    tl.debug_barrier()
    tl.store(m_ptr + at, inverse)
    tl.debug_barrier()
    for begin in tl.static_range(0, CHUNK, 2 * TILE):
        _merge(m_ptr, begin, CHUNK, TILE, TILE, PREC)
    tl.debug_barrier()
    _merge(m_ptr, 0, CHUNK, 2 * TILE, TILE, PREC)
    tl.debug_barrier()
    return _load_block(m_ptr, 0, 0, CHUNK, CHUNK, TILE, True)


@triton.jit
def _put(ptr, tile, at):
    tl.store(ptr + at, tile.to(ptr.dtype.element_ty))


@triton.jit
def _score_part(
    A, B, q_squares, k_squares, begin, x_ptr, x_stride, z_ptr, z_stride, tail_ptr, taps_ptr, a_log_ptr,
    bias_ptr, w_ptr, q_ptr, k_ptr, l_ptr, head, place, rows, valid, start, keeps, lower_bound,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr, BOUNDED: tl.constexpr, SAFE: tl.constexpr,
    SCORES: tl.constexpr,
):  # fmt: skip
    """Some columns of q and k: what they add to the scores and to the lengths, and their tiles, of which k
    exp(L) waits in the place of W until T is known."""
    WIDTH: tl.constexpr = 3 * HEADS * HEAD_DIM
    columns = begin + tl.arange(0, PART)
    in_head = columns < HEAD_DIM
    at = place * BLOCK + tl.arange(0, CHUNK)[:, None] * BLOCK + columns[None, :]
    L = _running_decay(
        z_ptr, z_stride, bias_ptr, a_log_ptr, head, rows, valid, columns, in_head, lower_bound, HEAD_DIM,
        BOUNDED,
    )  # fmt: skip
    tl.store(l_ptr + at, L)
    own = head * HEAD_DIM + columns
    q = convolve(x_ptr, x_stride, tail_ptr, taps_ptr, own, in_head, rows, valid, start, keeps, WIDTH, TAPS)
    own += HEADS * HEAD_DIM
    k = convolve(x_ptr, x_stride, tail_ptr, taps_ptr, own, in_head, rows, valid, start, keeps, WIDTH, TAPS)
    q_squares += tl.sum(q * q, axis=1)
    k_squares += tl.sum(k * k, axis=1)
    tl.debug_barrier()
    A, B = _add_scores(A, B, q, k, L, l_ptr + place * BLOCK, columns, CHUNK, BLOCK, TILE, SAFE, SCORES)
    fallen = power2(L)
    _put(q_ptr, q * fallen, at)
    _put(w_ptr, k * fallen, at)
    end = tl.load(l_ptr + (place + CHUNK - 1) * BLOCK + columns)
    _put(k_ptr, k * power2(end[None, :] - L), at)
    return A, B, q_squares, k_squares


@triton.jit
def _apply_part(
    of_keys, of_values, begin, x_ptr, x_stride, tail_ptr, taps_ptr, w_ptr, u_ptr, head, place, rows, valid,
    start, keeps, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
    CHUNK: tl.constexpr, TAPS: tl.constexpr, APPLY: tl.constexpr,
):  # fmt: skip
    """Some columns of W and U."""
    columns = begin + tl.arange(0, PART)
    in_head = columns < HEAD_DIM
    at = place * BLOCK + tl.arange(0, CHUNK)[:, None] * BLOCK + columns[None, :]
    W = dot(of_keys, tl.load(w_ptr + at), APPLY)
    # other threads still read what is written now
    tl.debug_barrier()
    _put(w_ptr, W, at)
    own = (2 * HEADS + head) * HEAD_DIM + columns
    WIDTH: tl.constexpr = 3 * HEADS * HEAD_DIM
    v = convolve(x_ptr, x_stride, tail_ptr, taps_ptr, own, in_head, rows, valid, start, keeps, WIDTH, TAPS)
    _put(u_ptr, dot(of_values, v, APPLY), at)


@triton.jit
def chunk_kernel(
    x_ptr, x_stride, z_ptr, z_stride, beta_ptr, beta_stride, tails_ptr, taps_ptr, a_log_ptr, bias_ptr,
    cu_ptr, slots_ptr, has_state_ptr, w_ptr, u_ptr, q_ptr, k_ptr, b_ptr, m_ptr, l_ptr, factors_ptr,
    lower_bound, l2_eps, scale, most_short,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, TAPS: tl.constexpr, BOUNDED: tl.constexpr, SAFE: tl.constexpr,
    SCORES: tl.constexpr, SOLVE: tl.constexpr, APPLY: tl.constexpr,
):  # fmt: skip
    """Grid: heads, chunks of a sequence, sequences; those of at most `most_short` tokens are left out. PART:
    columns of a head at a time."""
    head, number, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(cu_ptr + sequence), tl.load(cu_ptr + sequence + 1)
    if (stop - start <= most_short) | (start + number * CHUNK >= stop):
        return
    index = tl.arange(0, CHUNK)
    rows = start + number * CHUNK + index
    valid = rows < stop
    place = ((start // CHUNK + sequence + number).to(tl.int64) * HEADS + head) * CHUNK
    WIDTH: tl.constexpr = 3 * HEADS * HEAD_DIM
    tail_ptr = tails_ptr + tl.load(slots_ptr + sequence).to(tl.int64) * ((TAPS - 1) * WIDTH)
    keeps = tl.load(has_state_ptr + sequence)
    A = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    B = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    q_squares = tl.zeros((CHUNK,), dtype=tl.float32)
    k_squares = tl.zeros((CHUNK,), dtype=tl.float32)
    for begin in tl.range(0, BLOCK, PART, num_stages=1):
        A, B, q_squares, k_squares = _score_part(
            A, B, q_squares, k_squares, begin, x_ptr, x_stride, z_ptr, z_stride, tail_ptr, taps_ptr,
            a_log_ptr, bias_ptr, w_ptr, q_ptr, k_ptr, l_ptr, head, place, rows, valid, start, keeps,
            lower_bound, HEADS, HEAD_DIM, BLOCK, PART, CHUNK, TILE, TAPS, BOUNDED, SAFE, SCORES,
        )  # fmt: skip
    q_factor = tl.rsqrt(q_squares + l2_eps) * scale
    k_factor = tl.rsqrt(k_squares + l2_eps)
    tl.store(factors_ptr + 2 * place + index, q_factor)
    tl.store(factors_ptr + 2 * place + CHUNK + index, k_factor)
    square = place * CHUNK + index[:, None] * CHUNK + index[None, :]
    _put(b_ptr, B * q_factor[:, None] * k_factor[None, :], square)
    beta = tl.load(beta_ptr + rows.to(tl.int64) * beta_stride + head, mask=valid, other=0.0).to(tl.float32)
    beta = tl.where(valid, sigmoid(beta), 0.0)
    A *= k_factor[None, :]
    inverse = _invert(A * (beta * k_factor)[:, None], m_ptr + place * CHUNK, CHUNK, TILE, SOLVE)
    of_keys = inverse * (beta * k_factor)[None, :]
    of_values = inverse * beta[None, :]
    for begin in tl.range(0, BLOCK, PART, num_stages=1):
        _apply_part(
            of_keys, of_values, begin, x_ptr, x_stride, tail_ptr, taps_ptr, w_ptr, u_ptr, head, place, rows,
            valid, start, keeps, HEADS, HEAD_DIM, BLOCK, PART, CHUNK, TAPS, APPLY,
        )  # fmt: skip

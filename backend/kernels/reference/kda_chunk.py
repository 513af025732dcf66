"""KDA over many tokens at once: chunks of 64, inside them tiles of 16, a triangular solve, and a short loop
over chunks.

No factor exp(-sum of g) ever stands alone. Between two tiles both exponents are taken relative to a border
between them, so both are at most 0. Within a tile a bounded gate keeps exponents relative to the middle row
in +-40; an unbounded gate needs the differences themselves. Source: Kimi Linear, arXiv 2510.26692, chunkwise
form.
"""

import torch
from torch import Tensor

CHUNK = 64
TILE = 16
TILES = CHUNK // TILE
SAFE_GATE_BOUND = -5.0
"""Gates that stay above this may use products within a tile: 8 rows of it are e^40, far inside fp32."""


def kda_chunk(
    q: Tensor, k: Tensor, v: Tensor, g_log: Tensor, beta: Tensor, S: Tensor, lower_bound: float | None = None
) -> Tensor:
    """Advance one sequence by T tokens.

    q, k: [T, H, K], L2-normalised, q scaled; v: [T, H, V]; g_log: [T, H, K], at most 0 and above
    `lower_bound` if that is given; beta: [T, H]; S: [H, K, V], updated in place; all wide. Returns o: [T, H,
    V].
    """
    num_tokens = q.shape[0]
    q, k, v, g_log = (_to_chunks(x) for x in (q, k, v, g_log))
    beta = _to_chunks(beta.unsqueeze(-1))
    is_bounded = lower_bound is not None and lower_bound >= SAFE_GATE_BOUND
    g_tiles = _tiles(g_log) if is_bounded else _tiles(g_log).double()
    within = g_tiles.cumsum(-2)
    total = within[..., -1:, :]
    k_tiles, q_tiles = _tiles(k), _tiles(q)
    decay_in = _decay(within.to(q.dtype))
    k_in, q_in = k_tiles * decay_in, q_tiles * decay_in
    k_out = k_tiles * _decay((total - within).to(q.dtype))
    total = total.to(q.dtype)

    scores = _within_tiles(q_tiles, k_tiles, within, is_bounded)
    rows = torch.cat((k_in, q_in), dim=-2)
    A, B = _assemble(scores, rows, k_out, total)

    before = _decay(total.cumsum(2) - total)
    after = _decay(total.flip(2).cumsum(2).flip(2) - total)
    k_decayed, q_decayed = (_untile(x * before) for x in (k_in, q_in))
    k_to_end = _untile(k_out * after).transpose(-1, -2)
    end_decay = _decay(total.sum(2)).transpose(-1, -2)

    system = (beta * A).tril_(-1)
    solved = torch.linalg.solve_triangular(
        system, beta * torch.cat((v, k_decayed), dim=-1), upper=False, unitriangular=True
    )
    values, keys = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    states, updates = [], []
    state = S
    for n in range(q.shape[0]):
        states.append(state)
        update = torch.baddbmm(values[n], keys[n], state, alpha=-1)
        updates.append(update)
        state = torch.baddbmm(end_decay[n] * state, k_to_end[n], update)
    o = q_decayed @ torch.stack(states) + B.tril_() @ torch.stack(updates)
    S.copy_(state)
    return o.transpose(1, 2).flatten(0, 1)[:num_tokens]


def _decay(exponent: Tensor) -> Tensor:
    """exp, with tiny results set to zero, so that the product of two of them is never denormal.

    Denormals make matrix products ten times slower, and gates near their bound are full of them. The limit,
    7e-16 in fp32, is far below what can change a sum of the model.
    """
    return torch.nn.functional.threshold_(torch.exp(exponent), torch.finfo(exponent.dtype).tiny ** 0.4, 0.0)  # pyright: ignore[reportAttributeAccessIssue]


def _to_chunks(x: Tensor) -> Tensor:
    """[T, H, X] to [n, H, CHUNK, X]; rows added at the end are zero, so they neither decay nor write."""
    num_tokens, num_heads, width = x.shape
    num_chunks = -(-num_tokens // CHUNK)
    padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, num_chunks * CHUNK - num_tokens))
    return padded.view(num_chunks, CHUNK, num_heads, width).transpose(1, 2).contiguous()


def _tiles(x: Tensor) -> Tensor:
    """[n, H, CHUNK, X] to [n, H, TILES, TILE, X]."""
    return x.unflatten(2, (TILES, TILE))


def _untile(x: Tensor) -> Tensor:
    return x.flatten(2, 3)


def _within_tiles(q: Tensor, k: Tensor, within: Tensor, is_bounded: bool) -> Tensor:
    """Scores of k (rows 0..15) and q (rows 16..31) with the keys of their own tile: [n, H, TILES, 2*TILE,
    TILE].

    Entries above the diagonal have no meaning; the caller cuts them.
    """
    if is_bounded:
        offset = within - within[..., TILE // 2 : TILE // 2 + 1, :]
        rise = torch.exp(offset)
        return torch.cat((k * rise, q * rise), dim=-2) @ (k * torch.exp(-offset)).transpose(-1, -2)
    scores = q.new_empty((*q.shape[:3], 2 * TILE, TILE))
    # One column at a time: the full table of differences would be TILE times the size of q.
    for j in range(TILE):
        decay = _decay((within - within[..., j : j + 1, :]).clamp_(max=0.0).to(q.dtype))
        decay = decay * k[..., j : j + 1, :]
        scores[..., :TILE, j] = (k * decay).sum(-1)
        scores[..., TILE:, j] = (q * decay).sum(-1)
    return scores


def _assemble(scores: Tensor, rows: Tensor, k_out: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """A (keys with keys) and B (queries with keys) of each chunk, [n, H, CHUNK, CHUNK], right below the
    diagonal."""
    n, num_heads = rows.shape[:2]
    A = rows.new_zeros((n, num_heads, CHUNK, CHUNK))
    B = rows.new_zeros((n, num_heads, CHUNK, CHUNK))
    for a in range(TILES):
        here = slice(a * TILE, (a + 1) * TILE)
        A[:, :, here, here] = scores[:, :, a, :TILE]
        B[:, :, here, here] = scores[:, :, a, TILE:]
        if a == 0:
            continue
        # Sum of g over the tiles between b and a, for each b < a.
        gap = total[:, :, 1:a].flip(2).cumsum(2).flip(2)
        reach = torch.cat((_decay(gap), torch.ones_like(total[:, :, :1])), dim=2)
        block = rows[:, :, a] @ (k_out[:, :, :a] * reach).flatten(2, 3).transpose(-1, -2)
        A[:, :, here, : a * TILE] = block[..., :TILE, :]
        B[:, :, here, : a * TILE] = block[..., TILE:, :]
    return A, B

"""The next token of rows of logits: what the truncations leave over, and a draw from it by a seed."""

import torch
from torch import Tensor


def kept_tokens(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """logits: [N, V]; the others [N]. With temperature 0 the likeliest, else what top_k, then top_p of what
    is left, then min_p leave over; [N, V] bool."""
    kept = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    for row, values in enumerate(logits.double()):
        if temperature[row] <= 0:
            kept[row, values.argmax()] = True
            continue
        ordered, places = torch.softmax(values / temperature[row], 0).sort(descending=True)
        count = int(top_k[row]) or len(ordered)
        ordered[count:] = 0
        before = ordered.cumsum(0) - ordered
        stays = (before < top_p[row] * ordered.sum()) & (ordered >= min_p[row] * ordered[0]) & (ordered > 0)
        stays[0] = True
        kept[row, places[stays]] = True
    return kept


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor
) -> Tensor:
    """Of each row [N]: temperature (0: the likeliest), top_k (0: all), top_p, min_p, and a seed. Returns ids
    int32 [N], -1 where the logits hold NaN. The same seed gives the same token for the same row; which one,
    is up to the implementation.
    """
    kept = kept_tokens(logits, temperature, top_k, top_p, min_p)
    chosen = torch.full((logits.shape[0],), -1, dtype=torch.int32, device=logits.device)
    for row, values in enumerate(logits.double()):
        if values.isnan().any():
            continue
        heat = float(temperature[row]) or 1.0
        weights = torch.where(kept[row], torch.softmax(values / heat, 0), 0.0)
        generator = torch.Generator(logits.device).manual_seed(int(seed[row]))
        chosen[row] = torch.multinomial(weights, 1, generator=generator)[0]
    return chosen

"""KDA, one token: decay the state, correct it by the delta rule, read it.

Source: Kimi Linear, arXiv 2510.26692, the gated delta rule.
"""

import torch
from torch import Tensor


def kda_step(q: Tensor, k: Tensor, v: Tensor, g_log: Tensor, beta: Tensor, S: Tensor) -> Tensor:
    """Advance each sequence by one token.

    q, k: [B, H, K], L2-normalised, q scaled; v: [B, H, V]; g_log: [B, H, K], at most 0; beta: [B, H] in (0,
    1); S: [B, H, K, V], updated in place; all wide. Returns o: [B, H, V].
    """
    S.mul_(torch.exp(g_log).unsqueeze(-1))
    predicted = torch.einsum("bhk,bhkv->bhv", k, S)
    S.add_(k.unsqueeze(-1) * (beta.unsqueeze(-1) * (v - predicted)).unsqueeze(-2))
    return torch.einsum("bhk,bhkv->bhv", q, S)


def kda_recurrent(q: Tensor, k: Tensor, v: Tensor, g_log: Tensor, beta: Tensor, S: Tensor) -> Tensor:
    """One sequence, token by token: the definition that the chunkwise form must equal.

    q, k, v, g_log: [T, H, K or V]; beta: [T, H]; S: [H, K, V], updated in place. Returns o: [T, H, V].
    """
    state = S.unsqueeze(0)
    steps = (kda_step(*(x[t : t + 1] for x in (q, k, v, g_log, beta)), state) for t in range(q.shape[0]))  # pyright: ignore[reportCallIssue]
    return torch.cat(list(steps))

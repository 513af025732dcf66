"""KDA over a few tokens of one sequence, one after another, with the states in between if they are wanted.

Below about one tile the chunkwise form spends most of its time on padding. The state is read once a token,
before its update: with a the decay, k(aS) = (ka)S and q(aS + k u) = (qa)S + (q k) u. Source: Kimi Linear,
arXiv 2510.26692, the gated delta rule.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def kda_short(
    q: Tensor, k: Tensor, v: Tensor, g_log: Tensor, beta: Tensor, S: Tensor, trail: Sequence[Tensor] = ()
) -> Tensor:
    """Advance one sequence by T tokens.

    q, k: [T, H, K], L2-normalised, q scaled; v: [T, H, V]; g_log: [T, H, K], at most 0; beta: [T, H]; S: [H,
    K, V], updated in place; `trail`: [H, K, V] each, receive the states before the last update, the one
    before that, and so on, the latest at the end; all wide. Returns o: [T, H, V].
    """
    num_tokens = q.shape[0]
    decay = torch.exp(g_log)
    readers = torch.stack((k, q), dim=2) * decay.unsqueeze(2)
    overlap = (q * k).sum(-1, keepdim=True)
    beta, columns, factors = beta.unsqueeze(-1), k.unsqueeze(-1), decay.unsqueeze(-1)
    outputs = []
    state = S
    for t in range(num_tokens):
        read = torch.bmm(readers[t], state)
        update = torch.sub(v[t], read[:, 0]).mul_(beta[t])
        place = len(trail) - num_tokens + 1 + t
        # the last state goes to S, and so do those before the trail
        after = trail[place] if 0 <= place < len(trail) else S
        torch.mul(state, factors[t], out=after)
        after.baddbmm_(columns[t], update.unsqueeze(1))
        state = after
        outputs.append(torch.addcmul(read[:, 1], overlap[t], update))
    return torch.stack(outputs)

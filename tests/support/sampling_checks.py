"""Checks of drawing on the device, run in Triton's interpreter and on a GPU."""

import torch
from torch import Tensor

from k3agent.backend.kernels.reference.sampling import kept_tokens


def draw(logits: Tensor, seeds: list[int], **params: float) -> list[int]:
    """One draw for each row."""
    from k3agent.backend.kernels.triton.sampling import sample

    device, count = logits.device, logits.shape[0]
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **params}

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.full((count,), values[name], dtype=dtype, device=device)

    return sample(
        logits,
        column("temperature", torch.float32),
        column("top_k", torch.int32),
        column("top_p", torch.float32),
        column("min_p", torch.float32),
        torch.tensor(seeds, dtype=torch.int64, device=device),
    ).tolist()


def check_greedy(vocab_size: int, device: str) -> None:
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(0)).to(device)
    logits[1, 7] = logits[1, 11] = 99.0
    logits[2, 5] = float("nan")
    assert draw(logits, [1, 2, 3], temperature=0.0) == [int(logits[0].argmax()), 7, -1]
    assert draw(logits, [1, 2, 3])[2] == -1
    # models in other precisions give logits of theirs
    for dtype in (torch.float64, torch.bfloat16):
        assert draw(logits.to(dtype), [1, 2, 3], temperature=0.0)[1:] == [7, -1]


def check_truncation(vocab_size: int, repeats: int, device: str) -> None:
    """Only tokens that the reference keeps are drawn, and rare ones among them are."""
    base = 2 * torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(1)).to(device)
    logits = base.expand(repeats, vocab_size)
    for params in (
        {"top_k": 3},
        {"top_k": 1},
        {"top_p": 0.5},
        {"top_p": 0.0},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.6, "min_p": 0.05, "temperature": 1.7},
        {"temperature": 0.3, "top_p": 0.9},
    ):
        values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **params}
        names = ("temperature", "top_k", "top_p", "min_p")
        kept = kept_tokens(base, *(torch.tensor([values[name]], device=device) for name in names))
        allowed = set(kept[0].nonzero().flatten().tolist())
        found = set(draw(logits, list(range(repeats)), **params))
        assert found <= allowed, (params, found - allowed)
        assert len(found) >= min(len(allowed), 2), (params, found)


def check_frequencies(repeats: int, device: str) -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05], device=device)
    logits = probabilities.log().expand(repeats, 4)
    found = torch.tensor(draw(logits, [17 * number + 5 for number in range(repeats)]))
    shares = torch.bincount(found, minlength=4) / repeats
    assert (shares - probabilities.cpu()).abs().max() < 3 / repeats**0.5


def check_independence(vocab_size: int, device: str) -> None:
    """What a row gives depends on its own logits and seed alone."""
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(2)).to(device)
    seeds = [3, 1, 4, 1 << 40, 5, 9]
    together = draw(logits, seeds, top_p=0.9)
    alone = [draw(logits[row : row + 1], seeds[row : row + 1], top_p=0.9)[0] for row in range(6)]
    assert together == alone
    same = logits[:1].expand(40, vocab_size)
    assert len(set(draw(same, list(range(40))))) > 5

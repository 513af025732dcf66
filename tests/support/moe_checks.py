"""Checks of the kernels for routed experts, run in Triton's interpreter and on a GPU."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.experts import Activation, ExpertStacks
from k3agent.backend.kernels.reference.moe import moe_experts as reference
from k3agent.backend.model.mxfp4 import quantize

SITU, SWIGLU = Activation(4.0, 25.0), Activation()


@lru_cache(maxsize=4)
def make_stacks(
    count: int, width: int, inner: int, is_packed: bool, device: str, seed: int = 0
) -> ExpertStacks:
    generator = torch.Generator().manual_seed(seed)
    w13 = torch.randn(count, 2 * inner, width, generator=generator) / width**0.5
    w2 = torch.randn(count, width, inner, generator=generator) / inner**0.5
    if not is_packed:
        return ExpertStacks(w13.bfloat16().to(device), w2.bfloat16().to(device))
    # rows of very different sizes use many scales
    w13 *= torch.exp2(torch.randint(-6, 3, (count, 2 * inner, 1), generator=generator))
    (a, a_scale), (b, b_scale) = quantize(w13), quantize(w2)
    return ExpertStacks(*(x.to(device) for x in (a, b, a_scale, b_scale)))


def make_choices(
    num_tokens: int, num_experts: int, top: int, device: str, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_tokens, num_experts, generator=generator)
    # some experts are chosen by nearly all, some by none
    scores[:, : num_experts // 4] -= 1
    scores[:, -1] += 0.9
    chosen = scores.topk(top, dim=-1).indices
    weights = torch.rand(num_tokens, top, generator=generator)
    return chosen.to(device), weights.to(device)


def check_experts(
    num_tokens: int,
    stacks: ExpertStacks,
    act: Activation,
    top: int,
    device: str,
    *,
    num_experts: int | None = None,
    num_rows: int | None = None,
    values: dict[str, dict[str, int]] | None = None,
) -> Tensor:
    """Agreement with the reference; returns what the kernels gave."""
    from k3agent.backend.kernels.triton.moe_experts import moe_experts

    assert stacks.suit_matrix_unit()
    generator = torch.Generator().manual_seed(num_tokens)
    z = torch.randn(num_tokens, stacks.width, generator=generator).bfloat16().to(device)
    chosen, weights = make_choices(num_tokens, num_experts or stacks.count, top, device)
    rows = None if num_rows is None else torch.tensor([num_rows], dtype=torch.int32, device=device)
    arguments = (z, chosen, weights, stacks, act, rows)
    with _Overridden(values or {}):
        found = moe_experts(*arguments)
        assert torch.equal(found, moe_experts(*arguments)), "two runs differ"
    count = num_tokens if num_rows is None else num_rows
    wide = (
        replace(stacks) if stacks.is_packed else replace(stacks, w13=stacks.w13.float(), w2=stacks.w2.float())
    )
    if not count:
        assert not found.any()
        return found
    expected = reference(z[:count].float(), chosen[:count], weights[:count], wide, act)
    error = (found[:count] - expected).norm() / expected.norm()
    assert error < 6e-3, f"{num_tokens} tokens: relative error {error:.2e}"
    assert not found[count:].any()
    return found


class _Overridden:
    """Configurations for a while, by table."""

    def __init__(self, values: dict[str, dict[str, int]]) -> None:
        self._contexts: list[Any] = [pinned.override(table, row) for table, row in values.items()]

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *reason: object) -> None:
        for context in self._contexts:
            context.__exit__(None, None, None)


def check_plan(
    num_tokens: int, num_experts: int, top: int, block_rows: int, device: str, num_rows: int | None
) -> None:
    """Every choice stands in exactly one block of its expert, in order; what is left over is marked."""
    from k3agent.backend.kernels.triton.moe_plan import plan_blocks

    chosen, _ = make_choices(num_tokens, num_experts, top, device)
    first, count = num_experts // 4 + 1, num_experts - num_experts // 4 - 1
    rows = None if num_rows is None else torch.tensor([num_rows], dtype=torch.int32, device=device)
    plan = plan_blocks(chosen.to(torch.int32), first, count, block_rows, rows)
    experts, choices = plan.expert.tolist(), plan.choices.view(-1, block_rows).tolist()
    expected: dict[int, list[int]] = {}
    for number, expert in enumerate(chosen[:num_rows].flatten().tolist()):
        if expert >= first:
            expected.setdefault(expert - first, []).append(number)
    found: dict[int, list[int]] = {}
    used = [(expert, row) for expert, row in zip(experts, choices, strict=True) if expert >= 0]
    for expert, row in used:
        kept = [choice for choice in row if choice >= 0]
        assert row == kept + [-1] * (block_rows - len(kept))
        found.setdefault(expert, []).extend(kept)
    assert found == expected
    assert list(found) == sorted(found)
    assert experts[len(used) :] == [-1] * (len(experts) - len(used))


def check_route(num_tokens: int, num_experts: int, top: int, activation: str, device: str) -> None:
    """The same experts with the same weights as the reference gives."""
    from k3agent.backend.kernels.reference.router import route as plain
    from k3agent.backend.kernels.triton.router import route

    generator = torch.Generator().manual_seed(num_tokens)
    logits = 3 * torch.randn(num_tokens, num_experts, generator=generator).to(device)
    bias = 0.2 * torch.randn(num_experts, generator=generator).to(device)
    options = {"activation": activation, "renormalize": activation == "sigmoid", "scaling": 2.5}
    chosen, weights = route(logits, bias, top, **options)
    expected, _ = plain(logits, bias, top, **options)
    assert all(len(set(row)) == top for row in chosen.tolist())
    # experts may swap places where rounding decides: what they score must be the same
    scores = torch.sigmoid(logits) if activation == "sigmoid" else torch.softmax(logits, dim=-1)
    biased, chosen = scores + bias, chosen.long()
    torch.testing.assert_close(biased.gather(-1, chosen), biased.gather(-1, expected))
    own = scores.gather(-1, chosen)
    if options["renormalize"]:
        own = own / own.sum(-1, keepdim=True)
    torch.testing.assert_close(weights, own * options["scaling"])


def check_rows(num_rows: int, width: int, device: str) -> None:
    """RMS norm and gated activations of rows that lie apart in memory."""
    from k3agent.backend.kernels.reference.gated_act import situ_glu, swiglu
    from k3agent.backend.kernels.reference.rms_norm import rms_norm
    from k3agent.backend.kernels.triton import rows

    generator = torch.Generator().manual_seed(width)
    x = (20 * torch.randn(num_rows, 2 * width, generator=generator)).bfloat16().to(device)
    gate, up = x.chunk(2, dim=-1)
    weight = torch.randn(width, generator=generator).bfloat16().to(device)
    close = {"rtol": 0.01, "atol": 1e-3}
    torch.testing.assert_close(rows.rms_norm(gate, weight, 1e-5), rms_norm(gate, weight, 1e-5), **close)
    torch.testing.assert_close(rows.swiglu(gate, up), swiglu(gate, up), **close)
    torch.testing.assert_close(rows.situ_glu(gate, up, 4.0, 25.0), situ_glu(gate, up, 4.0, 25.0), **close)

"""Checks of the MLA kernels that read pages, against their reference; for any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.kernels.reference.mla_layer import mla_attend, mla_store
from k3agent.backend.model.tables import Tables
from support.kda_checks import assert_near

POISON = float("nan")


@dataclass
class Problem:
    q: Tensor
    latent: Tensor
    norm: Tensor
    key_up: Tensor
    value_up: Tensor
    latents: Tensor
    tables: Tables
    scale: float


def make_problem(
    lengths: Sequence[int],
    contexts: Sequence[int],
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    heads: int = 3,
    nope: int = 16,
    shared: int = 16,
    rank: int = 32,
    value: int = 16,
    padding: int = 0,
    seed: int = 0,
) -> Problem:
    """Sequences with cached rows in pages of any order; rows behind their ends are poisoned."""
    generator = torch.Generator().manual_seed(seed)
    count, num_rows = len(lengths), sum(lengths) + padding
    ends = [before + length for before, length in zip(contexts, lengths, strict=True)]
    num_pages = sum(-(-end // PAGE_SIZE) for end in ends)
    order = torch.randperm(num_pages, generator=generator).tolist()
    widest = max(1, *(-(-end // PAGE_SIZE) for end in ends))
    latents = torch.full((num_pages, PAGE_SIZE, rank + shared), POISON)
    table = torch.zeros((count, widest), dtype=torch.int32)
    for b, end in enumerate(ends):
        for page in range(-(-end // PAGE_SIZE)):
            table[b, page] = order.pop()
            held = min(PAGE_SIZE, max(0, contexts[b] - page * PAGE_SIZE))
            latents[table[b, page], :held] = torch.randn((held, rank + shared), generator=generator)

    def noise(*shape: int, factor: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator) * factor).to(device, dtype)

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    up = noise(heads, nope + value, rank, factor=rank**-0.5)
    return Problem(
        q=noise(num_rows, heads, nope + shared, factor=2.0),
        latent=noise(num_rows, rank + shared + 8)[:, : rank + shared],
        norm=noise(rank),
        key_up=up[:, :nope],
        value_up=up[:, nope:],
        latents=latents.to(device, dtype),
        tables=Tables(
            cu_seqlens=ints([sum(lengths[:b]) for b in range(count + 1)]),
            context_lens=ints(contexts),
            slots=ints(range(count)),
            has_state=ints([1] * count),
            page_table=table.to(device),
            num_rows=ints([sum(lengths)]),
            longest=max(lengths),
        ),
        scale=(nope + shared) ** -0.5,
    )


def check_store(store: Callable[..., None], problem: Problem, tolerance: float) -> None:
    """Each row is where its position says, normed; nothing else was written."""
    expected, found = problem.latents.clone(), problem.latents.clone()
    rest = (problem.latent, problem.norm, 1e-6)
    mla_store(*rest, expected, problem.tables)
    store(*rest, found, problem.tables)
    assert torch.equal(found.isnan(), expected.isnan())
    assert_near(found.nan_to_num(), expected.nan_to_num(), tolerance, "latents")


def check_attention(
    attend: Callable[..., Tensor], problem: Problem, tolerance: float, **options: object
) -> None:
    """Attention over what the cache holds and the step's own rows."""
    mla_store(problem.latent, problem.norm, 1e-6, problem.latents, problem.tables)
    rest = (problem.q, problem.key_up, problem.value_up, problem.scale, problem.latents, problem.tables)
    rows = int(problem.tables.cu_seqlens[-1])
    expected, found = mla_attend(*rest)[:rows], attend(*rest, **options)[:rows]
    assert_near(found, expected, tolerance, "attention")


def check_repeat(attend: Callable[..., Tensor], problem: Problem, times: int, **options: object) -> None:
    """The same bits each time."""
    mla_store(problem.latent, problem.norm, 1e-6, problem.latents, problem.tables)
    rest = (problem.q, problem.key_up, problem.value_up, problem.scale, problem.latents, problem.tables)
    rows = int(problem.tables.cu_seqlens[-1])
    first = attend(*rest, **options)[:rows]
    for _ in range(times):
        assert torch.equal(attend(*rest, **options)[:rows], first)

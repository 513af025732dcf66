"""Checks of the KDA kernels that take a whole step, against their reference; for any device."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from k3agent.backend.kernels.arguments import KdaCache, KdaInputs, KdaWeights
from k3agent.backend.kernels.reference.kda_layer import kda_layer
from k3agent.backend.model.tables import Tables

BOUND = -5.0
Kernel = Callable[[KdaInputs, KdaWeights, KdaCache, Tables], Tensor]


@dataclasses.dataclass
class Problem:
    inputs: KdaInputs
    weights: KdaWeights
    cache: KdaCache
    tables: Tables

    def copy(self) -> Problem:
        cache = KdaCache(self.cache.tails.clone(), self.cache.states.clone())
        return Problem(self.inputs, self.weights, cache, self.tables)


def decays(generator: torch.Generator, *shape: int) -> Tensor:
    """Log-uniform from forgetting nothing to forgetting nearly all."""
    return torch.exp(torch.rand(shape, generator=generator) * 9.2 - 9.2)


def make_weights(heads: int, dim: int, bound: float | None, seed: int = 0) -> KdaWeights:
    generator = torch.Generator().manual_seed(seed)
    return KdaWeights(
        taps=torch.randn((4, 3 * heads * dim), generator=generator) * 0.6,
        A_log=torch.randn(heads, generator=generator) * 0.3,
        dt_bias=torch.randn(heads * dim, generator=generator),
        norm=1 + 0.2 * torch.randn(dim, generator=generator),
        norm_eps=1e-5,
        l2_eps=1e-6,
        lower_bound=bound,
    )


def make_problem(
    lengths: Sequence[int],
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    heads: int = 2,
    dim: int = 16,
    bound: float | None = BOUND,
    fresh: Sequence[int] = (),
    exports: dict[int, int] | None = None,
    seed: int = 0,
    padding: int = 0,
) -> Problem:
    """Sequences of these lengths; `fresh` ones start from zero. The projections are views of one matrix."""
    generator = torch.Generator().manual_seed(seed)
    num_rows, width, count = sum(lengths) + padding, heads * dim, len(lengths)
    matrix = torch.randn((num_rows, 5 * width + heads), generator=generator)
    # decays from 1 - 1e-4 to the bound, all channels different
    wanted = -decays(generator, num_rows, width) * 4.9
    matrix[:, 4 * width : 5 * width] = torch.logit((wanted / (bound or -5.0)).clamp(1e-6, 1 - 1e-6))
    matrix = matrix.to(device, dtype)
    qkv, gate, z, beta = matrix.split([3 * width, width, width, heads], dim=-1)
    tails = torch.randn((count + 8, 3, 3 * width), generator=generator).to(device, dtype)
    states = torch.randn((count + 8, heads, dim, dim), generator=generator).to(device)
    on_device = {
        field.name: value.to(device) if isinstance(value, Tensor) else value
        for field in dataclasses.fields(KdaWeights)
        for value in [getattr(make_weights(heads, dim, bound, seed), field.name)]
    }
    return Problem(
        KdaInputs(qkv, z, beta, gate),
        KdaWeights(**on_device),
        KdaCache(tails, states),
        make_tables(lengths, fresh, exports, num_rows, device),
    )


def make_tables(
    lengths: Sequence[int], fresh: Sequence[int], exports: dict[int, int] | None, num_rows: int, device: str
) -> Tables:
    count = len(lengths)

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    table = None
    if exports is not None:
        table = ints([exports.get(row, -1) for row in range(num_rows)])
    return Tables(
        cu_seqlens=ints([sum(lengths[:b]) for b in range(count + 1)]),
        context_lens=ints([0] * count),
        slots=ints([count - b for b in range(count)]),
        has_state=ints([int(b not in fresh) for b in range(count)]),
        page_table=ints([[0]] * count),
        num_rows=ints([sum(lengths)]),
        longest=max(lengths),
        shortest=min(lengths),
        exports=table,
    )


def check_agreement(kernel: Kernel, problem: Problem, tolerance: float) -> None:
    """Output, states and tails of the kernel are those of the reference, and untouched slots stay."""
    expected, found = problem.copy(), problem.copy()
    rows = int(problem.tables.cu_seqlens[-1])
    expected_y = kda_layer(expected.inputs, expected.weights, expected.cache, expected.tables)[:rows]
    found_y = kernel(found.inputs, found.weights, found.cache, found.tables)[:rows]
    assert torch.equal(found.cache.tails, expected.cache.tails)
    assert_near(found.cache.states, expected.cache.states, tolerance, "states")
    assert_near(found_y, expected_y, tolerance, "y")


def assert_near(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Relative to the size of the whole, and no single value off by much more."""
    found, expected = found.double(), expected.double()
    error = (found - expected).norm() / expected.norm()
    largest = (found - expected).abs().max() / expected.abs().max()
    assert error <= tolerance, f"{what}: relative error {error:.2e}"
    assert largest <= 10 * tolerance, f"{what}: largest error {largest:.2e}"


def check_pieces(kernel: Kernel, problem: Problem, cuts: Sequence[int]) -> None:
    """One sequence cut at these rows, each piece resumed from the state that the last one left, gives the
    same bits as the whole; also when the state went through memory elsewhere."""
    whole, cut = problem.copy(), problem.copy()
    num_rows = int(problem.tables.cu_seqlens[-1])
    expected = kernel(whole.inputs, whole.weights, whole.cache, whole.tables)
    device = str(problem.inputs.qkv.device)
    slot = int(problem.tables.slots[0])
    parts = []
    for begin, end in zip([0, *cuts], [*cuts, num_rows], strict=True):
        tables = make_tables([end - begin], (), None, end - begin, device)
        tables.slots[0] = slot
        parts.append(kernel(rows_of(problem.inputs, begin, end), cut.weights, cut.cache, tables))
        saved = cut.cache.states[slot].cpu(), cut.cache.tails[slot].cpu()
        cut.cache.states[slot], cut.cache.tails[slot] = saved[0].to(device), saved[1].to(device)
    assert torch.equal(torch.cat(parts), expected[:num_rows])
    assert torch.equal(cut.cache.states, whole.cache.states)
    assert torch.equal(cut.cache.tails, whole.cache.tails)


def check_independence(kernel: Kernel, problem: Problem) -> None:
    """Each sequence alone gives the bits that it gives beside the others."""
    together = problem.copy()
    expected = kernel(together.inputs, together.weights, together.cache, together.tables)
    starts = problem.tables.cu_seqlens.tolist()
    for b, (begin, end) in enumerate(itertools.pairwise(starts)):
        alone = problem.copy()
        fresh = [] if int(problem.tables.has_state[b]) else [0]
        tables = make_tables([end - begin], fresh, None, end - begin, str(expected.device))
        slot = int(problem.tables.slots[b])
        tables.slots[0] = slot
        found = kernel(rows_of(problem.inputs, begin, end), alone.weights, alone.cache, tables)
        assert torch.equal(found, expected[begin:end])
        assert torch.equal(alone.cache.states[slot], together.cache.states[slot])


def rows_of(inputs: KdaInputs, begin: int, end: int) -> KdaInputs:
    return KdaInputs(*(getattr(inputs, field.name)[begin:end] for field in dataclasses.fields(KdaInputs)))

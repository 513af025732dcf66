"""Two forms of one operation give the same: chunks and recurrence, absorbed and expanded, pieces and
whole."""

import pytest
import torch
from torch import Tensor

from k3agent.backend.kernels.reference.causal_conv import causal_conv, causal_conv_step
from k3agent.backend.kernels.reference.kda_chunk import CHUNK, kda_chunk
from k3agent.backend.kernels.reference.kda_short import kda_short
from k3agent.backend.kernels.reference.kda_step import kda_recurrent
from k3agent.backend.kernels.reference.mla import mla_absorbed, mla_expanded

HEADS, WIDTH = 2, 16
GATES = {
    "bounded": (-5.0, lambda z: -5 * torch.sigmoid(3 * z)),
    "bounded, always at the limit": (-5.0, lambda z: torch.full_like(z, -5.0)),
    "unbounded": (None, lambda z: -torch.nn.functional.softplus(2 * z)),
    "unbounded, fast decay": (None, lambda z: -300 * torch.sigmoid(8 * z)),
}


def inputs(
    num_tokens: int, gate: str, dtype: torch.dtype, seed: int = 0
) -> tuple[tuple[Tensor, ...], Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(noise(num_tokens, HEADS, WIDTH), dim=-1) for _ in range(2))
    v, z = noise(num_tokens, HEADS, WIDTH), noise(num_tokens, HEADS, WIDTH)
    beta = torch.sigmoid(noise(num_tokens, HEADS))
    tensors = (q * WIDTH**-0.5, k, v, GATES[gate][1](z), beta)
    return tuple(t.to(dtype) for t in tensors), noise(HEADS, WIDTH, WIDTH).to(dtype)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 64, 65, 200])
def test_chunks_equal_the_recurrence(gate: str, num_tokens: int) -> None:
    tensors, start = inputs(num_tokens, gate, torch.float64)
    expected_state, state = start.clone(), start.clone()
    expected = kda_recurrent(*tensors, expected_state)
    found = kda_chunk(*tensors, state, lower_bound=GATES[gate][0])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(state, expected_state, rtol=0, atol=1e-11)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("num_tokens", [1, 2, 7])
def test_short_pieces_equal_the_recurrence_and_leave_a_trail(gate: str, num_tokens: int) -> None:
    tensors, start = inputs(num_tokens, gate, torch.float64)
    expected_state = start.clone()
    expected = kda_recurrent(*tensors, expected_state)
    for num_trail in range(num_tokens):
        state = start.clone()
        trail = [torch.full_like(start, torch.nan) for _ in range(num_trail)]
        found = kda_short(*tensors, state, trail)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
        torch.testing.assert_close(state, expected_state, rtol=0, atol=1e-11)
        for back, filed in enumerate(reversed(trail), 1):
            before = start.clone()
            kda_recurrent(*(x[: num_tokens - back] for x in tensors), before)
            torch.testing.assert_close(filed, before, rtol=0, atol=1e-11)


@pytest.mark.parametrize("gate", GATES)
def test_chunks_are_accurate_in_float32(gate: str) -> None:
    exact, start = inputs(300, gate, torch.float64)
    expected = kda_recurrent(*exact, start.clone())
    found = kda_chunk(*(t.float() for t in exact), start.float(), lower_bound=GATES[gate][0])
    assert found.isfinite().all()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("gate", ["bounded", "unbounded"])
def test_a_cut_on_the_grid_changes_no_bit_of_kda(gate: str) -> None:
    tensors, start = inputs(5 * CHUNK + 7, gate, torch.float32)
    whole_state, state = start.clone(), start.clone()
    whole = kda_chunk(*tensors, whole_state, lower_bound=GATES[gate][0])
    cuts = [t.split([2 * CHUNK, CHUNK, 2 * CHUNK + 7]) for t in tensors]
    pieces = [kda_chunk(*part, state, lower_bound=GATES[gate][0]) for part in zip(*cuts, strict=True)]
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(state, whole_state)


@pytest.mark.parametrize(("num_queries", "num_before"), [(1, 0), (1, 300), (7, 0), (200, 0), (200, 90)])
def test_absorbed_equals_expanded(num_queries: int, num_before: int) -> None:
    heads, nope, shared, rank, v_dim = 3, 8, 4, 10, 6
    q = torch.randn(num_queries, heads, nope + shared, dtype=torch.float64)
    rows = torch.randn(num_before + num_queries, rank + shared, dtype=torch.float64)
    up = torch.randn(heads, nope + v_dim, rank, dtype=torch.float64)
    arguments = (q, rows, up[:, :nope], up[:, nope:], (nope + shared) ** -0.5, num_before)
    absorbed, expanded = mla_absorbed(*arguments), mla_expanded(*arguments)
    torch.testing.assert_close(absorbed, expanded, rtol=0, atol=1e-11)
    # The definition, for the last query, which sees every row.
    keys = torch.cat((rows[:, :rank] @ up[1, :nope].t(), rows[:, rank:]), dim=-1)
    p = torch.softmax(keys @ q[-1, 1] * (nope + shared) ** -0.5, dim=0)
    torch.testing.assert_close(expanded[-1, 1], p @ (rows[:, :rank] @ up[1, nope:].t()), rtol=0, atol=1e-11)


def test_convolution_in_pieces() -> None:
    x, weight = torch.randn(20, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    padded = torch.cat((torch.zeros(3, 6, dtype=torch.float64), x))
    expected = torch.nn.functional.silu(sum(padded[j : j + 20] * weight[j] for j in range(4)))
    tail = torch.zeros(3, 6, dtype=torch.float64)
    found = [causal_conv(x[:2], tail, weight), causal_conv(x[2:9], tail, weight)]
    found += [causal_conv_step(x[t : t + 1], tail.unsqueeze(0), weight) for t in range(9, 20)]
    torch.testing.assert_close(torch.cat(found), expected)
    assert torch.equal(tail, x[-3:])


def test_convolution_of_one_tap_remembers_nothing() -> None:
    x, weight = torch.randn(5, 6, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)
    tail, expected = torch.zeros(0, 6, dtype=torch.float64), torch.nn.functional.silu(x * weight)
    torch.testing.assert_close(causal_conv(x, tail, weight), expected)
    torch.testing.assert_close(causal_conv_step(x, tail.expand(5, 0, 6), weight), expected)

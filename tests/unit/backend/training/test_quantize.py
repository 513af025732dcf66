"""Rounding in training against the packing of the file."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.model import mxfp8
from k3agent.backend.model.mxfp4 import dequantize, quantize
from k3agent.backend.training.quantize import refresh, round_groups, round_inputs


def packed_values(flat: torch.Tensor) -> torch.Tensor:
    return dequantize(*quantize(flat.view(1, -1))).view(-1)


def test_equals_the_packed_file_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    magnitudes = torch.logspace(-20, 6, 512)[:, None]
    values = (torch.randn(512, 32, generator=generator) * magnitudes).flatten()
    assert torch.equal(round_groups(values), packed_values(values))
    # bf16 holds the rounded values exactly: that is what the network computes with.
    compute = torch.zeros(values.shape, dtype=torch.bfloat16)
    refresh(compute, values, rounded=True)
    assert torch.equal(compute.float(), packed_values(values))


@given(st.lists(st.sampled_from([x / 16 for x in range(-112, 113)]), min_size=32, max_size=32))
def test_ties_and_saturation(values: list[float]) -> None:
    # Multiples of 1/16 up to 7 hit each border between two codes exactly.
    group = torch.tensor(values)
    assert torch.equal(round_groups(group), packed_values(group))


def test_a_group_of_zeros_stays_zero() -> None:
    assert torch.equal(round_groups(torch.zeros(64)), torch.zeros(64))


def test_plain_copy_when_not_rounded() -> None:
    master = torch.linspace(-1, 1, 64)
    compute = torch.zeros(64)
    refresh(compute, master, rounded=False)
    assert torch.equal(compute, master)
    refresh(compute, master, rounded=True)
    assert not torch.equal(compute, master)


def test_inputs_are_rounded_as_the_model_rounds_them() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 96, generator=generator) * torch.logspace(-9, 9, 64)[:, None]
    x[3] = 0.0
    x[5, ::7] = 448.0 * 1.06
    assert torch.equal(round_inputs(x), mxfp8.dequantize(*mxfp8.quantize(x)))
    short = x.bfloat16()
    assert torch.equal(round_inputs(short), mxfp8.dequantize(*mxfp8.quantize(short), dtype=torch.bfloat16))


def test_gradients_pass_through_rounded_inputs() -> None:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(2)).requires_grad_()
    weight = torch.arange(32.0)
    (round_inputs(x) @ weight).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, weight.expand(4, 32))

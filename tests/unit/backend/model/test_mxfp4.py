"""MXFP4: the byte layout, the rounding rule, and that packing is undone exactly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.errors import BackendError
from k3agent.backend.model.mxfp4 import dequantize, quantize

CODES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize(
    ("byte", "scale", "even", "odd"),
    [(0x21, 127, 0.5, 1.0), (0xF7, 126, 3.0, -3.0), (0x9C, 130, -16.0, -4.0), (0x08, 127, -0.0, 0.0)],
)
def test_golden_bytes(byte: int, scale: int, even: float, odd: float) -> None:
    packed = torch.full((1, 16), byte, dtype=torch.uint8)
    value = dequantize(packed, torch.tensor([[scale]], dtype=torch.uint8))
    assert value[0, :2].tolist() == [even, odd]
    assert torch.signbit(value[0, 0]).item() == (str(even)[0] == "-")


SIGNED = [sign * code for code in CODES for sign in (1, -1)]


@given(st.lists(st.sampled_from(SIGNED), min_size=32, max_size=32), st.integers(-20, 20))
def test_representable_values_survive(codes: list[float], exponent: int) -> None:
    codes[0] = 6.0
    w = torch.tensor([codes]) * 2.0**exponent
    packed, scale = quantize(w)
    assert packed.shape == (1, 16) and scale.tolist() == [[127 + exponent]]
    assert torch.equal(dequantize(packed, scale), w)
    assert torch.equal(dequantize(packed, scale, torch.bfloat16).float(), w)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.25, 0.0), (0.26, 0.5), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)],
)
def test_nearest_with_ties_to_the_even_code(value: float, rounded: float) -> None:
    w = torch.zeros(1, 32)
    w[0, 0], w[0, 1], w[0, 2] = 7.9, value, -value
    assert dequantize(*quantize(w))[0, :3].tolist() == [6.0, rounded, -rounded]


def test_zero_group_and_stacks() -> None:
    w = torch.randn(3, 4, 64)
    w[0, 0, :32] = 0
    packed, scale = quantize(w)
    assert packed.shape == (3, 4, 32) and scale.shape == (3, 4, 2)
    assert not dequantize(packed, scale)[0, 0, :32].any()


def test_odd_width_is_refused() -> None:
    with pytest.raises(BackendError, match="33 columns"):
        quantize(torch.zeros(1, 33))


def test_what_the_format_cannot_hold() -> None:
    with pytest.raises(BackendError, match="inf or nan"):
        quantize(torch.full((1, 32), float("nan")))
    packed, scale = quantize(torch.ones(1, 32))
    assert dequantize(packed, torch.full_like(scale, 255)).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_byte_and_scale_is_exact(dtype: torch.dtype) -> None:
    """All 256 bytes under the scales of the release and both ends of the normal range."""
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16)
    for byte in (2, 110, 127, 140, 251):
        scale = torch.full((16, 1), byte, dtype=torch.uint8)
        found = dequantize(packed, scale, dtype).double().flatten().view(256, 2)
        for code in range(256):
            for place, nibble in enumerate((code & 15, code >> 4)):
                expected = CODES[nibble & 7] * (-1 if nibble & 8 else 1) * 2.0 ** (byte - 127)
                assert found[code, place].item() == expected

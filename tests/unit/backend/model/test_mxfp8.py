"""MXFP8: golden bytes, the rounding rule against exact arithmetic, and that packing is undone exactly."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.errors import BackendError
from k3agent.backend.model.mxfp8 import dequantize, quantize


def row(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """One group that begins with `values`."""
    return torch.tensor([[*values, *([0.0] * (32 - len(values)))]], dtype=dtype)


@pytest.mark.parametrize(
    ("byte", "scale", "value"),
    [
        (0x00, 127, 0.0),
        (0x80, 127, -0.0),
        (0x01, 127, 2.0**-9),
        (0x08, 127, 2.0**-6),
        (0x38, 127, 1.0),
        (0xBC, 127, -1.5),
        (0x7E, 127, 448.0),
        (0x38, 130, 8.0),
        (0xFE, 119, -1.75),
        (0x39, 0, 1.125 * 2.0**-127),
    ],
)
def test_golden_bytes(byte: int, scale: int, value: float) -> None:
    codes = torch.full((1, 32), byte, dtype=torch.uint8)
    found = dequantize(codes, torch.tensor([[scale]], dtype=torch.uint8), torch.float64)
    assert found[0, 0].item() == value and math.copysign(1, found[0, 0].item()) == math.copysign(1, value)


def test_golden_group() -> None:
    """Largest 3: exponent 1 - 8 = -7, so values are multiplied by 128 and rounded to three bits."""
    codes, scale = quantize(row(3.0, -1.0, 0.5, 0.1, -0.0))
    assert scale.tolist() == [[120]]
    # 384 = 1.5 * 2^8, -128, 64, 12.8 -> 13
    assert codes[0, :5].tolist() == [0x7C, 0xF0, 0x68, 0x55, 0x80]


def test_saturates_and_ties_to_even() -> None:
    # 511.9 saturates; 17 lies between 16 (even) and 18, 19 between 18 and 20 (even); 2^-10 between 0 and 2^-9
    codes, scale = quantize(row(511.9, 17.0, 19.0, 2.0**-10, 3 * 2.0**-10))
    assert scale.tolist() == [[127]]
    assert dequantize(codes, scale)[0, :5].tolist() == [448.0, 16.0, 20.0, 0.0, 2.0**-8]


def test_rounds_once_from_float64() -> None:
    """A hair above a tie goes up, although fp32 cannot tell it from the tie."""
    codes, scale = quantize(row(256.0, 17.0 + 2.0**-40))
    assert dequantize(codes, scale)[0, 1].item() == 18.0


def test_every_code_survives() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F]
    for code in codes.split(1):
        group = torch.full((1, 32), 0x7E, dtype=torch.uint8)
        group[0, 1] = code
        scale = torch.tensor([[100]], dtype=torch.uint8)
        for dtype in (torch.float32, torch.bfloat16):
            again, scale_again = quantize(dequantize(group, scale, dtype))
            assert torch.equal(again, group) and torch.equal(scale_again, scale)


def nearest(value: Fraction) -> Fraction:
    """The E4M3 number nearest to `value` by exact comparison, ties to the even code."""
    numbers = [
        (Fraction(m, 512) if e == 0 else Fraction(8 + m, 8) * Fraction(2) ** (e - 7), e * 8 + m)
        for e in range(16)
        for m in range(8)
        if (e, m) != (15, 7)
    ]
    best = min(abs(abs(value) - number) for number, _ in numbers)
    candidates = [(code % 2, number) for number, code in numbers if abs(abs(value) - number) == best]
    return min(candidates)[1] * (-1 if value < 0 else 1)


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False, width=32), min_size=32, max_size=32))
def test_the_rule(values: list[float]) -> None:
    codes, scale = quantize(torch.tensor([values]))
    largest = max(abs(Fraction(v)) for v in values)
    exponent = scale.item() - 127
    if largest:
        assert Fraction(2) ** (exponent + 8) <= largest < Fraction(2) ** (exponent + 9) or exponent == -127
    unit = Fraction(2) ** exponent
    found = dequantize(codes, scale, torch.float64)[0].tolist()
    for value, back in list(zip(values, found, strict=True))[:4]:
        assert Fraction(back) == nearest(Fraction(value) / unit) * unit


def test_stacks_and_refusals() -> None:
    codes, scale = quantize(torch.randn(2, 3, 64))
    assert codes.shape == (2, 3, 64) and scale.shape == (2, 3, 2)
    assert dequantize(codes, torch.full_like(scale, 255)).isnan().all()
    with pytest.raises(BackendError, match="33 columns"):
        quantize(torch.zeros(1, 33))
    with pytest.raises(BackendError, match="inf or nan"):
        quantize(row(math.inf))
    with pytest.raises(BackendError, match="do not fit"):
        dequantize(codes, scale[..., :1])

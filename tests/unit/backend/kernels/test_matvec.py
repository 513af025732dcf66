"""Matrix times vector: int8 only where it loses nothing, and the same numbers either way."""

import pytest
import torch

from k3agent.backend.kernels.matvec import Matvec, exact_int8, has_int8_kernel
from k3agent.backend.model.mxfp4 import dequantize, quantize


def mxfp4_weight(rows: int = 96, columns: int = 64) -> torch.Tensor:
    return dequantize(*quantize(torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) / 8))


def test_mxfp4_rows_are_exact_in_int8() -> None:
    weight = mxfp4_weight()
    weight[3] = 0
    found = exact_int8(weight)
    assert found is not None
    assert torch.equal(found[0].float() * found[1].float().unsqueeze(-1), weight)


@pytest.mark.parametrize("weight", [torch.randn(8, 64), torch.tensor([[2.0**-9] * 32 + [1.0] * 32])])
def test_other_weights_stay_as_they_are(weight: torch.Tensor) -> None:
    assert exact_int8(weight) is None
    matvec = Matvec(weight, use_int8=True)
    x = torch.randn(64)
    assert not matvec.is_int8 and torch.equal(matvec(x), torch.mv(weight, x))


@pytest.mark.skipif(not has_int8_kernel(), reason="this PyTorch has no int8 kernel")
def test_int8_differs_by_the_rounding_of_activations_only() -> None:
    weight = mxfp4_weight()
    x = torch.randn(64, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    matvec = Matvec(weight, use_int8=True)
    assert matvec.is_int8
    expected = torch.mv(weight, x)
    torch.testing.assert_close(matvec(x), expected, rtol=2**-8, atol=1e-3)
    y = torch.randn(96)
    # the product is rounded, not the sum, so what is compared is what was added
    torch.testing.assert_close(matvec.plus(y.clone(), x, 0.5) - y, 0.5 * expected, rtol=2**-8, atol=1e-3)


def test_plus_without_int8() -> None:
    weight, x, y = torch.randn(5, 7), torch.randn(7), torch.randn(5)
    torch.testing.assert_close(Matvec(weight).plus(y.clone(), x, 0.5), y + 0.5 * weight @ x)

"""Reference kernels against golden numbers computed independently in float64."""

import pytest
import torch
from torch import Tensor

from k3agent.backend.kernels.reference.attn_res import mix, mix_folded
from k3agent.backend.kernels.reference.gated_act import situ_glu, swiglu
from k3agent.backend.kernels.reference.kda_gate import kda_gate
from k3agent.backend.kernels.reference.kda_step import kda_recurrent
from k3agent.backend.kernels.reference.router import route

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def double(*values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("gate", "up", "expected"),
    [
        (1, 1, 0.7158178280748404),
        (-2, 3, -0.6578738185454248),
        (10, 40, 90.92900922276633),
        (0.5, -0.25, -0.07740210626268235),
        (100, -100, -99.93292997390671),
    ],
)
def test_situ(gate: float, up: float, expected: float) -> None:
    torch.testing.assert_close(situ_glu(double(gate), double(up), 4.0, 25.0), double(expected), **TIGHT)


def test_swiglu() -> None:
    a, b = torch.randn(2, 5, dtype=torch.float64)
    torch.testing.assert_close(swiglu(a, b), a / (1 + torch.exp(-a)) * b, **TIGHT)


@pytest.mark.parametrize(
    ("z", "a_log", "bounded", "softplus"),
    [
        (0, 0, -2.5, -0.6931471805599453),
        (2, 0, -4.403985389889412, -2.1269280110429727),
        (-4, 0, -0.0899310498104578, -0.018149927917809738),
        (1, 0.5, -4.193590758022151, -2.165202478206839),
        (-10, 1, -7.827480975693038e-12, -1.2340700277324674e-4),
    ],
)
def test_gate(z: float, a_log: float, bounded: float, softplus: float) -> None:
    inputs = double(z).view(1, 1, 1), double(a_log).view(1, 1)
    relative = {"rtol": 1e-10, "atol": 0.0}
    torch.testing.assert_close(kda_gate(*inputs, -5.0).flatten(), double(bounded), **relative)
    torch.testing.assert_close(kda_gate(*inputs, None).flatten(), double(softplus), **relative)


def test_kda() -> None:
    def normalised(x: Tensor) -> Tensor:
        return (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)).unsqueeze(1)

    q = normalised(double([3, 4], [1, 0], [0, 2])) * 2**-0.5
    k = normalised(double([1, 0], [3, 4], [1, 1]))
    v = double([1, 2], [-1, 0.5], [2, -2]).unsqueeze(1)
    g = double([-0.1, -0.2], [-0.5, -1], [-2, -0.25]).unsqueeze(1)
    beta = double(0.5, 0.25, 0.75).unsqueeze(1)
    S = torch.zeros(1, 2, 2, dtype=torch.float64)
    o = kda_recurrent(q, k, v, g, beta, S)
    expected = double(
        [0.21213192404738818, 0.42426384809477635],
        [0.08907512743576468, 0.4433151599307646],
        [0.664116661279737, -0.7631308322511495],
    )
    torch.testing.assert_close(o.squeeze(1), expected, **TIGHT)
    state = double([1.1403534019067756, -1.015578771033978], [0.9392029067800842, -1.079230107738381])
    torch.testing.assert_close(S[0], state, **TIGHT)


def test_attention_residuals() -> None:
    sources = double([1, -2, 3, 0], [0.5, 0.5, -1, 2], [0, 4, 0, -1]).unsqueeze(0)
    norm, proj = double(1, 0.5, 2, 1), double(0.3, -0.2, 0.1, 0.4)
    expected = double(0.630603612886335, 0.004916000819801591, 0.8344992293480631, 0.6879152221972771)
    torch.testing.assert_close(mix(sources, norm, proj, 1e-5)[0], expected, **TIGHT)
    inverse_rms = torch.rsqrt(sources.square().mean(-1) + 1e-5)
    torch.testing.assert_close(mix_folded(sources, inverse_rms, norm * proj)[0], expected, **TIGHT)


def test_router() -> None:
    options = {"activation": "sigmoid", "renormalize": True, "scaling": 1.0}
    logits, bias = double([2, -1, 0.5, 0]), double(-0.3, 0.4, 0.1, 0)
    chosen, weights = route(logits, bias, 2, **options)
    assert chosen.tolist() == [[2, 1]]
    torch.testing.assert_close(weights[0], double(0.698293477323133, 0.30170652267686704), **TIGHT)
    _, scaled = route(logits, bias, 2, **(options | {"scaling": 2.446}))
    torch.testing.assert_close(scaled, weights * 2.446, **TIGHT)
    _, raw = route(logits, bias, 2, **(options | {"renormalize": False}))
    torch.testing.assert_close(raw, torch.sigmoid(logits[:, [2, 1]]), **TIGHT)

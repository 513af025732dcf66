"""Small operations on rows that PyTorch takes many launches for: RMS norm, and the gated activations."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST_COLUMNS = 8192
"""Of a row that one program holds at once."""
_ACT_COLUMNS = 1024


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Arguments and result as in kernels.reference.rms_norm; rows of x may lie apart in memory."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    out = torch.empty((rows.shape[0], width), dtype=x.dtype, device=x.device)
    block = min(triton.next_power_of_2(width), _MOST_COLUMNS)
    _rms_norm[(rows.shape[0],)](
        rows, weight, out, rows.stride(0), eps, WIDTH=width, BLOCK=block, num_warps=_warps(block)
    )
    return out.view(x.shape)


def situ_glu(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """Arguments and result as in kernels.reference.gated_act."""
    return _gated(gate, up, float(beta), float(linear_beta), is_situ=True)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Arguments and result as in kernels.reference.gated_act."""
    return _gated(gate, up, 1.0, 1.0, is_situ=False)


def _gated(gate: Tensor, up: Tensor, beta: float, linear_beta: float, *, is_situ: bool) -> Tensor:
    width = gate.shape[-1]
    gates, ups = gate.reshape(-1, width), up.reshape(-1, width)
    out = torch.empty((gates.shape[0], width), dtype=gate.dtype, device=gate.device)
    block = min(triton.next_power_of_2(width), _ACT_COLUMNS)
    _gated_rows[(gates.shape[0], triton.cdiv(width, block))](
        gates, ups, out, gates.stride(0), ups.stride(0), beta, linear_beta,
        WIDTH=width, BLOCK=block, IS_SITU=is_situ, num_warps=4,
    )  # fmt: skip
    return out.view(gate.shape)


def _warps(block: int) -> int:
    return max(1, min(8, block // 512))


@triton.jit
def tanh(x):
    """Two-sided, so that no exponential overflows."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def activate(gate, up, beta, linear_beta, IS_SITU: tl.constexpr):
    """SiTU or SwiGLU in fp32."""
    if IS_SITU:
        gate = beta * tanh(gate / beta) * tl.sigmoid(gate)
        up = linear_beta * tanh(up / linear_beta)
    else:
        gate = gate * tl.sigmoid(gate)
    return gate * up


@triton.jit
def _rms_norm(x, weight, out, stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        is_there = column + start < WIDTH
        value = tl.load(x + row * stride + column + start, mask=is_there, other=0.0).to(tl.float32)
        squares += value * value
    inverse_rms = tl.rsqrt(tl.sum(squares, axis=0) / WIDTH + eps)
    for start in tl.static_range(0, WIDTH, BLOCK):
        is_there = column + start < WIDTH
        value = tl.load(x + row * stride + column + start, mask=is_there, other=0.0).to(tl.float32)
        normed = (value * inverse_rms).to(out.dtype.element_ty)
        scaled = normed * tl.load(weight + column + start, mask=is_there, other=0.0)
        tl.store(out + row * WIDTH + column + start, scaled.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _gated_rows(
    gate, up, out, gate_stride, up_stride, beta, linear_beta,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_SITU: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = column < WIDTH
    a = tl.load(gate + row * gate_stride + column, mask=is_there, other=0.0).to(tl.float32)
    b = tl.load(up + row * up_stride + column, mask=is_there, other=0.0).to(tl.float32)
    value = activate(a, b, beta, linear_beta, IS_SITU)
    tl.store(out + row * WIDTH + column, value.to(out.dtype.element_ty), mask=is_there)

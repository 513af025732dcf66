"""Checks of the kernel that reads the residual stream, against its reference; for any device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from k3agent.backend.kernels.reference.attn_res import read_stream
from k3agent.backend.kernels.reference.rms_norm import rms_norm
from support.kda_checks import assert_near


def check_reads(
    read: Callable[..., Tensor],
    *,
    rows: int,
    width: int,
    blocks: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> None:
    """A stream of `blocks` blocks with two reads in each: results and sources as the reference has them."""
    generator = torch.Generator().manual_seed(rows + width)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    streams = [
        (noise(blocks + 1, rows, width).fill_(float("nan")), torch.zeros((blocks + 1, rows), device=device))
        for _ in range(2)
    ]
    query, weight = noise(width).float() * 0.2, noise(width)
    for block in range(blocks + 1):
        for number in range(2):
            # an output may lie in a wider matrix
            delta = noise(rows, width + 8)[:, :width]
            rest = (block, delta, number == 0, query if block else None, 1e-5, weight, 1e-6)
            expected, found = read_stream(*streams[0], *rest), read(*streams[1], *rest)
            assert_near(found, expected, tolerance, f"read {number} of block {block}")
            held = slice(block + 1)
            assert_near(streams[1][0][held], streams[0][0][held], tolerance, "sources")
            assert_near(streams[1][1][held], streams[0][1][held], tolerance, "inverse rms")
        rest = (block, None, False, query if block else None, 1e-5, weight, 1e-6)
        assert_near(
            read(*streams[1], *rest), read_stream(*streams[0], *rest), tolerance, "read without delta"
        )


def check_plain_read(read: Callable[..., Tensor], device: str = "cpu") -> None:
    """Without blocks a read is an addition and a norm, in fp32 to the bit of the definition's terms."""
    x, y, weight = (torch.randn(shape, device=device) for shape in ((3, 24), (3, 24), (24,)))
    sources = torch.stack([x])
    found = read(sources, torch.empty((1, 3), device=device), 0, y, False, None, 1e-5, weight, 1e-6)
    assert torch.equal(sources[0], x + y)
    assert_near(found, rms_norm(x + y, weight, 1e-6), 1e-6, "read")

"""MLA: the latent rows of a step normed and put into their pages, in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.arguments import StepTables
from k3agent.backend.kernels.gpu import gpu_name
from k3agent.backend.kernels.pinned import Row

pinned.pin("mla_store", Row({"num_warps": 4}), candidates={"num_warps": [1, 2, 4, 8]})


@triton.jit(do_not_specialize=["pages_stride"])
def _store_kernel(
    x_ptr, x_stride, norm_ptr, latents_ptr, cu_ptr, context_ptr, pages_ptr, pages_stride, eps,
    RANK: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Grid: tokens of a sequence, sequences."""
    token, sequence = tl.program_id(0), tl.program_id(1)
    row = tl.load(cu_ptr + sequence) + token
    if row >= tl.load(cu_ptr + sequence + 1):
        return
    position = tl.load(context_ptr + sequence) + token
    page = tl.load(pages_ptr + sequence * pages_stride + position // PAGE).to(tl.int64)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * x_stride + column, mask=column < WIDTH, other=0.0)
    wide = x.to(tl.float32)
    in_latent = column < RANK
    square = tl.sum(tl.where(in_latent, wide * wide, 0.0), axis=0) / RANK
    weight = tl.load(norm_ptr + column, mask=in_latent, other=0.0)
    kind = latents_ptr.dtype.element_ty
    normed = ((wide * tl.rsqrt(square + eps)).to(kind).to(tl.float32) * weight.to(tl.float32)).to(kind)
    at = (page * PAGE + position % PAGE) * WIDTH + column
    tl.store(latents_ptr + at, tl.where(in_latent, normed, x), mask=column < WIDTH)


def mla_store(latent: Tensor, norm: Tensor, eps: float, latents: Tensor, tables: StepTables) -> None:
    """latent: [T, C+R], of which the first C are normed with `norm`, [C]; latents: [pages, PAGE_SIZE,
    C+R]."""
    width = latent.shape[1]
    values = pinned.pick("mla_store", gpu_name(latent.device))
    _store_kernel[(tables.longest, tables.slots.shape[0])](
        latent, latent.stride(0), norm, latents, tables.cu_seqlens, tables.context_lens,
        tables.page_table, tables.page_table.stride(0), eps,
        RANK=norm.shape[0], WIDTH=width, BLOCK=triton.next_power_of_2(width), PAGE=PAGE_SIZE,
        num_warps=values["num_warps"],
    )  # fmt: skip

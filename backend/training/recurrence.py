"""Token mixing over packed documents: KDA's recurrence and causal attention, on a GPU and, differentiably,
on a CPU.

On a GPU these are the chunked kernel of flash-linear-attention and variable-length flash attention. The CPU
forms pad documents to one length and are for tests and tiny runs.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 16
"""Tokens per chunk of the CPU form of KDA: with decays bounded at -5 their sum stays in the range of fp32."""

KERNEL_CHUNK = 64
"""Tokens per chunk of the GPU kernel."""


@dataclass(frozen=True)
class Documents:
    """Where documents begin in the T tokens of a batch."""

    offsets: Tensor
    """[B+1] int64, on the device."""
    offsets_cpu: Tensor
    """The same in host memory, so that nobody waits for the device to learn lengths."""
    max_length: int

    @classmethod
    def of(cls, offsets_cpu: Tensor, device: torch.device) -> "Documents":
        longest = int((offsets_cpu[1:] - offsets_cpu[:-1]).max())
        return cls(offsets_cpu.to(device, non_blocking=True), offsets_cpu, longest)

    @cached_property
    def offsets32(self) -> Tensor:
        return self.offsets.to(torch.int32)

    @cached_property
    def rows(self) -> Tensor:
        """[B, max_length] rows of the tokens, T where a document is shorter."""
        starts, ends = self.offsets[:-1, None], self.offsets[1:, None]
        index = starts + torch.arange(self.max_length, device=self.offsets.device)
        return torch.where(index < ends, index, ends[-1])

    def prepare(self) -> None:
        """Compute what the kernels need of the lengths, on the current stream, so that it is there before
        the step.
        """
        if self.offsets.is_cuda:
            from fla.ops.utils.index import prepare_chunk_indices  # lazy: needs triton and a GPU

            _ = self.offsets32
            prepare_chunk_indices(
                cu_seqlens=self.offsets, chunk_size=KERNEL_CHUNK, cu_seqlens_cpu=self.offsets_cpu
            )


def _padded(x: Tensor, rows: Tensor) -> Tensor:
    """[T, H, N] to [B, H, L, N], zero where documents are shorter than the longest."""
    return F.pad(x, (0, 0, 0, 0, 0, 1))[rows].transpose(1, 2)


def _packed(x: Tensor, rows: Tensor, num_tokens: int) -> Tensor:
    """The inverse of _padded."""
    flat = x.transpose(1, 2)
    out = flat.new_zeros(num_tokens + 1, *flat.shape[2:])
    return out.index_put((rows,), flat)[:num_tokens]


def chunked_kda(q: Tensor, k: Tensor, v: Tensor, g_log: Tensor, beta: Tensor, documents: Documents) -> Tensor:
    """KDA in chunks with plain tensor operations. q, k, v, g_log: [T, H, N]; beta: [T, H]; returns [T, H, N].

    q and k are normalised; q gets the factor N^-0.5 here. Source: Kimi Linear, arXiv 2510.26692, chunkwise
    form.
    """
    num_tokens, rows = q.shape[0], documents.rows
    fill = -rows.shape[1] % CHUNK
    q, k, v, g_log = (F.pad(_padded(x, rows), (0, 0, 0, fill)) for x in (q, k, v, g_log))
    beta = F.pad(_padded(beta[..., None], rows), (0, 0, 0, fill))
    q = q * q.shape[-1] ** -0.5
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    eye = torch.eye(CHUNK, dtype=q.dtype, device=q.device)
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for parts in zip(*(x.split(CHUNK, dim=2) for x in (q, k, v, g_log, beta)), strict=True):
        qc, kc, vc, gc, bc = parts
        total = gc.cumsum(dim=2)
        keys, queries = kc * total.exp(), qc * total.exp()
        inverse = kc * (-total).exp()
        a = (keys @ inverse.mT).masked_fill(~lower.tril(-1), 0.0)
        b = (queries @ inverse.mT).masked_fill(~lower, 0.0)
        rhs = bc * (vc - keys @ state)
        u = torch.linalg.solve_triangular(eye + bc * a, rhs, upper=False, unitriangular=True)
        outputs.append(queries @ state + b @ u)
        last = total[:, :, -1:]
        state = last.exp().mT * state + (kc * (last - total).exp()).mT @ u
    return _packed(torch.cat(outputs, dim=2)[:, :, : rows.shape[1]], rows, num_tokens)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    bound: float,
    documents: Documents,
) -> Tensor:
    """The KDA recurrence with its bounded gate. q, k, v, z: [T, H, N], q and k L2-normalised, z and b: [T,
    H] before their sigmoids; A_log: [H]; dt_bias: [H*N]; returns [T, H, N].
    """
    if q.is_cuda:
        from fla.ops.kda import chunk_kda  # lazy: needs triton and a GPU

        out, _ = chunk_kda(
            q=q[None],
            k=k[None],
            v=v[None],
            g=z[None],
            beta=b[None],
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            safe_gate=True,
            lower_bound=bound,
            A_log=A_log,
            dt_bias=dt_bias,
            disable_recompute=True,
            cu_seqlens=documents.offsets,
            cu_seqlens_cpu=documents.offsets_cpu,
        )
        return out[0]
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    shifted = z.to(wide) + dt_bias.to(wide).view(z.shape[-2:])
    g_log = bound * torch.sigmoid(A_log.to(wide).exp()[:, None] * shifted)
    beta = torch.sigmoid(b.to(wide))
    return chunked_kda(q.to(wide), k.to(wide), v.to(wide), g_log, beta, documents).to(q.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    """Causal softmax attention inside each document. q, k, v: [T, H, N]; returns [T, H, N]; the scale is
    N^-0.5.
    """
    if q.is_cuda:
        offsets, longest = documents.offsets32, documents.max_length
        out = torch.ops.aten._flash_attention_forward(
            q, k, v, offsets, offsets, longest, longest, 0.0, True, False, scale=q.shape[-1] ** -0.5
        )
        return out[0]
    rows = documents.rows
    padded = (_padded(x, rows) for x in (q, k, v))
    # A padded row attends to earlier rows only, as every row: no mask beyond the causal one is needed.
    return _packed(F.scaled_dot_product_attention(*padded, is_causal=True), rows, q.shape[0])

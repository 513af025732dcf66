"""Token mixing over packed documents: KDA's recurrence and causal attention, on a GPU and, differentiably,
on a CPU.

On a GPU these are the chunked kernel of flash-linear-attention and variable-length flash attention. The CPU
forms pad documents to one length and are for tests and tiny runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 16
"""Tokens per chunk of the CPU form of KDA: with decays bounded at -5 their sum stays in the range of fp32."""

KERNEL_CHUNK = 64
"""Tokens per chunk of the GPU kernel."""


@dataclass(frozen=True)
class Documents:
    """Where documents begin in the T tokens of a batch.

    With `shared` > 0 the first document has that many tokens and is the beginning of all others, which go
    on where it ends: a constant system prompt is computed once a batch.
    """

    offsets: Tensor
    """[B+1] int64, on the device."""
    offsets_cpu: Tensor
    """The same in host memory, so that nobody waits for the device to learn lengths."""
    shared: int = 0

    @classmethod
    def of(cls, offsets_cpu: Tensor, device: torch.device, shared: int = 0) -> "Documents":
        assert not shared or int(offsets_cpu[1]) == shared, (
            f"{shared} shared tokens, offsets {offsets_cpu[:2]}"
        )
        return cls(offsets_cpu.to(device, non_blocking=True), offsets_cpu, shared)

    @cached_property
    def max_length(self) -> int:
        return int((self.offsets_cpu[1:] - self.offsets_cpu[:-1]).max())

    @property
    def num_documents(self) -> int:
        return len(self.offsets_cpu) - 1

    @cached_property
    def offsets32(self) -> Tensor:
        return self.offsets.to(torch.int32)

    @cached_property
    def rows(self) -> Tensor:
        """[B, max_length] rows of the tokens, T where a document is shorter."""
        starts, ends = self.offsets[:-1, None], self.offsets[1:, None]
        index = starts + torch.arange(self.max_length, device=self.offsets.device)
        return torch.where(index < ends, index, ends[-1])

    @cached_property
    def first(self) -> "Documents":
        """The shared beginning alone."""
        return _single(self.shared, self.offsets.device)

    @cached_property
    def rest(self) -> "Documents":
        """The documents after the shared beginning, as if their tokens were all."""
        return Documents(self.offsets[1:] - self.shared, self.offsets_cpu[1:] - self.shared)

    def prepare(self) -> None:
        """Compute what the kernels need of the lengths, on the current stream, so that it is there before
        the step.
        """
        if not self.offsets.is_cuda:
            return
        from fla.ops.utils.index import prepare_chunk_indices  # lazy: needs triton and a GPU  # pyright: ignore[reportMissingImports]

        _ = self.offsets32
        for part in (self.first, self.rest) if self.shared else (self,):
            _ = part.offsets32
            prepare_chunk_indices(
                cu_seqlens=part.offsets, chunk_size=KERNEL_CHUNK, cu_seqlens_cpu=part.offsets_cpu
            )


@lru_cache
def _single(length: int, device: torch.device) -> Documents:
    """One document. Kept, because kernels know their preparations by the tensor."""
    return Documents.of(torch.tensor([0, length]), device)


def _padded(x: Tensor, rows: Tensor) -> Tensor:
    """[T, H, N] to [B, H, L, N], zero where documents are shorter than the longest."""
    return F.pad(x, (0, 0, 0, 0, 0, 1))[rows].transpose(1, 2)


def _packed(x: Tensor, rows: Tensor, num_tokens: int) -> Tensor:
    """The inverse of _padded."""
    flat = x.transpose(1, 2)
    out = flat.new_zeros(num_tokens + 1, *flat.shape[2:])
    return out.index_put((rows,), flat)[:num_tokens]


def chunked_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g_log: Tensor,
    beta: Tensor,
    documents: Documents,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """KDA in chunks with plain tensor operations. q, k, v, g_log: [T, H, N]; beta: [T, H]; state: [B, H, N,
    N] or None for zero. Returns [T, H, N] and the last states.

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
    if state is None:
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
        # Padding decays nothing and writes nothing, so this is also the state after the last token.
        last = total[:, :, -1:]
        state = last.exp().mT * state + (kc * (last - total).exp()).mT @ u
    return _packed(torch.cat(outputs, dim=2)[:, :, : rows.shape[1]], rows, num_tokens), state  # pyright: ignore[reportReturnType]


def _kernel(
    inputs: Sequence[Tensor], options: Mapping[str, Any], documents: Documents, state: Tensor | None
) -> Any:
    """One call of the GPU kernel. inputs: q, k, v, z [T, H, N] and b [T, H]."""
    from fla.ops.kda import chunk_kda  # lazy: needs triton and a GPU  # pyright: ignore[reportMissingImports]

    names = ("q", "k", "v", "g", "beta")
    return chunk_kda(
        **{name: x[None] for name, x in zip(names, inputs, strict=True)},
        **options,
        initial_state=state,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        safe_gate=True,
        disable_recompute=True,
        cu_seqlens=documents.offsets,
        cu_seqlens_cpu=documents.offsets_cpu,
    )


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
    inputs: Sequence[Tensor] = (q, k, v, z, b)
    run: Callable[..., tuple[Tensor, Tensor]]  # pyright: ignore[reportRedeclaration]
    if q.is_cuda:
        options = {"lower_bound": bound, "A_log": A_log, "dt_bias": dt_bias}

        def run(
            parts: Sequence[Tensor], docs: Documents, state: Tensor | None, keep: bool
        ) -> tuple[Tensor, Tensor]:
            out, last = _kernel(parts, {**options, "output_final_state": keep}, docs, state)
            return out[0], last
    else:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        shifted = z.to(wide) + dt_bias.to(wide).view(z.shape[-2:])
        g_log = bound * torch.sigmoid(A_log.to(wide).exp()[:, None] * shifted)
        inputs = (q.to(wide), k.to(wide), v.to(wide), g_log, torch.sigmoid(b.to(wide)))

        def run(
            parts: Sequence[Tensor], docs: Documents, state: Tensor | None, keep: bool
        ) -> tuple[Tensor, Tensor]:
            return chunked_kda(*parts, docs, state)  # pyright: ignore[reportCallIssue]

    if not documents.shared:
        return run(inputs, documents, None, False)[0].to(q.dtype)
    sizes = [documents.shared, q.shape[0] - documents.shared]
    first, rest = zip(*(x.split(sizes) for x in inputs), strict=True)
    start, state = run(first, documents.first, None, True)
    states = state.expand(documents.rest.num_documents, *state.shape[1:]).contiguous()
    return torch.cat((start, run(rest, documents.rest, states, False)[0])).to(q.dtype)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, of_q: Documents, of_k: Documents, causal: bool
) -> tuple[Tensor, ...]:
    """Output [T, H, N], log of the softmax denominators [H, T], and two more tensors that the way back
    wants.
    """
    out, lse, rng, unused, _ = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        of_q.offsets32,
        of_k.offsets32,
        of_q.max_length,
        of_k.max_length,
        0.0,
        causal,
        False,
        scale=q.shape[-1] ** -0.5,
    )
    assert lse.shape == (q.shape[1], q.shape[0]), f"denominators of shape {tuple(lse.shape)}"
    return out, lse, rng, unused


def _flash_back(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    of_q: Documents,
    of_k: Documents,
    causal: bool,
    rng: Tensor,
    unused: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._flash_attention_backward(
        grad,
        q,
        k,
        v,
        out,
        lse,
        of_q.offsets32,
        of_k.offsets32,
        of_q.max_length,
        of_k.max_length,
        0.0,
        causal,
        rng,
        unused,
        scale=q.shape[-1] ** -0.5,
    )


class _SharedAttention(torch.autograd.Function):
    """Attention where all documents also see the shared beginning: two flash calls, joined by their
    denominators.

    With the joined output and denominators each call's gradient is its part of the whole one, as in ring
    attention.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
        n, whole = documents.shared, _single(q.shape[0] - documents.shared, q.device)
        out, lse, *own = _flash(q, k, v, documents, documents, True)
        seen, seen_lse, *shared = _flash(q[n:], k[:n], v[:n], whole, documents.first, False)
        joined = torch.logaddexp(lse[:, n:], seen_lse)
        own_share = torch.exp(lse[:, n:] - joined).t()[..., None]
        out[n:] = out[n:] * own_share + seen * (1 - own_share)
        lse[:, n:] = joined
        ctx.save_for_backward(q, k, v, out, lse, *own, *shared)
        ctx.documents = documents
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, out, lse, *states = ctx.saved_tensors
        documents, grad = ctx.documents, grad.contiguous()
        n, whole = documents.shared, _single(q.shape[0] - documents.shared, q.device)
        dq, dk, dv = _flash_back(grad, q, k, v, out, lse, documents, documents, True, *states[:2])
        parts = (grad[n:], q[n:], k[:n], v[:n], out[n:], lse[:, n:].contiguous())
        seen = _flash_back(*parts, whole, documents.first, False, *states[2:])
        dq[n:] += seen[0]
        dk[:n] += seen[1]
        dv[:n] += seen[2]
        return dq, dk, dv, None


def _padded_attention(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    """On a CPU. A padded row attends to earlier rows only, as every row: no mask beyond the causal one is
    needed.
    """
    if not documents.shared:
        padded = (_padded(x, documents.rows) for x in (q, k, v))
        return _packed(F.scaled_dot_product_attention(*padded, is_causal=True), documents.rows, q.shape[0])  # pyright: ignore[reportArgumentType]
    n, rest = documents.shared, documents.rest
    start = _padded_attention(q[:n], k[:n], v[:n], documents.first)
    queries = _padded(q[n:], rest.rows)
    batch, _, length, _ = queries.shape
    keys, values = (
        torch.cat((x[:n].transpose(0, 1).expand(batch, -1, -1, -1), _padded(x[n:], rest.rows)), dim=2)
        for x in (k, v)
    )
    mask = torch.ones(length, n + length, dtype=torch.bool).tril(n)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return torch.cat((start, _packed(out, rest.rows, q.shape[0] - n)))


def attention(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    """Causal softmax attention inside each document. q, k, v: [T, H, N]; returns [T, H, N]; the scale is
    N^-0.5.
    """
    if not q.is_cuda:
        return _padded_attention(q, k, v, documents)
    if documents.shared:
        return _SharedAttention.apply(q, k, v, documents)
    return _flash(q, k, v, documents, documents, True)[0]

"""Gated multi-head latent attention without positions: every token leaves one latent row that all heads
share.

Source: Kimi K3 technical report, arXiv 2607.24653; Kimi Linear, arXiv 2510.26692 (no position encoding).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.kernels import registry
from k3agent.backend.kernels.arguments import SHORT
from k3agent.backend.model.inputs import CacheTensors
from k3agent.backend.model.layers import Accelerated, Linear, RMSNorm, fuse
from k3agent.backend.model.step import Span, Step


class MLA(Accelerated):
    """One MLA layer. Reads [T, D], gives [T, D], and writes one latent row a token."""

    def __init__(self, config: ModelConfig, layer_index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.heads, self.rank = config.num_attention_heads, config.kv_lora_rank
        self._nope, self._shared, self._v_dim = (
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.v_head_dim,
        )
        self._qk_dim = self._nope + self._shared
        self._scale = self._qk_dim**-0.5
        q_width = self.heads * self._qk_dim
        outs = {"q_proj": q_width} if config.q_lora_rank is None else {"q_a_proj": config.q_lora_rank}
        outs["kv_a_proj_with_mqa"] = config.latent_width
        if config.mla_use_output_gate:
            outs["g_proj"] = self.heads * self._v_dim
        self.in_proj = fuse(self, config.hidden_size, outs, dtype)
        self.in_widths = tuple(outs.values())
        self.q_a_layernorm, self.q_b_proj = None, None
        if config.q_lora_rank is not None:
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.mla_latent_norm_eps, dtype)
            self.q_b_proj = Linear(config.q_lora_rank, q_width, dtype)
        self.kv_a_layernorm = RMSNorm(self.rank, config.mla_latent_norm_eps, dtype)
        self.kv_b_proj = Linear(self.rank, self.heads * (self._nope + self._v_dim), dtype)
        up = self.kv_b_proj.weight.view(self.heads, self._nope + self._v_dim, self.rank)
        self._key_up, self._value_up = up[:, : self._nope], up[:, self._nope :]
        self.o_proj = Linear(self.heads * self._v_dim, config.hidden_size, dtype)
        self._absorbed = registry.get("mla_absorbed")
        self._expanded = registry.get("mla_expanded", registry.FUSED)
        self._paged: dict[str, registry.Kernel] = {}
        """Kernels that read and write pages where they lie, for a whole step."""

    def choose_kernels(self, kernels: str, device: torch.device) -> None:
        ops = ("mla_decode", "mla_prefill", "mla_store")
        chosen = {op: registry.choose(op, kernels, device) for op in ops}
        self._paged = {op: kernel for op, kernel in chosen.items() if kernel is not registry.get(op)}
        self.is_capturable = len(self._paged) == len(chosen)

    def forward(self, x: Tensor, step: Step, cache: CacheTensors) -> Tensor:
        query, latent, *gate = F.linear(x, self.in_proj).split(self.in_widths, dim=-1)
        if self.q_a_layernorm is not None and self.q_b_proj is not None:
            query = self.q_b_proj(self.q_a_layernorm(query))
        q = query.view(-1, self.heads, self._qk_dim)
        latents = cache.latents[self.layer_index]
        self._store(latent, latents, step)
        o = self._attend_step(q, latents, step).flatten(-2)
        if gate:
            o = o * torch.sigmoid(gate[0])
        return self.o_proj(o)

    def _store(self, latent: Tensor, latents: Tensor, step: Step) -> None:
        """Put the rows of the step into their pages."""
        store = self._paged.get("mla_store")
        if store is not None:
            norm = self.kv_a_layernorm
            return store(latent, norm.weight, norm.eps, latents, step.tables)
        row = torch.cat((self.kv_a_layernorm(latent[:, : self.rank]), latent[:, self.rank :]), dim=-1)
        latents.view(-1, latents.shape[-1]).index_copy_(0, step.latent_places, row)

    def _attend_step(self, q: Tensor, latents: Tensor, step: Step) -> Tensor:
        """Attention of all sequences, [T, H, V]."""
        if self._paged:
            weights = (self._key_up, self._value_up, self._scale, latents, step.tables)
            if step.tables.longest > SHORT and "mla_prefill" in self._paged:
                return self._paged["mla_prefill"](q, *weights, step.lengths)
            if step.tables.longest <= SHORT and "mla_decode" in self._paged:
                return self._paged["mla_decode"](q, *weights)
        return step.spread(
            (self.heads, self._v_dim),
            q,
            lambda rows: self._singles(q[rows], step.singles, latents),
            lambda span: self._piece(q[span.start : span.stop], span, latents),
        )

    def _singles(self, q: Tensor, spans: list[Span], latents: Tensor) -> Tensor:
        outs = [self.attend_absorbed(q[i : i + 1], span, latents) for i, span in enumerate(spans)]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _piece(self, q: Tensor, span: Span, latents: Tensor) -> Tensor:
        return self._attend(self._absorbed if span.is_short else self._expanded, q, span, latents)

    def attend_absorbed(self, q: Tensor, span: Span, latents: Tensor) -> Tensor:
        """Attention of the last tokens of one sequence over all its rows; q: [T, H, N+R]. Returns [T, H,
        V]."""
        return self._attend(self._absorbed, q, span, latents)

    def _attend(self, kernel: registry.Kernel, q: Tensor, span: Span, latents: Tensor) -> Tensor:
        """Attention of one sequence, [T, H, V]."""
        rows = span.latent_rows(latents)
        return kernel(q, rows, self._key_up, self._value_up, self._scale, span.context_len)

"""Kimi Delta Attention: a linear recurrence with a state of fixed size in place of a cache that grows.

Source: Kimi Linear, arXiv 2510.26692; Kimi K3 technical report, arXiv 2607.24653 (bounded gate, full-rank
output gate).
"""

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3agent.backend.config import ModelConfig
from k3agent.backend.kernels import registry
from k3agent.backend.kernels.arguments import SHORT, KdaCache, KdaInputs, KdaWeights
from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.model.inputs import CacheTensors
from k3agent.backend.model.layers import Accelerated, Linear, RMSNorm, fuse, parameter
from k3agent.backend.model.step import Span, Step

L2_EPS = 1e-6
"""Added to the sum of squares when q and k are normalised."""


_EVEN = 16
"""Rows of projections of such a multiple are read 16 bytes at a time; a rank of K3 has 3,206 columns."""


class Conv(nn.Module):
    """Weight of one depthwise convolution, [channels, 1, taps], a view of the weight of all three."""

    def __init__(self, storage: Tensor) -> None:
        super().__init__()
        self.weight = parameter(storage)


class KDA(Accelerated):
    """One KDA layer. Reads [T, D], gives [T, D], and advances the state of each sequence of the step."""

    def __init__(self, config: ModelConfig, layer_index: int, dtype: torch.dtype) -> None:
        super().__init__()
        linear = config.linear_attn_config
        wide = wide_dtype(dtype)
        self.layer_index = layer_index
        self.heads, self.head_dim, self._width = linear.num_heads, linear.head_dim, linear.width
        self.lower_bound = linear.gate_lower_bound
        gate_rank = self._width if linear.use_full_rank_gate else self.head_dim
        gate_name = "g_proj" if linear.use_full_rank_gate else "g_a_proj"
        outs = {"q_proj": self._width, "k_proj": self._width, "v_proj": self._width, gate_name: gate_rank}
        outs |= {"f_a_proj": self.head_dim, "b_proj": self.heads}
        padding = -sum(outs.values()) % _EVEN if dtype.itemsize == 2 else 0
        self.in_proj = fuse(self, config.hidden_size, outs, dtype, padding)
        self.in_widths = (3 * self._width, gate_rank, self.head_dim, self.heads, padding)
        self.f_b_proj = Linear(self.head_dim, self._width, dtype)
        self.g_b_proj = None if linear.use_full_rank_gate else Linear(self.head_dim, self._width, dtype)
        taps = linear.short_conv_kernel_size
        self._conv = torch.empty(3 * self._width, 1, taps, dtype=wide)
        for name, storage in zip(("q", "k", "v"), self._conv.split(self._width), strict=True):
            setattr(self, f"{name}_conv1d", Conv(storage))
        self.taps = torch.empty(0)
        self.A_log = parameter(torch.empty(self.heads, dtype=wide))
        self.dt_bias = parameter(torch.empty(self._width, dtype=wide))
        self.o_norm = RMSNorm(self.head_dim, config.rms_norm_eps, wide)
        self.o_proj = Linear(self._width, config.hidden_size, dtype)
        self._kernels = {op: registry.get(op) for op in ("causal_conv", "causal_conv_step", "kda_gate")}
        self._kernels |= {op: registry.get(op) for op in ("kda_chunk", "kda_short", "kda_step")}
        self._fused: dict[str, registry.Kernel] = {}
        """Kernels that take all between the projections, of the steps they are for."""

    def finish_loading(self) -> None:
        """Derive what is not in the file: the taps of the convolution, time first."""
        self.taps = self._conv.squeeze(1).t().contiguous()

    def choose_kernels(self, kernels: str, device: torch.device) -> None:
        chosen = {op: registry.choose(op, kernels, device) for op in ("kda_decode", "kda_prefill")}
        self._fused = {op: kernel for op, kernel in chosen.items() if kernel is not registry.get(op)}
        self.is_capturable = len(self._fused) == len(chosen)

    def _fused_for(self, step: Step) -> registry.Kernel | None:
        """The kernel that takes this step whole, if there is one."""
        if not self._fused:
            return None
        is_short = step.tables.longest <= SHORT or step.tables.exports is not None
        return self._fused.get("kda_decode" if is_short else "kda_prefill")

    def forward(self, x: Tensor, step: Step, cache: CacheTensors) -> Tensor:
        qkv, gate, f_a, beta, _ = F.linear(x, self.in_proj).split(self.in_widths, dim=-1)
        z = self.f_b_proj(f_a)
        if self.g_b_proj is not None:
            gate = self.g_b_proj(gate)
        kernel = self._fused_for(step)
        if kernel is None:
            y = self._in_parts(KdaInputs(qkv, z, beta, gate), step, cache)
        else:
            layer_cache = KdaCache(cache.conv_tails[self.layer_index], cache.kda_states[self.layer_index])
            y = kernel(KdaInputs(qkv, z, beta, gate), self._weights, layer_cache, step.tables)
        return self.o_proj(y)

    @cached_property
    def _weights(self) -> KdaWeights:
        return KdaWeights(
            taps=self.taps,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            norm=self.o_norm.weight,
            norm_eps=self.o_norm.eps,
            l2_eps=L2_EPS,
            lower_bound=self.lower_bound,
        )

    def _in_parts(self, inputs: KdaInputs, step: Step, cache: CacheTensors) -> Tensor:
        """Sequence by sequence, operation by operation. Returns [T, H*V]."""
        qkv, wide = inputs.qkv, wide_dtype(inputs.qkv.dtype)
        heads = (-1, self.heads, self.head_dim)
        z = inputs.z.to(wide) + self.dt_bias
        g_log = self._kernels["kda_gate"](z.view(heads), self.A_log.unsqueeze(-1), self.lower_bound)
        beta = torch.sigmoid(inputs.beta.to(wide))
        tails, states = cache.conv_tails[self.layer_index], cache.kda_states[self.layer_index]
        for slot in step.fresh_slots:
            tails[slot].zero_()
            states[slot].zero_()
        o = step.spread(
            (self.heads, self.head_dim),
            beta,
            lambda rows: self._singles(qkv[rows], g_log[rows], beta[rows], step, tails, states),
            lambda span: self._piece(qkv, g_log, beta, span, tails, states),
        )
        o = self.o_norm(o.to(qkv.dtype).to(wide)) * torch.sigmoid(inputs.gate.to(wide)).view(heads)
        return o.to(qkv.dtype).flatten(-2)

    def _piece(
        self, qkv: Tensor, g_log: Tensor, beta: Tensor, span: Span, tails: Tensor, states: Tensor
    ) -> Tensor:
        """Several tokens of one sequence. Returns [T, H, V] wide."""
        rows = slice(span.start, span.stop)
        if span.trail:
            self._file_tails(qkv[rows], span, tails)
        mixed = self._kernels["causal_conv"](qkv[rows], tails[span.slot], self.taps)
        q, k, v = self._heads_of(mixed)
        state = states[span.slot]
        if span.is_short:
            trail = [states[slot] for slot in span.trail]
            return self._kernels["kda_short"](q, k, v, g_log[rows], beta[rows], state, trail)
        chunk = self._kernels["kda_chunk"]
        return chunk(q, k, v, g_log[rows], beta[rows], state, lower_bound=self.lower_bound)

    @staticmethod
    def _file_tails(qkv: Tensor, span: Span, tails: Tensor) -> None:
        """What the convolution last read before each of the last tokens, into the slots of the trail."""
        inputs = torch.cat((tails[span.slot], qkv))
        width = tails.shape[1]
        for back, slot in enumerate(reversed(span.trail), 1):
            end = inputs.shape[0] - back
            tails[slot].copy_(inputs[end - width : end])

    def _singles(
        self, qkv: Tensor, g_log: Tensor, beta: Tensor, step: Step, tails: Tensor, states: Tensor
    ) -> Tensor:
        """One token of each of B sequences: the recurrence. Returns [B, H, V] wide."""
        slots = step.single_slots
        is_alone = len(step.singles) == 1
        if is_alone:
            slot = step.singles[0].slot
            tail, state = tails[slot : slot + 1], states[slot : slot + 1]
        else:
            tail, state = tails[slots], states[slots]
        q, k, v = self._heads_of(self._kernels["causal_conv_step"](qkv, tail, self.taps))
        o = self._kernels["kda_step"](q, k, v, g_log, beta, state)
        if not is_alone:
            tails[slots], states[slots] = tail, state
        return o

    def _heads_of(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, 3*H*K] to q, k (normalised, q scaled) and v, each [T, H, K] wide."""
        mixed = mixed.to(wide_dtype(mixed.dtype)).view(-1, 3, self.heads, self.head_dim)
        qk = mixed[:, :2]
        qk = qk * torch.rsqrt(qk.square().sum(-1, keepdim=True) + L2_EPS)
        return qk[:, 0] * self.head_dim**-0.5, qk[:, 1], mixed[:, 2]

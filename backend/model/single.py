"""Decode of one token of one sequence on the CPU, written for few and small operations.

At this size an operation costs about as much as its arithmetic, so everything is a vector, views are made
once, and scalars stay Python numbers. The general path in the other modules defines the arithmetic;
`supports` says when this one may stand in for it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.kernels import registry
from k3agent.backend.kernels.matvec import Matvec
from k3agent.backend.model.attn_res import Site
from k3agent.backend.model.inputs import CacheTensors, ForwardBatch
from k3agent.backend.model.kda import KDA, L2_EPS
from k3agent.backend.model.layers import GatedMLP, RMSNorm
from k3agent.backend.model.mla import MLA
from k3agent.backend.model.moe import MoE
from k3agent.backend.model.step import Step

Sublayer = Callable[[Tensor, Step, CacheTensors], Tensor]


def supports(dtype: torch.dtype, device: torch.device, packed_experts: bool) -> bool:
    """Only where activations are as wide as statistics, so that no cast between them is left out."""
    return dtype in (torch.float32, torch.float64) and device.type == "cpu" and not packed_experts


def is_single(batch: ForwardBatch) -> bool:
    """Is this one token of one sequence?"""
    return len(batch.context_lens) == 1 and batch.token_ids.shape[0] == 1


class SingleNorm:
    """RMS norm of one vector."""

    def __init__(self, norm: RMSNorm) -> None:
        self._weight, self._eps = norm.weight.detach(), norm.eps
        self._zeros = torch.zeros_like(self._weight)
        self._width = self._weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        inverse_rms = (torch.dot(x, x).item() / self._width + self._eps) ** -0.5
        return torch.addcmul(self._zeros, x, self._weight, value=inverse_rms)


class SingleStream:
    """The residual stream of one token; with `num_blocks` None a plain sum. Reused from step to step."""

    def __init__(self, like: Tensor, num_blocks: int | None, eps: float) -> None:
        self._width, self._eps = like.shape[0], eps
        self._is_plain = num_blocks is None
        self._sources = torch.zeros((num_blocks or 0) + 1, self._width, dtype=like.dtype)
        self._inverse_rms = torch.zeros((num_blocks or 0) + 1, dtype=like.dtype)
        self._rows = self._sources.unbind()
        self._row_rms = self._inverse_rms.unbind()
        count = range(1, len(self._rows) + 1)
        self._views = [(self._sources[:n], self._sources[:n].t(), self._inverse_rms[:n]) for n in count]
        self._last, self._is_empty = 0, False

    @property
    def total(self) -> Tensor:
        """The running sum, a view."""
        return self._rows[self._last]

    def start(self, embedding: Tensor) -> None:
        """Begin a token."""
        self._last, self._is_empty = 0, False
        self._rows[0].copy_(embedding)
        self._note_total()

    def read(self, site: Site | None) -> Tensor:
        """The input of a sublayer."""
        if site is None or self._last == 0:
            return self.total
        sources, transposed, inverse_rms = self._views[self._last]
        scores = torch.mv(sources, site.query).mul_(inverse_rms)
        return torch.mv(transposed, torch.softmax(scores, 0))

    def start_block(self) -> None:
        """Close the current block."""
        self._last += 1
        self._is_empty = True

    def add(self, x: Tensor) -> None:
        """Add the output of a sublayer."""
        row = self._rows[self._last]
        if self._is_empty:
            row.copy_(x)
            self._is_empty = False
        else:
            row.add_(x)
        self._note_total()

    def _note_total(self) -> None:
        if not self._is_plain:
            row = self._rows[self._last]
            self._row_rms[self._last].fill_((torch.dot(row, row).item() / self._width + self._eps) ** -0.5)


def single_act(config: ModelConfig, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The gated activation from [..., 2*I] to [..., I]."""
    if config.hidden_act != "situ":
        swiglu = registry.get("swiglu")
        return lambda gate_up: swiglu(*gate_up.chunk(2, -1))
    beta, linear_beta = config.activation_situ_beta, config.activation_situ_linear_beta
    # Tensors, because a Python scalar operand costs another operation.
    gate_cap, up_cap, factor = (torch.tensor(x, dtype=dtype) for x in (beta, linear_beta, beta * linear_beta))

    def situ(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        capped = torch.div(gate, gate_cap).tanh_().mul_(torch.sigmoid(gate))
        return capped.mul_(torch.div(up, up_cap).tanh_()).mul_(factor)

    return situ


class SingleKDA:
    """One KDA layer."""

    def __init__(self, layer: KDA, use_int8: bool) -> None:
        self._layer = layer
        self._in, self._out = Matvec(layer.in_proj, use_int8), Matvec(layer.o_proj.weight, use_int8)
        self._f_b = Matvec(layer.f_b_proj.weight, use_int8)
        self._g_b = None if layer.g_b_proj is None else Matvec(layer.g_b_proj.weight, use_int8)
        self._heads, self._head_dim = layer.heads, layer.head_dim
        shape = (self._heads, self._head_dim)
        dtype = layer.in_proj.dtype
        self._eps = torch.tensor(layer.o_norm.eps, dtype=dtype)
        self._l2_eps = torch.tensor(L2_EPS, dtype=dtype)
        self._inverse_width = torch.tensor(1 / self._head_dim, dtype=dtype)
        # Rows of q and k; the scale belongs to q alone.
        self._scale = torch.tensor([[self._head_dim**-0.5], [1.0]], dtype=dtype).expand(2, self._heads).t()
        self._rate = torch.exp(layer.A_log).unsqueeze(-1).expand(shape).contiguous()
        bound = layer.lower_bound
        self._bound = None if bound is None else torch.tensor(bound, dtype=dtype)

    def __call__(self, x: Tensor, step: Step, cache: CacheTensors) -> Tensor:
        layer, slot = self._layer, step.singles[0].slot
        tail, state = cache.conv_tails[layer.layer_index][slot], cache.kda_states[layer.layer_index][slot]
        if step.fresh_slots:
            tail.zero_()
            state.zero_()
        qkv, gate, f_a, beta, _ = self._in(x).split(layer.in_widths)
        window = torch.cat((tail, qkv.unsqueeze(0)))
        tail.copy_(window[1:])
        mixed = torch.nn.functional.silu(window.mul_(layer.taps).sum(0), inplace=True)
        mixed = mixed.view(3, self._heads, self._head_dim)
        if self._g_b is not None:
            gate = self._g_b(gate)
        o = self._recurrence(mixed, self._decay(f_a), torch.sigmoid(beta).unsqueeze(-1), state)
        inverse_rms = torch.mul(o, o).sum(-1, keepdim=True).mul_(self._inverse_width).add_(self._eps).rsqrt_()
        o.mul_(inverse_rms).mul_(layer.o_norm.weight).mul_(torch.sigmoid(gate).view_as(o))
        return self._out(o.view(-1))

    def _decay(self, f_a: Tensor) -> Tensor:
        """Retention factors, [H, K]."""
        z = self._f_b(f_a).add_(self._layer.dt_bias).view(self._heads, self._head_dim)
        if self._bound is None:
            return torch.nn.functional.softplus(z).mul_(self._rate).neg_().exp_()
        return z.mul_(self._rate).sigmoid_().mul_(self._bound).exp_()

    def _recurrence(self, mixed: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
        """mixed: q, k, v, [3, H, K]; decay: [H, K]; beta: [H, 1]; state: [H, K, V], updated in place. Gives
        [H, V].

        The state is read once, before the update: with a = decay, k(aS) = (ka)S and q(aS + k u) = (qa)S + (q
        k) u.
        """
        qk = mixed[:2].transpose(0, 1)
        sums = torch.mul(qk, qk).sum(-1)
        qk = qk * sums.add_(self._l2_eps).rsqrt_().mul_(self._scale).unsqueeze(-1)
        q, k = qk.unbind(1)
        read = torch.bmm(qk * decay.unsqueeze(1), state)
        update = torch.sub(mixed[2], read[:, 1]).mul_(beta)
        overlap = torch.mul(q, k).sum(-1, keepdim=True)
        state.mul_(decay.unsqueeze(-1)).baddbmm_(k.unsqueeze(-1), update.unsqueeze(1))
        return torch.addcmul(read[:, 0], overlap, update)


class SingleMLA:
    """One MLA layer."""

    def __init__(self, layer: MLA, use_int8: bool) -> None:
        self._layer = layer
        self._in, self._out = Matvec(layer.in_proj, use_int8), Matvec(layer.o_proj.weight, use_int8)
        self._q_b = None if layer.q_b_proj is None else Matvec(layer.q_b_proj.weight, use_int8)
        self._q_norm = None if layer.q_a_layernorm is None else SingleNorm(layer.q_a_layernorm)
        self._kv_norm = SingleNorm(layer.kv_a_layernorm)

    def __call__(self, x: Tensor, step: Step, cache: CacheTensors) -> Tensor:
        layer, span = self._layer, step.singles[0]
        query, latent, *gate = self._in(x).split(layer.in_widths)
        if self._q_norm is not None and self._q_b is not None:
            query = self._q_b(self._q_norm(query))
        latents = cache.latents[layer.layer_index]
        row = torch.cat((self._kv_norm(latent[: layer.rank]), latent[layer.rank :]))
        latents.view(-1, latents.shape[-1]).index_copy_(0, step.latent_places, row.unsqueeze(0))
        o = layer.attend_absorbed(query.view(1, layer.heads, -1), span, latents).reshape(-1)
        if gate:
            o = torch.sigmoid(gate[0]).mul_(o)
        return self._out(o)


class SingleMLP:
    """A dense MLP."""

    def __init__(self, mlp: GatedMLP, act: Callable[[Tensor], Tensor], use_int8: bool) -> None:
        self._gate_up, self._down = Matvec(mlp.gate_up, use_int8), Matvec(mlp.down_proj.weight, use_int8)
        self._act = act

    def __call__(self, x: Tensor, step: Step, cache: CacheTensors) -> Tensor:
        return self._down(self._act(self._gate_up(x)))

    def plus(self, y: Tensor, x: Tensor) -> Tensor:
        """y + the output for x, in place in y."""
        return self._down.plus(y, self._act(self._gate_up(x)))


class SingleMoE:
    """Routed and shared experts."""

    def __init__(
        self, moe: MoE, config: ModelConfig, act: Callable[[Tensor], Tensor], use_int8: bool
    ) -> None:
        self._moe, self._config, self._act = moe, config, act
        self._experts = [tuple(Matvec(w, use_int8) for w in pair) for pair in moe.experts.pairs]
        down, up = moe.routed_expert_down_proj, moe.routed_expert_up_proj
        self._down = None if down is None else Matvec(down.weight, use_int8)
        self._up = None if up is None else Matvec(up.weight, use_int8)
        self._norm = None if moe.routed_expert_norm is None else SingleNorm(moe.routed_expert_norm)
        self._shared = None
        if moe.shared_experts is not None:
            self._shared = SingleMLP(moe.shared_experts, act, use_int8)

    def __call__(self, x: Tensor, step: Step, cache: CacheTensors) -> Tensor:
        chosen, weights = self._route(torch.mv(self._moe.gate.weight, x))
        z = x if self._down is None else self._down(x)
        inner = self._act(torch.stack([self._experts[e][0](z) for e in chosen])).unbind()
        u = torch.zeros_like(z)
        for e, h, weight in zip(chosen, inner, weights, strict=True):
            self._experts[e][1].plus(u, h, weight)
        if self._norm is not None:
            u = self._norm(u)
        if self._up is not None:
            u = self._up(u)
        return u if self._shared is None else self._shared.plus(u, x)

    def _route(self, logits: Tensor) -> tuple[list[int], list[float]]:
        config = self._config
        is_sigmoid = config.moe_router_activation_func == "sigmoid"
        scores = torch.sigmoid(logits) if is_sigmoid else torch.softmax(logits, 0)
        biased = scores + self._moe.gate.e_score_correction_bias
        chosen: list[int] = torch.topk(biased, config.num_experts_per_token).indices.tolist()
        all_scores = scores.tolist()
        weights = [all_scores[e] for e in chosen]
        scale = config.routed_scaling_factor / ((sum(weights) + 1e-20) if config.moe_renormalize else 1.0)
        return chosen, [weight * scale for weight in weights]


class SinglePath:
    """The way of one token through all layers; made from a loaded model, whose weights it shares."""

    def __init__(
        self,
        config: ModelConfig,
        embeddings: Tensor,
        norm: RMSNorm,
        output_site: Site | None,
        use_int8: bool,
    ) -> None:
        self._config, self._use_int8 = config, use_int8
        self._embeddings, self._norm, self._output_site = embeddings, SingleNorm(norm), output_site
        block = config.attn_res_block_size
        num_blocks = None if block is None else -(-config.num_hidden_layers // block)
        self._stream = SingleStream(norm.weight.detach(), num_blocks, config.rms_norm_eps)
        self._act = single_act(config, embeddings.dtype)
        self._sublayers: list[tuple[Site | None, bool, SingleNorm, Sublayer]] = []

    def append(
        self, site: Site | None, starts_block: bool, norm: RMSNorm, module: KDA | MLA | MoE | GatedMLP
    ) -> None:
        """Add the next sublayer."""
        sublayer: Sublayer
        if isinstance(module, KDA):
            sublayer = SingleKDA(module, self._use_int8)
        elif isinstance(module, MLA):
            sublayer = SingleMLA(module, self._use_int8)
        elif isinstance(module, MoE):
            sublayer = SingleMoE(module, self._config, self._act, self._use_int8)
        else:
            sublayer = SingleMLP(module, self._act, self._use_int8)
        self._sublayers.append((site, starts_block, SingleNorm(norm), sublayer))

    def run(self, batch: ForwardBatch, cache: CacheTensors, taps: list[Tensor] | None) -> Tensor:
        """The normed output of the last layer, [1, D]; `taps` as in K3ForCausalLM.forward."""
        step, stream = Step(batch), self._stream
        stream.start(self._embeddings[batch.token_ids[0]])
        for n, (site, starts_block, norm, sublayer) in enumerate(self._sublayers):
            h = stream.read(site)
            if starts_block:
                stream.start_block()
            stream.add(sublayer(norm(h), step, cache))
            if taps is not None and n % 2:
                taps.append(stream.total.clone().unsqueeze(0))
        return self._norm(stream.read(self._output_site)).unsqueeze(0)

"""The training-time forward pass: the same function as `k3agent.backend.model`, over packed documents.

Plain functions over tensors are the compile units, each compiled once and shared by all layers; the KDA
kernel and attention stay outside of the graphs. Experts are one wide product masked by the gates, or batches
of fixed size (`expert_batches.py`): static shapes, no waiting for the host. Source: Kimi K3 report (arXiv
2607.24653), Attention Residuals (2603.15031), Kimi Linear (2510.26692).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.training.expert_batches import (
    Batching,
    exchange,
    find_places,
    from_places,
    to_places,
)
from k3agent.backend.training.parameters import Parameters
from k3agent.backend.training.quantize import round_inputs
from k3agent.backend.training.recurrence import Documents, attention, kda
from k3agent.backend.training.team import Team

MARGIN_STRIDE = 8
"""Quantile balancing looks at every eighth token: 8,192 of a batch place a quantile well enough."""


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = _wide(x)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU-GLU in fp32, not yet cast."""
    gate, up = _wide(gate), _wide(up)
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear_beta * torch.tanh(up / linear_beta))


def mixture(
    blocks: list[Tensor], s: Tensor, res_norm: Tensor, res_proj: Tensor, norm: Tensor, eps: float
) -> Tensor:
    """Mix the running sum with the finished blocks, and norm the mixture: the next sublayer's input."""
    fold = _wide(res_norm) * _wide(res_proj)
    sources = [_wide(source) for source in (*blocks, s)]
    scores = [
        (v * fold).sum(-1, keepdim=True) * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
        for v in sources
    ]
    top = scores[0]
    for score in scores[1:]:
        top = torch.maximum(top, score)
    # Any common shift leaves the softmax as it is, so no gradient is lost by detaching it.
    weights = [torch.exp(score - top.detach()) for score in scores]
    total, mixed = weights[0], weights[0] * sources[0]
    for weight, source in zip(weights[1:], sources[1:], strict=True):
        total, mixed = total + weight, mixed + weight * source
    return rms((mixed / total).to(s.dtype), norm, eps)


def add_mixture(
    blocks: list[Tensor], s: Tensor, add: Tensor, res_norm: Tensor, res_proj: Tensor, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Add a sublayer's output to the running sum first. Returns the new running sum and the next sublayer's
    input.
    """
    s = s + add
    return s, mixture(blocks, s, res_norm, res_proj, norm, eps)


def add_rms(s: Tensor, add: Tensor, norm: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The plain residual stream: the new sum and, normed, the next sublayer's input."""
    s = s + add
    return s, rms(s, norm, eps)


def causal_conv(u: Tensor, weight: Tensor, position: Tensor, shared: int) -> Tensor:
    """Depthwise convolution over time, then SiLU. u: [T, P]; weight: [P, taps]; position: [T, 1] in its
    document.

    With `shared` > 0 documents after the first go on where its `shared` tokens end.
    """
    taps = weight.shape[1]
    total = _wide(u) * weight[:, -1]
    for back in range(1, taps):
        earlier = F.pad(u, (0, 0, back, 0))[: u.shape[0]]
        total = total + _wide(torch.where(position >= back, earlier, 0.0)) * weight[:, taps - 1 - back]
    if shared:
        is_later = torch.arange(u.shape[0], device=u.device)[:, None] >= shared
        for place in range(taps - 1):
            # What the taps before the document's start see depends on the place in it, not on the document.
            seen = _wide(u[shared - 1]) * 0.0
            for back in range(place + 1, taps):
                seen = seen + _wide(u[shared - back + place]) * weight[:, taps - 1 - back]
            total = total + torch.where(is_later & (position == place), seen, 0.0)
    return F.silu(total)


def kda_in(
    x: Tensor, w_in: Tensor, f_b: Tensor, conv: Tensor, position: Tensor, heads: int, shared: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The inputs of the recurrence: q, k, v, z [T, H, N], b [T, H], and the output gate [T, H*N]."""
    width = f_b.shape[0]
    rank, tokens = f_b.shape[1], x.shape[0]
    y = x @ w_in.t()
    parts = []
    for i in range(3):
        rows = slice(i * width, (i + 1) * width)
        part = causal_conv(y[:, rows], conv[rows], position, shared).view(tokens, heads, width // heads)
        if i < 2:
            part = part.to(x.dtype)
            wide = _wide(part)
            part = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)
        parts.append(part.to(x.dtype))
    gate = y[:, 3 * width : 4 * width].contiguous()
    z = y[:, 4 * width : 4 * width + rank] @ f_b.t()
    b = y[:, 4 * width + rank : 4 * width + rank + heads].contiguous()
    return parts[0], parts[1], parts[2], z.view(tokens, heads, width // heads), b, gate


def kda_out(o: Tensor, gate: Tensor, o_norm: Tensor, w_out: Tensor, eps: float) -> Tensor:
    wide = _wide(o)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * o_norm
    gated = normed * torch.sigmoid(_wide(gate).view(o.shape))
    return gated.to(o.dtype).reshape(o.shape[0], -1) @ w_out.t()


def mla_in(
    x: Tensor,
    w_in: Tensor,
    q_norm: Tensor,
    q_b: Tensor,
    kv_norm: Tensor,
    kv_b: Tensor,
    heads: int,
    nope: int,
    rope: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values [T, H, N] and the output gate [T, H*V]."""
    tokens, q_rank, rank = x.shape[0], q_b.shape[1], kv_b.shape[1]
    y = x @ w_in.t()
    q = (rms(y[:, :q_rank], q_norm, eps) @ q_b.t()).view(tokens, heads, nope + rope)
    kv = (rms(y[:, q_rank : q_rank + rank], kv_norm, eps) @ kv_b.t()).view(tokens, heads, -1)
    shared = y[:, None, q_rank + rank : q_rank + rank + rope].expand(tokens, heads, rope)
    k = torch.cat((kv[..., :nope], shared), dim=-1)
    v = kv[..., nope:].contiguous()
    gate_width = heads * v.shape[-1]
    start = q_rank + rank + rope
    return q, k, v, y[:, start : start + gate_width].contiguous()


def mla_out(o: Tensor, gate: Tensor, w_out: Tensor) -> Tensor:
    return (o.reshape(o.shape[0], -1) * torch.sigmoid(gate)) @ w_out.t()


def dense(x: Tensor, w_in: Tensor, w_out: Tensor, beta: float, linear_beta: float) -> Tensor:
    gate, up = (x @ w_in.t()).chunk(2, dim=-1)
    return situ(gate, up, beta, linear_beta).to(x.dtype) @ w_out.t()


def route(scores: Tensor, bias: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Which experts a token gets, and its cutoff: the (top+1)-th largest biased score.

    scores: [T, E]; returns bool [T, E] and [T, 1]. Ranks by counting: no sort, and equal scores fall to the
    first.
    """
    biased = scores + bias
    index = torch.arange(scores.shape[1], device=scores.device)
    mine, other = biased[:, :, None], biased[:, None, :]
    ahead = (other > mine) | ((other == mine) & (index[None, None, :] < index[None, :, None]))
    rank = ahead.sum(-1)
    return rank < top, torch.where(rank == top, biased, 0.0).sum(-1, keepdim=True)


def gates_of(
    x: Tensor, router: Tensor, bias: Tensor, top: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Who is chosen, bool [T, E]; the weight of each expert, zero where not chosen, [T, E]; margins [T/8, E]
    for balancing.
    """
    scores = torch.sigmoid(_wide(x) @ _wide(router).t())
    chosen, cutoff = route(scores.detach(), bias, top)
    gates = torch.where(chosen, scores, 0.0)
    gates = gates / (gates.sum(-1, keepdim=True) + 1e-20) * scale
    return chosen, gates, (scores.detach() - cutoff)[::MARGIN_STRIDE].contiguous()


def moe_out(
    y: Tensor,
    routed: Tensor,
    latent: int,
    norm: Tensor,
    w_out: Tensor,
    beta: float,
    linear_beta: float,
    eps: float,
) -> Tensor:
    """The shared expert, whose inputs stand in y behind the latent ones, beside the routed ones' sum."""
    shared_gate, shared_up = y[:, latent : latent + 2 * (w_out.shape[1] - latent)].chunk(2, dim=-1)
    shared = situ(shared_gate, shared_up, beta, linear_beta).to(y.dtype)
    return torch.cat((rms(routed.to(y.dtype), norm, eps), shared), dim=-1) @ w_out.t()


def moe_in(
    x: Tensor, router: Tensor, bias: Tensor, w_in: Tensor, top: int, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is worked out before tokens go to experts: y, and what `gates_of` returns."""
    return x @ w_in.t(), *gates_of(x, router, bias, top, scale)


def expert_batch(
    z: Tensor, experts_in: Tensor, experts_out: Tensor, beta: float, linear_beta: float, is_rounding: bool
) -> Tensor:
    """Each expert on its own rows: z [E, N, Z] to [E, N, Z]. Rows of zeros stay zero."""
    num_experts, _, latent = z.shape
    inner = experts_out.shape[1] // num_experts
    w13 = experts_in[: 2 * num_experts * inner].view(2, num_experts, inner, latent)
    z = round_inputs(z) if is_rounding else z
    gate, up = (torch.bmm(z, w.mT) for w in w13)
    hidden = situ(gate, up, beta, linear_beta)
    hidden = round_inputs(hidden) if is_rounding else hidden
    return torch.bmm(hidden.to(z.dtype), experts_out.view(latent, num_experts, inner).permute(1, 2, 0))


def moe(
    x: Tensor,
    router: Tensor,
    bias: Tensor,
    w_in: Tensor,
    experts_in: Tensor,
    norm: Tensor,
    experts_out: Tensor,
    w_out: Tensor,
    top: int,
    scale: float,
    beta: float,
    linear_beta: float,
    eps: float,
    is_rounding: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Latent MoE and the shared expert. Also returns margins [T/8, E] for balancing and the load [E] of
    each expert. `is_rounding`: the experts' inputs, and those of their second matrices, become MXFP8.
    """
    num_experts, latent = router.shape[0], experts_in.shape[1]
    chosen, gates, margins = gates_of(x, router, bias, top, scale)
    y = x @ w_in.t()
    z = round_inputs(y[:, :latent]) if is_rounding else y[:, :latent]
    hidden_gate, hidden_up = (z @ experts_in.t()).chunk(2, dim=-1)
    hidden = situ(hidden_gate, hidden_up, beta, linear_beta).view(x.shape[0], num_experts, -1)
    hidden = round_inputs(hidden) if is_rounding else hidden
    routed = (hidden * gates[..., None]).to(x.dtype).view(x.shape[0], -1) @ experts_out.t()
    out = moe_out(y, routed, latent, norm, w_out, beta, linear_beta, eps)
    return out, margins, chosen.sum(0)


def token_loss(x: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean cross entropy, and [sum of loss, count of right ones, count] over tokens of full
    weight.
    """
    logits = _wide(x @ head.t())
    is_label = torch.arange(head.shape[0], device=x.device)[None] == labels[:, None]
    target = torch.where(is_label, logits, 0.0).sum(-1)
    loss = torch.logsumexp(logits, dim=-1) - target
    full = (weights >= 0.99).to(loss.dtype)
    right = (target.detach() >= logits.detach().amax(-1)).to(loss.dtype)
    total = (loss * weights).sum() / weights.sum().clamp_min(1e-6)
    return total, torch.stack(((loss.detach() * full).sum(), (right * full).sum(), full.sum()))


@dataclass
class Batch:
    """T tokens of packed documents, on the device."""

    token_ids: Tensor
    """[T] int64"""
    labels: Tensor
    """[T] int64, the token after each."""
    weights: Tensor
    """[T] fp32, weight of each label's loss; zero at the last token of a document."""
    position: Tensor
    """[T, 1] int32, place in the document."""
    documents: Documents


@dataclass
class Outcome:
    loss: Tensor
    stats: Tensor
    """Of token_loss."""
    margins: Tensor
    """[MoE layers, T/8, E]"""
    loads: Tensor
    """[MoE layers, E] tokens per expert"""
    num_lost: Tensor
    """Choices of experts that found no place, a scalar; 0 where experts are one wide product."""


@dataclass
class Routing:
    """What the MoE layers of one pass did, a tensor each."""

    margins: list[Tensor] = field(default_factory=list)
    loads: list[Tensor] = field(default_factory=list)
    lost: list[Tensor] = field(default_factory=list)


UNITS: dict[str, Callable] = {
    f.__name__: f
    for f in (
        *(rms, mixture, add_mixture, add_rms, kda_in, kda_out, mla_in, mla_out),
        *(dense, moe, moe_in, expert_batch, moe_out, token_loss),
    )
}


class Network:
    """The forward pass over `parameters`; `bias` [MoE layers, E] is the balancing bias, set from outside.

    Routed experts are one wide product of all of them, or, with `batching`, batches of the tokens that chose
    them.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        *,
        compiled: bool = False,
        batching: Batching | None = None,
        team: Team | None = None,
    ) -> None:
        self.config, self.parameters = config, parameters
        self._batching, self._team = batching, team or Team()
        self.moe_layers = [i for i in range(config.num_hidden_layers) if config.is_moe(i)]
        master = parameters.vectors.master
        self.bias = torch.zeros(
            len(self.moe_layers), config.num_experts or 0, dtype=master.dtype, device=master.device
        )
        self.mixer: Callable[..., Tensor] = kda
        self.is_rounding = False
        """Are inputs of routed experts rounded to MXFP8?"""
        self.units = dict(UNITS)
        if compiled:
            self.units = {
                name: torch.compile(f, fullgraph=True, dynamic=False) for name, f in self.units.items()
            }

    def _kda(self, at: str, x: Tensor, batch: Batch) -> Tensor:
        config, p = self.config, self.parameters.leaf
        linear = config.linear_attn_config
        assert linear.gate_lower_bound is not None, "training covers the bounded gate only"
        q, k, v, z, b, gate = self.units["kda_in"](
            x,
            p(f"{at}.in"),
            p(f"{at}.f_b"),
            p(f"{at}.conv"),
            batch.position,
            linear.num_heads,
            batch.documents.shared,
        )
        o = self.mixer(
            q, k, v, z, b, p(f"{at}.A_log"), p(f"{at}.dt_bias"), linear.gate_lower_bound, batch.documents
        )
        return self.units["kda_out"](o, gate, p(f"{at}.o_norm.weight"), p(f"{at}.out"), config.rms_norm_eps)

    def _mla(self, at: str, x: Tensor, batch: Batch) -> Tensor:
        config, p = self.config, self.parameters.leaf
        q, k, v, gate = self.units["mla_in"](
            x,
            p(f"{at}.in"),
            p(f"{at}.q_a_layernorm.weight"),
            p(f"{at}.q_b"),
            p(f"{at}.kv_a_layernorm.weight"),
            p(f"{at}.kv_b"),
            config.num_attention_heads,
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.mla_latent_norm_eps,
        )
        return self.units["mla_out"](attention(q, k, v, batch.documents), gate, p(f"{at}.out"))

    def _ffn(self, i: int, x: Tensor, routing: Routing) -> Tensor:
        config, p = self.config, self.parameters.leaf
        soft = (config.activation_situ_beta, config.activation_situ_linear_beta)
        if not config.is_moe(i):
            return self.units["dense"](x, p(f"layers.{i}.mlp.in"), p(f"layers.{i}.mlp.out"), *soft)
        if self._batching is not None:
            return self._batched_moe(i, x, self._batching, routing)
        at = f"layers.{i}.block_sparse_moe"
        y, margin, load = self.units["moe"](
            x,
            p(f"{at}.gate.weight"),
            self.bias[self.moe_layers.index(i)],
            p(f"{at}.in"),
            p(f"{at}.experts_in"),
            p(f"{at}.routed_expert_norm.weight"),
            p(f"{at}.experts_out"),
            p(f"{at}.out"),
            config.num_experts_per_token,
            config.routed_scaling_factor,
            *soft,
            config.rms_norm_eps,
            self.is_rounding,
        )
        routing.margins.append(margin)
        routing.loads.append(load)
        return y

    def _batched_moe(self, i: int, x: Tensor, batching: Batching, routing: Routing) -> Tensor:
        config, p, at = self.config, self.parameters.leaf, f"layers.{i}.block_sparse_moe"
        soft = (config.activation_situ_beta, config.activation_situ_linear_beta)
        top, latent, num_experts = config.num_experts_per_token, config.expert_width, config.num_experts or 0
        bias = self.bias[self.moe_layers.index(i)]
        w_in, scale = p(f"{at}.in"), config.routed_scaling_factor
        y, chosen, gates, margin = self.units["moe_in"](x, p(f"{at}.gate.weight"), bias, w_in, top, scale)
        places = find_places(chosen, top, batching.num_places(len(x), top, num_experts))
        z = to_places(y[:, :latent], places, num_experts)
        matrices = (p(f"{at}.experts_in"), p(f"{at}.experts_out"))
        if batching.is_parallel:
            z = exchange(z, self._team, is_back=False)
        z = self.units["expert_batch"](z, *matrices, *soft, self.is_rounding)
        if batching.is_parallel:
            z = exchange(z, self._team, is_back=True)
        routed = from_places(z, gates.gather(1, places.expert), places)
        routing.margins.append(margin)
        routing.loads.append(chosen.sum(0))
        routing.lost.append(places.num_lost)
        norm, w_out = p(f"{at}.routed_expert_norm.weight"), p(f"{at}.out")
        return self.units["moe_out"](y, routed, latent, norm, w_out, *soft, config.rms_norm_eps)

    def hidden(self, batch: Batch) -> tuple[Tensor, Routing]:
        """The normed input of the head [T, D], and how each MoE layer routed."""
        routing = Routing()
        stream = self._attention_residuals if self.config.attn_res_block_size else self._plain_residuals
        return stream(batch, routing), routing

    def _plain_residuals(self, batch: Batch, routing: Routing) -> Tensor:
        config, p, eps = self.config, self.parameters.leaf, self.config.rms_norm_eps
        s = F.embedding(batch.token_ids, p("embed_tokens.weight"))
        x = self.units["rms"](s, p("layers.0.input_layernorm.weight"), eps)
        for i in range(config.num_hidden_layers):
            at, is_last = f"layers.{i}", i + 1 == config.num_hidden_layers
            a = (self._kda if config.is_kda(i) else self._mla)(f"{at}.self_attn", x, batch)
            s, x = self.units["add_rms"](s, a, p(f"{at}.post_attention_layernorm.weight"), eps)
            after = "norm.weight" if is_last else f"layers.{i + 1}.input_layernorm.weight"
            s, x = self.units["add_rms"](s, self._ffn(i, x, routing), p(after), eps)
        return x

    def _attention_residuals(self, batch: Batch, routing: Routing) -> Tensor:
        config, p, eps = self.config, self.parameters.leaf, self.config.rms_norm_eps
        assert config.attn_res_block_size
        blocks: list[Tensor] = []
        s, add = F.embedding(batch.token_ids, p("embed_tokens.weight")), None
        for i in range(config.num_hidden_layers):
            at = f"layers.{i}"
            if blocks:
                s, x = self._mix(blocks, s, add, f"{at}.self_attention_res", f"{at}.input_layernorm.weight")
            else:
                x = self.units["rms"](s, p(f"{at}.input_layernorm.weight"), eps)
            is_boundary = i % config.attn_res_block_size == 0
            if is_boundary:
                blocks.append(s)
            a = (self._kda if config.is_kda(i) else self._mla)(f"{at}.self_attn", x, batch)
            s, add = (a, None) if is_boundary else (s, a)
            s, x = self._mix(blocks, s, add, f"{at}.mlp_res", f"{at}.post_attention_layernorm.weight")
            add = self._ffn(i, x, routing)
        return self._mix(blocks, s, add, "output_attn_res", "norm.weight")[1]

    def _mix(
        self, blocks: list[Tensor], s: Tensor, add: Tensor | None, site: str, norm: str
    ) -> tuple[Tensor, Tensor]:
        p, eps = self.parameters.leaf, self.config.rms_norm_eps
        weights = (p(f"{site}_norm.weight"), p(f"{site}_proj.weight"), p(norm))
        if add is None:
            return s, self.units["mixture"](list(blocks), s, *weights, eps)
        return self.units["add_mixture"](list(blocks), s, add, *weights, eps)

    def forward(self, batch: Batch) -> Outcome:
        x, routing = self.hidden(batch)
        head = self.parameters.leaf("lm_head.weight")
        loss, stats = self.units["token_loss"](x, head, batch.labels, batch.weights)
        num_lost = torch.stack(routing.lost).sum() if routing.lost else stats.new_zeros(())
        return Outcome(loss, stats, torch.stack(routing.margins), torch.stack(routing.loads), num_lost)

    def logits(self, batch: Batch) -> Tensor:
        """[T, vocab], for checks."""
        return _wide(self.hidden(batch)[0] @ self.parameters.leaf("lm_head.weight").t())

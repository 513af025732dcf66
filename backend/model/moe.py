"""Stable LatentMoE: a few of many experts, chosen on the full input, working in a narrower latent space.

Without a latent width (Kimi-Linear) the experts read the input itself. Source: Kimi K3 technical report,
arXiv 2607.24653.
"""

from collections.abc import Iterator
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels import registry
from k3agent.backend.kernels.dtypes import wide_dtype
from k3agent.backend.kernels.experts import Activation, ExpertStacks
from k3agent.backend.kernels.reference.mxfp4 import GROUP
from k3agent.backend.model.layers import Accelerated, GatedMLP, Linear, RMSNorm, gated_act, parameter
from k3agent.backend.parallel.shard import Shard

FEW_TOKENS = 64


class Gate(Accelerated):
    """The router: scores of all experts in full precision, and the bias that balances the choice."""

    is_capturable = True

    def __init__(self, config: ModelConfig, num_experts: int, dtype: torch.dtype) -> None:
        super().__init__()
        wide = wide_dtype(dtype)
        self.weight = parameter(torch.empty(num_experts, config.hidden_size, dtype=wide))
        self.e_score_correction_bias = parameter(torch.empty(num_experts, dtype=wide))
        self._num_chosen = config.num_experts_per_token
        self._options = {
            "activation": config.moe_router_activation_func,
            "renormalize": config.moe_renormalize,
            "scaling": config.routed_scaling_factor,
        }
        self._route = registry.get("route")
        self._narrow: Tensor | None = None
        """The weight in bf16, where that is the same and there is a product with a wide result."""

    def choose_kernels(self, kernels: str, device: torch.device) -> None:
        self._route = registry.choose("route", kernels, device)
        if device.type == "cuda" and self.weight.dtype == torch.float32:
            narrow = self.weight.bfloat16()
            self._narrow = narrow.t() if torch.equal(narrow.float(), self.weight) else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self._narrow is not None and x.dtype == torch.bfloat16:
            # products of bf16 are exact in fp32, in which they are summed here as well
            logits = torch.mm(x, self._narrow, out_dtype=torch.float32)
        else:
            logits = F.linear(x.to(self.weight.dtype), self.weight)
        return self._route(logits, self.e_score_correction_bias, self._num_chosen, **self._options)


class Experts(Accelerated):
    """All routed experts of a layer, stacked: w1 (gate) over w3 (up), and w2 (down). Plain, or still packed
    MXFP4.

    They are no parameters: 896 modules a layer would cost more than the comparison of names is worth, so
    `destinations` says which name belongs where.
    """

    def __init__(self, config: ModelConfig, shard: Shard, dtype: torch.dtype, is_packed: bool) -> None:
        super().__init__()
        width, inner = config.expert_width, config.moe_intermediate_size
        self.numbers = shard.experts(config.num_experts or 0)
        """Which of the layer's experts these are; with several ranks perhaps not all."""
        self._is_whole, self._comm = len(self.numbers) == config.num_experts, shard.comm
        self._num_all = config.num_experts
        num_experts = len(self.numbers)
        self._num_experts, self._inner, self._dtype, self._is_packed = num_experts, inner, dtype, is_packed
        self._act = gated_act(config)
        self._activation = Activation()
        if config.hidden_act == "situ":
            self._activation = Activation(config.activation_situ_beta, config.activation_situ_linear_beta)
        self._grouped: registry.Kernel | None = None
        """Runs all experts of a step at once; None: they are run one by one."""
        self._dequantise = registry.get("mxfp4_dequantise")
        shapes = {"w13": (num_experts, 2 * inner, width), "w2": (num_experts, width, inner)}
        self._stacks: dict[str, Tensor] = {}
        for name, (count, rows, columns) in shapes.items():
            if is_packed and columns % GROUP:
                raise BackendError(
                    f"{columns} columns of {name} on a rank are no whole groups of {GROUP} for MXFP4. Use"
                    " fewer ranks or whole experts, or load with packed_experts=False."
                )
            if is_packed:
                for kind, shrink in (("weight_packed", 2), ("weight_scale", GROUP)):
                    stack = torch.empty(count, rows, columns // shrink, dtype=torch.uint8)
                    self._stacks[f"{name}.{kind}"] = stack
            else:
                self._stacks[f"{name}.weight"] = torch.empty(count, rows, columns, dtype=dtype)
        self.pairs: list[tuple[Tensor, Tensor]] = []
        if not is_packed:
            stacks = self._stacks["w13.weight"], self._stacks["w2.weight"]
            self.pairs = list(zip(*(stack.unbind() for stack in stacks), strict=True))

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """`w1.weight` and so on, with the view [E, out, in] that it fills: entry e belongs to expert e."""
        for name, stack in self._stacks.items():
            matrix, kind = name.split(".")
            if matrix == "w2":
                yield name, stack
            else:
                yield f"w1.{kind}", stack[:, : self._inner]
                yield f"w3.{kind}", stack[:, self._inner :]

    @property
    def stacks(self) -> ExpertStacks:
        """The weights as kernels take them."""
        kind = "weight_packed" if self._is_packed else "weight"
        return ExpertStacks(
            w13=self._stacks[f"w13.{kind}"],
            w2=self._stacks[f"w2.{kind}"],
            w13_scale=self._stacks.get("w13.weight_scale"),
            w2_scale=self._stacks.get("w2.weight_scale"),
            first=self.numbers.start,
            of=self._num_all,
        )

    def choose_kernels(self, kernels: str, device: torch.device) -> None:
        kernel = registry.choose("moe_experts", kernels, device)
        is_grouped = kernel is not registry.get("moe_experts") and self._dtype == torch.bfloat16
        self._grouped = kernel if is_grouped and self.stacks.suit_matrix_unit() else None
        self.is_capturable = self._grouped is not None

    def forward(self, z: Tensor, chosen: Tensor, weights: Tensor, num_rows: Tensor | None = None) -> Tensor:
        """z: [T, Z]; chosen, weights: [T, k]. Returns the weighted sum of the experts' outputs, [T, Z],
        summed wide. `num_rows` [1]: rows from there on are padding."""
        if self._grouped is not None:
            total = self._grouped(z, chosen, weights, self.stacks, self._activation, num_rows)
            return self._comm.all_reduce(total).to(z.dtype)
        if z.shape[0] == 1 and self._is_whole:
            return self._one_token(z, chosen[0].tolist(), weights)
        tokens, counts, flat_weights = self._by_expert(chosen, weights)
        total = z.new_zeros(z.shape, dtype=weights.dtype)
        if z.shape[0] <= FEW_TOKENS and self.pairs:
            out = self._few_tokens(z.index_select(0, tokens), counts)
            total.index_add_(0, tokens, out.to(total.dtype) * flat_weights)
        else:
            start = 0
            for e, count in counts:
                rows = slice(start, start + count)
                start += count
                out = self._run(e, z.index_select(0, tokens[rows]))
                total.index_add_(0, tokens[rows], out.to(total.dtype) * flat_weights[rows])
        # Ranks sum here, still wide, because the norm that follows acts on the whole sum.
        return self._comm.all_reduce(total).to(z.dtype)

    def _by_expert(self, chosen: Tensor, weights: Tensor) -> tuple[Tensor, list[tuple[int, int]], Tensor]:
        """The choices of this rank's experts, sorted by expert: their tokens, [N]; each expert that is wanted
        and how often; their weights, [N, 1]."""
        num_chosen = chosen.shape[1]
        flat = chosen.flatten()
        if not self._is_whole:
            # those of other ranks come last in the order, and are cut off
            flat = flat - self.numbers.start
            flat = torch.where((flat >= 0) & (flat < self._num_experts), flat, self._num_experts)
        order = flat.argsort(stable=True)
        counts: list[int] = torch.bincount(flat, minlength=self._num_experts)[: self._num_experts].tolist()
        order = order[: sum(counts)]
        tokens = order.div(num_chosen, rounding_mode="floor")
        wanted = [(e, count) for e, count in enumerate(counts) if count]
        return tokens, wanted, weights.flatten()[order].unsqueeze(-1)

    def _few_tokens(self, z: Tensor, counts: list[tuple[int, int]]) -> Tensor:
        """Rows of z through their experts; with few rows operations cost more than their arithmetic, so the
        activation is one for all experts."""
        gate_up = z.new_empty((z.shape[0], 2 * self._inner))
        out = torch.empty_like(z)
        stops = list(accumulate(count for _, count in counts))
        rows = [slice(stop - count, stop) for stop, (_, count) in zip(stops, counts, strict=True)]
        for (e, _), where in zip(counts, rows, strict=True):
            torch.mm(z[where], self.pairs[e][0].t(), out=gate_up[where])
        inner = self._act(gate_up)
        for (e, _), where in zip(counts, rows, strict=True):
            torch.mm(inner[where], self.pairs[e][1].t(), out=out[where])
        return out

    def _one_token(self, z: Tensor, experts: list[int], weights: Tensor) -> Tensor:
        outs = torch.cat([self._run(e, z) for e in experts])
        return self._comm.all_reduce(weights @ outs.to(weights.dtype)).to(z.dtype)

    def _run(self, e: int, x: Tensor) -> Tensor:
        w13, w2 = self._matrices(e)
        return F.linear(self._act(F.linear(x, w13)), w2)

    def _matrices(self, e: int) -> tuple[Tensor, Tensor]:
        if not self._is_packed:
            return self.pairs[e]
        packed = (self._stacks[f"{n}.weight_packed"][e] for n in ("w13", "w2"))
        scales = (self._stacks[f"{n}.weight_scale"][e] for n in ("w13", "w2"))
        w13, w2 = (self._dequantise(p, s, self._dtype) for p, s in zip(packed, scales, strict=True))
        return w13, w2


class MoE(nn.Module):
    """Routed experts between latent projections, plus the shared experts at full width."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, is_packed: bool, shard: Shard) -> None:
        super().__init__()
        self._comm = shard.comm
        num_experts = config.num_experts or 0
        width, latent = config.hidden_size, config.routed_expert_hidden_size
        self.gate = Gate(config, num_experts, dtype)
        self.experts = Experts(config, shard, dtype, is_packed)
        self.routed_expert_down_proj = Linear(width, latent, dtype) if latent else None
        self.routed_expert_up_proj = Linear(latent, width, dtype) if latent else None
        self.routed_expert_norm = None
        if config.latent_moe_use_norm:
            self.routed_expert_norm = RMSNorm(config.expert_width, config.rms_norm_eps, dtype)
        # with whole experts dealt out, routed ones are cut among fewer ranks than the shared ones
        shared = shard.share(config.shared_width, "width of the shared experts", shard.expert_parallel)
        self.shared_experts = GatedMLP(config, shared, dtype) if shared else None

    def forward(self, x: Tensor, num_rows: Tensor | None = None) -> Tensor:
        chosen, weights = self.gate(x)
        z = x if self.routed_expert_down_proj is None else self.routed_expert_down_proj(x)
        u = self.experts(z, chosen, weights, num_rows)
        if self.routed_expert_norm is not None:
            u = self.routed_expert_norm(u)
        if self.routed_expert_up_proj is not None:
            u = self.routed_expert_up_proj(u)
        return u if self.shared_experts is None else u + self._comm.all_reduce(self.shared_experts(x))

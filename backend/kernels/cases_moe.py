"""What `kernels.bench` times of routed experts and of sampling: real shapes of K3 and Kimi-Linear.

The peer for packed experts is what PyTorch has: bf16 weights of the same shape in a grouped product.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from k3agent.backend.kernels import registry
from k3agent.backend.kernels.cases import Case, Setting, makes
from k3agent.backend.kernels.experts import Activation, ExpertStacks
from k3agent.backend.kernels.gpu import runs_triton

GROUP = 32
PLAIN_CHOICES = 512
"""The plain form is timed up to here: it takes one expert after the other."""


@dataclass(frozen=True)
class Shape:
    """Experts of one model, or one rank's part of them."""

    name: str
    experts: int
    held: int
    """Of so many this rank has the weights."""
    width: int
    inner: int
    top: int
    is_packed: bool
    act: Activation


K3 = Shape("K3 MXFP4", 896, 896, 3584, 3072, 16, True, Activation(4.0, 25.0))
K3_RANK = replace(K3, name="K3 MXFP4 rank of 16", held=56)
LINEAR = Shape("Kimi-Linear bf16", 256, 256, 2304, 1024, 8, False, Activation())
TINY = Shape("tiny MXFP4", 8, 8, 64, 64, 2, True, Activation(4.0, 25.0))
TINY_PLAIN = replace(TINY, name="tiny bf16", is_packed=False)


def random_stacks(shape: Shape, device: torch.device) -> ExpertStacks:
    """Weights of order 1 / sqrt(columns), drawn on the device."""
    held, width, inner = shape.held, shape.width, shape.inner
    if not shape.is_packed:
        w13 = torch.randn((held, 2 * inner, width), dtype=torch.bfloat16, device=device).mul_(width**-0.5)
        w2 = torch.randn((held, width, inner), dtype=torch.bfloat16, device=device).mul_(inner**-0.5)
        return ExpertStacks(w13, w2, of=shape.experts)
    codes = [
        torch.randint(0, 256, (held, rows, columns // 2), dtype=torch.uint8, device=device)
        for rows, columns in ((2 * inner, width), (width, inner))
    ]
    scales = [
        # codes have a root mean square of about 3; 2^-8 brings them to 1 / 85
        torch.randint(118, 121, (held, rows, columns // GROUP), dtype=torch.uint8, device=device)
        for rows, columns in ((2 * inner, width), (width, inner))
    ]
    return ExpertStacks(codes[0], codes[1], scales[0], scales[1], of=shape.experts)


def _choices(shape: Shape, num_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    scores = torch.rand((num_tokens, shape.experts), device=device)
    weights, chosen = scores.topk(shape.top, dim=-1)
    return chosen.to(torch.int32), weights / weights.sum(-1, keepdim=True)


@makes("moe_experts")
def experts(setting: Setting) -> Iterator[Case]:
    """Routed experts of one layer, without router and latent projections."""
    shapes = (TINY, TINY_PLAIN) if setting.tiny else (K3, K3_RANK, LINEAR)
    for shape in shapes:
        stacks = random_stacks(shape, setting.device)
        for num_tokens in (1, 40) if setting.tiny else (1, 8, 64, 512, 2048):
            yield _experts_case(shape, stacks, num_tokens, setting)


def _experts_case(shape: Shape, stacks: ExpertStacks, num_tokens: int, setting: Setting) -> Case:
    device = setting.device
    z = torch.randn((num_tokens, shape.width), dtype=torch.bfloat16, device=device)
    chosen, weights = _choices(shape, num_tokens, device)
    is_mine = chosen < shape.held
    num_active, num_choices = len(chosen[is_mine].unique()), int(is_mine.sum())
    arguments = (z, chosen, weights, stacks, shape.act)
    calls: dict[str, Callable[[], object]] = {}
    if num_choices <= PLAIN_CHOICES or setting.tiny:
        calls["reference"] = lambda: registry.get("moe_experts")(*arguments)
    limits: dict[str, int] = {}
    if runs_triton(device):
        from k3agent.backend.kernels.triton.moe_experts import limits_of

        limits = limits_of(stacks, num_tokens, shape.top)
        calls["triton"] = lambda: registry.load_triton("moe_experts")(*arguments)
    if setting.peers and device.type == "cuda" and shape.held == shape.experts:
        calls |= _grouped_mm(shape, stacks, z, chosen, weights)
    expected: list[Tensor] = []

    def error(name: str) -> float | None:
        if name == "grouped_mm" and shape.is_packed:
            # it has weights of its own
            return None
        if not expected:
            some = min(num_tokens, 16)
            parts = z[:some], chosen[:some], weights[:some], stacks, shape.act
            expected.append(registry.get("moe_experts")(*parts).float())
        found = calls[name]()
        assert isinstance(found, Tensor)
        return float((found[: len(expected[0])].float() - expected[0]).norm() / expected[0].norm())

    return Case(
        op="moe_experts",
        shape=f"{shape.name} T={num_tokens}",
        calls=calls,
        num_bytes=num_active * stacks.bytes_each + num_tokens * shape.width * 6,
        num_flops=num_choices * 6 * shape.width * shape.inner,
        graphs={"triton", "grouped_mm"},
        error=error,
        limits=limits,
    )


def _grouped_mm(
    shape: Shape, stacks: ExpertStacks, z: Tensor, chosen: Tensor, weights: Tensor
) -> dict[str, Callable[[], object]]:
    """PyTorch's grouped product over choices that are sorted beforehand, in bf16: its best case.

    Where packed weights leave no room for all experts in bf16, those that are not chosen share memory.
    """
    order = chosen.flatten().argsort(stable=True)
    tokens, used = order // shape.top, chosen.flatten()[order].long()
    active, counts = used.unique(return_counts=True)
    offsets = counts.cumsum(0).to(torch.int32)
    if stacks.is_packed:
        some = replace(shape, held=len(active), experts=len(active), is_packed=False)
        try:
            plain = random_stacks(some, z.device)
        except torch.OutOfMemoryError:
            return {}
        w13, w2 = plain.w13, plain.w2
    else:
        w13, w2 = stacks.w13[active], stacks.w2[active]
    scaled = weights.flatten()[order].unsqueeze(-1)

    def run() -> Tensor:
        gate, up = torch._grouped_mm(z[tokens], w13.transpose(1, 2), offs=offsets).chunk(2, dim=-1)  # pyright: ignore[reportPrivateImportUsage]
        out = torch._grouped_mm(F.silu(gate) * up, w2.transpose(1, 2), offs=offsets)  # pyright: ignore[reportPrivateImportUsage]
        total = torch.zeros(z.shape, dtype=torch.float32, device=z.device)
        return total.index_add_(0, tokens, out.float() * scaled)

    return {"grouped_mm": run}


@makes("rms_norm")
def norms(setting: Setting) -> Iterator[Case]:
    """Rows of the width of both models."""
    for width in (64,) if setting.tiny else (7168, 2304):
        for num_rows in (1, 3) if setting.tiny else (1, 64, 2048):
            x = torch.randn((num_rows, width), dtype=torch.bfloat16, device=setting.device)
            yield _rows_case(setting, "rms_norm", x, (x, torch.ones_like(x[0]), 1e-5), {})


@makes("swiglu")
def swiglus(setting: Setting) -> Iterator[Case]:
    """Of the shared expert of Kimi-Linear."""
    yield from _gated_cases(setting, "swiglu", 1024, {})


@makes("situ_glu")
def situ_glus(setting: Setting) -> Iterator[Case]:
    """Of the shared experts of K3."""
    yield from _gated_cases(setting, "situ_glu", 6144, {"beta": 4.0, "linear_beta": 25.0})


def _gated_cases(setting: Setting, op: str, width: int, options: dict[str, object]) -> Iterator[Case]:
    width = 64 if setting.tiny else width
    for num_rows in (1, 3) if setting.tiny else (1, 64, 2048):
        x = torch.randn((num_rows, 2 * width), dtype=torch.bfloat16, device=setting.device)
        yield _rows_case(setting, op, x, x.chunk(2, dim=-1), options)


def _rows_case(
    setting: Setting, op: str, x: Tensor, arguments: tuple[object, ...], options: dict[str, object]
) -> Case:
    names = ["reference", *(["triton"] if runs_triton(setting.device) else [])]
    return Case(
        op=op,
        shape=f"{x.shape[1]} T={x.shape[0]}",
        calls={name: _Call(op, name, arguments, options) for name in names},
        num_bytes=2 * x.nbytes if op == "rms_norm" else 3 * x.nbytes // 2,
        graphs=set(names),
    )


@makes("route")
def routes(setting: Setting) -> Iterator[Case]:
    """From logits to experts and weights."""
    for shape in (TINY,) if setting.tiny else (K3, LINEAR):
        for num_tokens in (1, 3) if setting.tiny else (1, 64, 2048):
            logits = torch.randn((num_tokens, shape.experts), device=setting.device)
            bias = 0.1 * torch.randn(shape.experts, device=setting.device)
            options = {"activation": "sigmoid", "renormalize": True, "scaling": 1.0}
            names = ["reference", *(["triton"] if runs_triton(setting.device) else [])]
            yield Case(
                op="route",
                shape=f"{shape.experts} choose {shape.top} T={num_tokens}",
                calls={name: _Call("route", name, (logits, bias, shape.top), options) for name in names},
                num_bytes=logits.nbytes + num_tokens * shape.top * 8,
                graphs=set(names),
                limits={"tokens": num_tokens, "experts": shape.experts},
            )


@makes("sample")
def samples(setting: Setting) -> Iterator[Case]:
    """From logits to tokens, greedy and drawn as served by default."""
    vocab_size = 64 if setting.tiny else 163840
    names = ["reference", *(["triton"] if runs_triton(setting.device) else [])]
    for num_rows in (1, 2) if setting.tiny else (1, 8, 32):
        for temperature, top_p in ((0.0, 1.0), (1.0, 0.95)):
            logits = 2 * torch.randn((num_rows, vocab_size), device=setting.device)
            heat, mass = (torch.full_like(logits[:, 0], value) for value in (temperature, top_p))
            wholes = torch.zeros(num_rows, dtype=torch.int64, device=setting.device)
            arguments = (logits, heat, wholes, mass, torch.zeros_like(heat), wholes + 7)
            yield Case(
                op="sample",
                shape=f"V={vocab_size} N={num_rows} {'drawn' if temperature else 'greedy'}",
                calls={name: _Call("sample", name, arguments, {}) for name in names},
                num_bytes=logits.nbytes,
                limits={"rows": num_rows, "vocab": vocab_size},
            )


@dataclass(frozen=True)
class _Call:
    op: str
    name: str
    arguments: tuple[object, ...]
    options: dict[str, object]

    def __call__(self) -> object:
        kernel = registry.load_triton(self.op) if self.name == "triton" else registry.get(self.op)
        return kernel(*self.arguments, **self.options)

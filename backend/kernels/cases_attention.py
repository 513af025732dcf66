"""What `kernels.bench` times of attention: KDA, MLA and the residual stream, at the shapes of K3, of one of
its ranks of sixteen, and of Kimi-Linear.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.kernels import fla, registry
from k3agent.backend.kernels.arguments import KdaCache, KdaInputs, KdaWeights
from k3agent.backend.kernels.cases import Case, Setting, makes
from k3agent.backend.kernels.gpu import runs_triton

REFERENCE_TOKENS = 1024
"""The plain form is timed up to here; beyond it takes seconds and gigabytes."""


@dataclass(frozen=True)
class Model:
    """Sizes of attention in one model."""

    name: str
    heads: int
    bound: float | None
    dim: int = 128
    nope: int = 128
    shared: int = 64
    rank: int = 512
    width: int = 7168
    blocks: int = 8


K3 = Model("K3", 96, -5.0)
K3_RANK = Model("K3 rank of 16", 6, -5.0)
LINEAR = Model("Kimi-Linear", 32, None, width=2304, blocks=0)
MODELS = (K3, K3_RANK, LINEAR)
TINY = Model("tiny", 2, -5.0, dim=16, nope=16, shared=16, rank=32, width=64, blocks=2)


@dataclass
class Tables:
    """A step as kernels.arguments.StepTables asks for."""

    cu_seqlens: Tensor
    context_lens: Tensor
    slots: Tensor
    has_state: Tensor
    page_table: Tensor
    longest: int
    shortest: int
    exports: Tensor | None = None


def make_tables(
    lengths: Sequence[int], contexts: Sequence[int], device: torch.device, exports: Tensor | None = None
) -> Tables:
    """Sequences one after another, each in pages of its own, scattered over the cache."""

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    counts = [-(-(c + n) // PAGE_SIZE) for n, c in zip(lengths, contexts, strict=True)]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    pages = torch.nn.utils.rnn.pad_sequence(list(order.split(counts)), batch_first=True)
    return Tables(
        cu_seqlens=ints([sum(lengths[:b]) for b in range(len(lengths) + 1)]),
        context_lens=ints(contexts),
        slots=ints(range(len(lengths))),
        has_state=ints([1] * len(lengths)),
        page_table=pages.to(device),
        longest=max(lengths),
        shortest=min(lengths),
        exports=exports,
    )


def _noise(setting: Setting, *shape: int, dtype: torch.dtype = torch.bfloat16, size: float = 1.0) -> Tensor:
    generator = torch.Generator(setting.device).manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator, device=setting.device) * size).to(dtype)


def _relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.float(), expected.float()
    return float((found - expected).norm() / expected.norm())


def _names(setting: Setting, with_reference: bool = True) -> list[str]:
    found = [registry.REFERENCE] if with_reference else []
    return [*found, registry.TRITON] if runs_triton(setting.device) else found


def _kernel(op: str, name: str) -> registry.Kernel:
    return registry.load_triton(op) if name == registry.TRITON else registry.get(op, name)


def _kda_parts(
    setting: Setting, model: Model, num_rows: int, num_slots: int
) -> tuple[KdaInputs, KdaWeights, KdaCache]:
    """Random projections with decays log-uniform from 1e-4 to 1, states that go with them, and weights."""
    heads, width = model.heads, model.heads * model.dim
    wide = {"dtype": torch.float32}
    qkv, gate, beta = (_noise(setting, num_rows, n) for n in (3 * width, width, heads))
    decay = torch.exp(torch.rand((num_rows, width), device=setting.device) * 9.2 - 9.2)
    z = torch.logit(decay / 5) if model.bound is not None else torch.log(torch.expm1(decay))
    weights = KdaWeights(
        taps=_noise(setting, 4, 3 * width, size=0.5, **wide),
        A_log=torch.zeros(heads, device=setting.device),
        dt_bias=torch.zeros(width, device=setting.device),
        norm=torch.ones(model.dim, device=setting.device),
        norm_eps=1e-5,
        l2_eps=1e-6,
        lower_bound=model.bound,
    )
    cache = KdaCache(
        _noise(setting, num_slots, 3, 3 * width),
        _noise(setting, num_slots, heads, model.dim, model.dim, size=0.3, **wide),
    )
    return KdaInputs(qkv, z.bfloat16(), beta, gate), weights, cache


def _kda_case(setting: Setting, model: Model, op: str, lengths: Sequence[int], exports: int = 0) -> Case:
    """`exports`: so many states are left behind on the way of the first sequence."""
    num_rows, count = sum(lengths), len(lengths)
    targets = None
    if exports:
        targets = torch.full((num_rows,), -1, dtype=torch.int32, device=setting.device)
        every = lengths[0] // (exports + 1) // 64 * 64
        for number in range(1, exports + 1):
            targets[number * every - 1] = count + number - 1
    parts = _kda_parts(setting, model, num_rows, count + exports)
    tables = make_tables(lengths, [64] * count, setting.device, targets)
    names = _names(setting, num_rows <= REFERENCE_TOKENS and not exports)
    calls: dict[str, Callable[[], object]] = {
        name: _Call(_kernel(op, name), (*parts, tables)) for name in names
    }
    inputs, weights, cache = parts
    wants_fla = setting.peers and setting.fla and setting.device.type == "cuda"
    if wants_fla and fla.is_installed() and not exports:
        states = cache.states[:count]
        is_decode = max(lengths) == 1
        calls["fla core only"] = (
            fla.FlaDecode(inputs, weights, states)
            if is_decode
            else fla.FlaPrefill(inputs, weights, states, tables)
        )

    # calls advance the states of the case; errors are those from its beginning
    kept, expected = cache.copy(), list[Tensor]()

    def error(name: str) -> float | None:
        if name != registry.TRITON or registry.REFERENCE not in calls:
            return None
        if not expected:
            expected.append(registry.get(op)(inputs, weights, kept.copy(), tables))
        return _relative(_kernel(op, name)(inputs, weights, kept.copy(), tables), expected[0])

    state_bytes = 2 * count * model.heads * model.dim**2 * 4
    kind = f" {exports} exports" if exports else ""
    what = f"B={count}" if max(lengths) == 1 else f"T={lengths[0]}" + (f" x{count}" if count > 1 else "")
    chunk = 0 if max(lengths) == 1 else 64
    per_row = 2 * model.dim * (3 * model.dim + 3 * chunk) if chunk else 0
    return Case(
        op=op,
        shape=f"{model.name} {what}{kind}",
        calls=calls,
        num_bytes=state_bytes + num_rows * model.heads * model.dim * 2 * 6,
        num_flops=num_rows * model.heads * per_row,
        graphs={registry.TRITON, "fla core only"} if max(lengths) == 1 else {registry.TRITON},
        error=error,
        limits={"heads": model.heads, "sequences": count} if chunk == 0 else {"heads": model.heads},
    )


@dataclass(frozen=True)
class _Call:
    kernel: registry.Kernel
    arguments: tuple[object, ...]

    def __call__(self) -> object:
        return self.kernel(*self.arguments)


@makes("kda_decode")
def kda_decodes(setting: Setting) -> Iterator[Case]:
    """One token of each of B sequences."""
    for model in (TINY,) if setting.tiny else MODELS:
        for count in (2,) if setting.tiny else (1, 8, 64):
            yield _kda_case(setting, model, "kda_decode", [1] * count)


@makes("kda_prefill")
def kda_prefills(setting: Setting) -> Iterator[Case]:
    """One sequence, eight side by side, and one that leaves states behind."""
    if setting.tiny:
        yield _kda_case(setting, TINY, "kda_prefill", [70, 20])
        return
    for model in MODELS:
        for length in (64, 512, 1024, 8192):
            yield _kda_case(setting, model, "kda_prefill", [length])
        yield _kda_case(setting, model, "kda_prefill", [1024] * 8)
        yield _kda_case(setting, model, "kda_prefill", [8192], exports=4)


@dataclass(frozen=True)
class _MlaParts:
    q: Tensor
    key_up: Tensor
    value_up: Tensor
    latents: Tensor
    tables: Tables

    @property
    def arguments(self) -> tuple[object, ...]:
        scale = self.q.shape[-1] ** -0.5
        return self.q, self.key_up, self.value_up, scale, self.latents, self.tables


def _mla_parts(setting: Setting, model: Model, lengths: Sequence[int], contexts: Sequence[int]) -> _MlaParts:
    tables = make_tables(lengths, contexts, setting.device)
    num_pages = int(tables.page_table.max()) + 1
    up = _noise(setting, model.heads, model.nope + model.dim, model.rank, size=model.rank**-0.5)
    return _MlaParts(
        _noise(setting, sum(lengths), model.heads, model.nope + model.shared),
        up[:, : model.nope],
        up[:, model.nope :],
        _noise(setting, num_pages, PAGE_SIZE, model.rank + model.shared),
        tables,
    )


def _mla_case(
    setting: Setting, model: Model, op: str, lengths: Sequence[int], contexts: Sequence[int], shape: str
) -> Case:
    parts = _mla_parts(setting, model, lengths, contexts)
    pieces = list(zip(lengths, contexts, strict=True))
    names = _names(setting, sum(lengths) * model.heads * (sum(contexts) + 1) <= 1 << 31)
    calls: dict[str, Callable[[], object]] = {}
    for name in names:
        is_expanding = op == "mla_prefill" and name == registry.TRITON
        rest = (*parts.arguments, pieces) if is_expanding else parts.arguments
        calls[name] = _Call(_kernel(op, name), rest)
    expected: list[Tensor] = []

    def error(name: str) -> float | None:
        if name != registry.TRITON or registry.REFERENCE not in calls:
            return None
        if not expected:
            expected.append(registry.get(op)(*parts.arguments))
        found = calls[name]()
        assert isinstance(found, Tensor)
        return _relative(found, expected[0])

    num_rows = sum(c + n for n, c in pieces)
    pairs = sum(n * (c + n / 2) for n, c in pieces) * model.heads
    absorbed = 2 * pairs * (2 * model.rank + model.shared)
    expansion = 2 * num_rows * model.heads * model.rank * (model.nope + model.dim)
    expanded = expansion + 2 * pairs * (model.nope + model.shared + model.dim)
    limits = {"rows": max(lengths) * model.heads, "sequences": len(lengths)}
    return Case(
        op=op,
        shape=f"{model.name} {shape}",
        calls=calls,
        num_bytes=num_rows * (model.rank + model.shared) * 2 + parts.key_up.nbytes + parts.value_up.nbytes,
        num_flops=int(absorbed if op == "mla_decode" else min(absorbed, expanded)),
        graphs={registry.TRITON} if op == "mla_decode" else set(),
        error=error,
        limits=limits if op == "mla_decode" else {"heads": model.heads},
    )


@makes("mla_decode")
def mla_decodes(setting: Setting) -> Iterator[Case]:
    """One token behind long prefixes, and few tokens."""
    if setting.tiny:
        yield _mla_case(setting, TINY, "mla_decode", [1, 1], [70, 3], "B=2")
        return
    for model in MODELS:
        for context in (2048, 8192, 65536, 262144):
            yield _mla_case(setting, model, "mla_decode", [1], [context - 1], f"S={context}")
        yield _mla_case(setting, model, "mla_decode", [1] * 8, [32767] * 8, "S=32768 x8")
        yield _mla_case(setting, model, "mla_decode", [1] * 32, [8191] * 32, "S=8192 x32")
        if model is K3:
            continue
        for length in (16, 64):
            # as in a graph, where a sequence without tokens takes the padding
            yield _mla_case(setting, model, "mla_decode", [length, 0], [65536, 0], f"T={length} S=65536")


@makes("mla_prefill")
def mla_prefills(setting: Setting) -> Iterator[Case]:
    """Pieces behind nothing and behind a long prefix."""
    if setting.tiny:
        yield _mla_case(setting, TINY, "mla_prefill", [200], [70], "T=200 S=70")
        return
    for model in (K3_RANK, LINEAR):
        for length, context in ((512, 0), (2048, 0), (64, 65536), (128, 65536), (512, 65536), (2048, 65536)):
            yield _mla_case(setting, model, "mla_prefill", [length], [context], f"T={length} S={context}")


@makes("mla_store")
def mla_stores(setting: Setting) -> Iterator[Case]:
    """Rows normed and put into pages; the plain form goes row by row, so it is timed for few."""
    model = TINY if setting.tiny else LINEAR
    for length in (1, 4) if setting.tiny else (1, 64, 8192):
        width = model.rank + model.shared
        tables = make_tables([length], [100], setting.device)
        latents = _noise(setting, int(tables.page_table.max()) + 1, PAGE_SIZE, width)
        norm = _noise(setting, model.rank)
        arguments = (_noise(setting, length, width + 64)[:, :width], norm, 1e-6, latents, tables)
        names = _names(setting, length <= 64)
        yield Case(
            op="mla_store",
            shape=f"T={length}",
            calls={name: _Call(_kernel("mla_store", name), arguments) for name in names},
            num_bytes=length * width * 4,
        )


@makes("stream_read")
def stream_reads(setting: Setting) -> Iterator[Case]:
    """The last read of a stream, when all blocks are there."""
    for model in (TINY,) if setting.tiny else (K3, LINEAR):
        for rows in (1, 3) if setting.tiny else (1, 8, 64, 8192):
            sources = _noise(setting, model.blocks + 1, rows, model.width)
            inverse = torch.ones((model.blocks + 1, rows), device=setting.device)
            weight = _noise(setting, model.width)
            query = weight.float() * 0.1 if model.blocks else None
            delta = _noise(setting, rows, model.width, size=1e-3)
            arguments = (sources, inverse, model.blocks, delta, False, query, 1e-5, weight, 1e-5)
            names = _names(setting)
            yield Case(
                op="stream_read",
                shape=f"{model.name} T={rows}",
                calls={name: _Call(_kernel("stream_read", name), arguments) for name in names},
                num_bytes=(sources.shape[0] + 3) * rows * model.width * 2,
                graphs=set(names),
                limits={"rows": rows, "width": model.width},
            )

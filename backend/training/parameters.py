"""Parameters of the trained model in two flat buffers, and which released tensors lie where in them.

Projections that read the same input are rows of one stored matrix, so a step makes one product of them, and
casting or rounding all matrices is one kernel. `matrices` are trained by Muon and stored as MXFP4,
`vectors` (embedding, head, router and everything that is no matrix) by AdamW.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from k3agent.backend.config import ModelConfig

GROUP = 32
"""Weights that share a scale lie side by side in a row, so rows must be a multiple of this."""

ALIGNMENT = 128
"""Stored tensors start at multiples of so many elements, as kernels that load several at once want it."""

ROW_MULTIPLE = 8
"""Rows are padded to this, so that the product's rows start at multiples of 16 bytes."""


@dataclass(frozen=True)
class Piece:
    """A released tensor inside a stored one: rows and columns as (start, count)."""

    name: str
    rows: tuple[int, int]
    cols: tuple[int, int]
    shape: tuple[int, ...]
    num_blocks: int = 1
    """Muon makes so many equal row blocks orthogonal, each on its own."""


@dataclass(frozen=True)
class Entry:
    """A stored tensor, `rows` x `cols`; `is_wide` keeps fp32 in the computation and in the file."""

    name: str
    rows: int
    cols: int
    pieces: tuple[Piece, ...]
    is_matrix: bool
    is_wide: bool = False
    init: str = "normal"
    is_dealt: bool = False
    """Does it hold only this rank's experts?"""

    @property
    def size(self) -> int:
        return self.rows * self.cols


def _stack(name: str, cols: int, parts: list[tuple[str, int, int]]) -> Entry:
    """Released matrices (name, rows, blocks) of equal input width, one below the other."""
    pieces, row = [], 0
    for part, rows, blocks in parts:
        pieces.append(Piece(part, (row, rows), (0, cols), (rows, cols), blocks))
        row += rows
    rows = -(-row // ROW_MULTIPLE) * ROW_MULTIPLE
    return Entry(name, rows, cols, tuple(pieces), is_matrix=True)


def _beside(name: str, rows: int, parts: list[tuple[str, int]]) -> Entry:
    """Released matrices (name, cols) of equal output width, side by side: the sum of their outputs is one
    product.
    """
    pieces, col = [], 0
    for part, cols in parts:
        pieces.append(Piece(part, (0, rows), (col, cols), (rows, cols)))
        col += cols
    return Entry(name, rows, col, tuple(pieces), is_matrix=True)


def _vector(name: str, size: int, *, init: str = "one", wide: bool = False, row: bool = False) -> Entry:
    shape = (1, size) if row else (size,)
    return Entry(name, 1, size, (Piece(name, (0, 1), (0, size), shape),), False, wide, init)


def _kda_entries(config: ModelConfig, layer: str) -> Iterator[Entry]:
    linear, hidden = config.linear_attn_config, config.hidden_size
    width, heads, kernel = linear.width, linear.num_heads, linear.short_conv_kernel_size
    at = f"{layer}.self_attn"
    parts = [(f"{at}.{name}_proj.weight", width, heads) for name in "qkv"]
    parts += [(f"{at}.g_proj.weight", width, 1), (f"{at}.f_a_proj.weight", linear.head_dim, 1)]
    yield _stack(f"{at}.in", hidden, [*parts, (f"{at}.b_proj.weight", heads, 1)])
    yield _stack(f"{at}.f_b", linear.head_dim, [(f"{at}.f_b_proj.weight", width, 1)])
    yield _stack(f"{at}.out", width, [(f"{at}.o_proj.weight", hidden, 1)])
    convs = [
        Piece(f"{at}.{name}_conv1d.weight", (i * width, width), (0, kernel), (width, 1, kernel))
        for i, name in enumerate("qkv")
    ]
    yield Entry(f"{at}.conv", 3 * width, kernel, tuple(convs), False, True, "conv")
    yield _vector(f"{at}.A_log", heads, init="zero", wide=True)
    yield _vector(f"{at}.dt_bias", width, init="decay", wide=True)
    yield _vector(f"{at}.o_norm.weight", linear.head_dim, wide=True)


def _mla_entries(config: ModelConfig, layer: str) -> Iterator[Entry]:
    heads, hidden, q_rank = config.num_attention_heads, config.hidden_size, config.q_lora_rank
    assert q_rank is not None and config.mla_use_output_gate, "training covers the K3 form of MLA"
    qk, value = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    at = f"{layer}.self_attn"
    parts = [
        (f"{at}.q_a_proj.weight", q_rank, 1),
        (f"{at}.kv_a_proj_with_mqa.weight", config.latent_width, 1),
    ]
    yield _stack(f"{at}.in", hidden, [*parts, (f"{at}.g_proj.weight", heads * value, 1)])
    yield _stack(f"{at}.q_b", q_rank, [(f"{at}.q_b_proj.weight", heads * qk, heads)])
    rows = heads * (config.qk_nope_head_dim + value)
    yield _stack(f"{at}.kv_b", config.kv_lora_rank, [(f"{at}.kv_b_proj.weight", rows, heads)])
    yield _stack(f"{at}.out", heads * value, [(f"{at}.o_proj.weight", hidden, 1)])
    yield _vector(f"{at}.q_a_layernorm.weight", q_rank)
    yield _vector(f"{at}.kv_a_layernorm.weight", config.kv_lora_rank)


def _dense_entries(config: ModelConfig, layer: str) -> Iterator[Entry]:
    inner, hidden, at = config.intermediate_size, config.hidden_size, f"{layer}.mlp"
    yield _stack(f"{at}.in", hidden, [(f"{at}.{name}_proj.weight", inner, 1) for name in ("gate", "up")])
    yield _stack(f"{at}.out", inner, [(f"{at}.down_proj.weight", hidden, 1)])


def _moe_entries(config: ModelConfig, layer: str, experts: range | None) -> Iterator[Entry]:
    hidden, latent, inner = config.hidden_size, config.expert_width, config.moe_intermediate_size
    assert config.num_experts is not None and config.latent_moe_use_norm, "training covers the K3 form of MoE"
    shared, at, is_dealt = config.shared_width, f"{layer}.block_sparse_moe", experts is not None
    experts = range(config.num_experts) if experts is None else experts
    parts = [(f"{at}.routed_expert_down_proj.weight", latent, 1)]
    parts += [(f"{at}.shared_experts.{name}_proj.weight", shared, 1) for name in ("gate", "up")]
    yield _stack(f"{at}.in", hidden, parts)
    parts = [(f"{at}.experts.{e}.{name}.weight", inner, 1) for name in ("w1", "w3") for e in experts]
    yield replace(_stack(f"{at}.experts_in", latent, parts), is_dealt=is_dealt)
    outer = [(f"{at}.experts.{e}.w2.weight", inner) for e in experts]
    yield replace(_beside(f"{at}.experts_out", latent, outer), is_dealt=is_dealt)
    names = ("routed_expert_up_proj", "shared_experts.down_proj")
    parts = [(f"{at}.{name}.weight", cols) for name, cols in zip(names, (latent, shared), strict=True)]
    yield _beside(f"{at}.out", hidden, parts)
    yield _vector(f"{at}.routed_expert_norm.weight", latent)
    shape = (config.num_experts, hidden)
    piece = Piece(f"{at}.gate.weight", (0, shape[0]), (0, hidden), shape)
    yield Entry(f"{at}.gate.weight", *shape, (piece,), False)


def entries(config: ModelConfig, experts: range | None = None) -> list[Entry]:
    """All stored tensors, of routed experts only `experts` if given. Names of pieces are the released ones
    without the prefix.
    """
    hidden, shape = config.hidden_size, (config.vocab_size, config.hidden_size)
    assert config.hidden_act == "situ", "training covers the K3 form only"
    has_mixtures = config.attn_res_block_size is not None
    found = [
        Entry(name, *shape, (Piece(name, (0, shape[0]), (0, hidden), shape),), False, init=init)
        for name, init in (("embed_tokens.weight", "embedding"), ("lm_head.weight", "normal"))
    ]
    for i in range(config.num_hidden_layers):
        layer = f"layers.{i}"
        found += (_kda_entries if config.is_kda(i) else _mla_entries)(config, layer)
        found += _moe_entries(config, layer, experts) if config.is_moe(i) else _dense_entries(config, layer)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found.append(_vector(f"{layer}.{name}.weight", hidden))
        for name in ("self_attention_res", "mlp_res") if has_mixtures else ():
            found.append(_vector(f"{layer}.{name}_norm.weight", hidden))
            found.append(_vector(f"{layer}.{name}_proj.weight", hidden, init="zero", row=True))
    found.append(_vector("norm.weight", hidden))
    if has_mixtures:
        found.append(_vector("output_attn_res_norm.weight", hidden))
        found.append(_vector("output_attn_res_proj.weight", hidden, init="zero", row=True))
    for entry in found:
        assert not entry.is_matrix or entry.cols % GROUP == 0, f"{entry.name}: {entry.cols} columns"
    return found


def _initial(entry: Entry, generator: torch.Generator) -> Tensor:
    shape = (entry.rows, entry.cols)
    if entry.init in ("one", "zero"):
        return torch.full(shape, 1.0 if entry.init == "one" else 0.0)
    uniform = torch.rand(shape, generator=generator)
    if entry.init == "conv":
        return (uniform * 2 - 1) / math.sqrt(entry.cols)
    if entry.init == "decay":
        # Gate inputs from -9 to -1.5: with the bound of -5 a step keeps 0.999 to 0.4 of the state.
        return uniform * 7.5 - 9.0
    normal = torch.randn(shape, generator=generator)
    if entry.init == "embedding":
        # Of the size of what a layer adds: the embedding is a source of its own in every mixture.
        return normal * 0.25
    for piece in entry.pieces[-1:] if entry.is_matrix else ():
        normal[sum(piece.rows) :] = 0.0
    return normal * 0.02


@dataclass(frozen=True)
class Layout:
    """Where stored tensors lie in a flat one: those that all ranks have, then those that are dealt out."""

    entries: list[Entry]
    offsets: dict[str, int]
    size: int
    num_common: int
    """Elements before the first that is dealt out."""

    @classmethod
    def of(cls, found: list[Entry], *, is_matrix: bool) -> "Layout":
        """Of the matrices among the entries, or of all others."""
        chosen = sorted((e for e in found if e.is_matrix == is_matrix), key=lambda entry: entry.is_dealt)
        offsets: dict[str, int] = {}
        size = num_common = 0
        for entry in chosen:
            offsets[entry.name] = size
            size += -(-entry.size // ALIGNMENT) * ALIGNMENT
            num_common = num_common if entry.is_dealt else size
        return cls(chosen, offsets, size, num_common)

    def piece(self, flat: Tensor, entry: Entry, piece: Piece) -> Tensor:
        """The released tensor `piece` of `entry` in a flat tensor, as a matrix view."""
        whole = flat[self.offsets[entry.name] :][: entry.size].view(entry.rows, entry.cols)
        (row, rows), (col, cols) = piece.rows, piece.cols
        return whole[row : row + rows, col : col + cols]


class Buffer:
    """Stored tensors of one kind in one flat fp32 master, with a bf16 (or other) copy that the network
    reads.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> None:
        self.layout, self.entries, self.size = layout, layout.entries, layout.size
        self.offsets, self.piece = layout.offsets, layout.piece
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.master = torch.zeros(self.size, dtype=wide, device=device)
        self.compute = torch.zeros(self.size, dtype=dtype, device=device)
        self.grad = torch.zeros(self.size, dtype=wide if wide != dtype else dtype, device=device)
        self.leaves: dict[str, Tensor] = {}
        self._grad_views: list[Tensor] = []
        for entry, view in zip(self.entries, self.views(self.compute), strict=True):
            base = self.view_of(self.master, entry) if entry.is_wide else view
            self.leaves[entry.name] = base.detach().requires_grad_()
            self._grad_views.append(self.view_of(self.grad, entry))

    def common(self, flat: Tensor) -> Tensor:
        """The part of a flat tensor that all ranks have."""
        return flat[: self.layout.num_common]

    def view_of(self, flat: Tensor, entry: Entry) -> Tensor:
        """The part of a flat tensor that holds `entry`, [rows, cols]; a single row as a vector."""
        part = flat[self.offsets[entry.name] :][: entry.size]
        return part.view(entry.rows, entry.cols) if entry.rows > 1 else part

    def views(self, flat: Tensor) -> list[Tensor]:
        return [self.view_of(flat, entry) for entry in self.entries]

    def initialise(self, generator: torch.Generator) -> None:
        for entry, view in zip(self.entries, self.views(self.master), strict=True):
            view.copy_(_initial(entry, generator).view(view.shape))

    def gather_grads(self) -> None:
        """Move the gradients of the leaves into the flat one. A leaf without gradient counts as zero."""
        pairs = [
            (view, leaf.grad)
            for view, leaf in zip(self._grad_views, self.leaves.values(), strict=True)
            if leaf.grad is not None
        ]
        if len(pairs) < len(self.leaves):
            self.grad.zero_()
        torch._foreach_copy_([view for view, _ in pairs], [grad for _, grad in pairs])  # pyright: ignore[reportPrivateImportUsage]
        for leaf in self.leaves.values():
            leaf.grad = None


class Parameters:
    """All parameters of one model, of routed experts only `experts` if given. `leaf(name)` is what the
    network computes with.
    """

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, experts: range | None = None
    ) -> None:
        self.config = config
        found = entries(config, experts)
        self.matrices = Buffer(Layout.of(found, is_matrix=True), dtype, device)
        self.vectors = Buffer(Layout.of(found, is_matrix=False), dtype, device)
        self.leaves = {**self.matrices.leaves, **self.vectors.leaves}

    def initialise(self, seed: int) -> None:
        """Fill the masters at random and copy them, unrounded, to the compute tensors."""
        generator = torch.Generator().manual_seed(seed)
        for buffer in (self.matrices, self.vectors):
            buffer.initialise(generator)
            buffer.compute.copy_(buffer.master)

    def leaf(self, name: str) -> Tensor:
        return self.leaves[name]

    def pieces(self) -> Iterator[tuple[Buffer, Entry, Piece]]:
        for buffer in (self.matrices, self.vectors):
            for entry in buffer.entries:
                for piece in entry.pieces:
                    yield buffer, entry, piece

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(piece.shape) for _, _, piece in self.pieces())

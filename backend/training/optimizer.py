"""Per-head Muon for the matrices, AdamW for everything else, on flat buffers; for comparison also Muon on
whole matrices, or AdamW for everything.

Muon replaces a matrix's momentum by the nearest matrix with orthonormal rows or columns, found by
Newton-Schulz steps; blocks of equal shape (heads, experts, layers) are treated as one batch. The update
then has root mean square 0.2. Source: Muon (Keller Jordan), its scaling from Moonlight (arXiv 2502.16982),
per-head blocks from the K3 report.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from k3agent.backend.training.parameters import Buffer, Entry, Parameters, Piece
from k3agent.backend.training.quantize import round_groups
from k3agent.backend.training.team import Team
from k3agent.backend.training.variants import ADAMW, HEADS

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
UPDATE_RMS = 0.2


@dataclass(frozen=True)
class Settings:
    matrices: str = HEADS
    """Of `variants.CHOICES`."""
    muon_rate: float = 4e-3
    adam_rate: float = 3e-3
    momentum: float = 0.95
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8


def orthogonalise(x: Tensor) -> Tensor:
    """Newton-Schulz on a batch [n, rows, cols] with rows <= cols; singular values end near 1."""
    a, b, c = COEFFICIENTS
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


@dataclass(frozen=True)
class _Group:
    """Blocks of one shape: views [n, rows, cols] into the direction, transposed where needed so that rows
    <= cols.
    """

    views: list[Tensor]
    scale: float


def _height(piece: Piece, by_head: bool) -> int:
    return piece.rows[1] // piece.num_blocks if by_head else piece.rows[1]


def _runs(entry: Entry, by_head: bool) -> Iterator[list[Piece]]:
    """Neighbouring pieces of an entry whose blocks have one shape."""

    def block_shape(piece: Piece) -> tuple[int, int]:
        return _height(piece, by_head), piece.cols[1]

    for _, run in groupby(entry.pieces, key=block_shape):
        yield list(run)


def _blocks(buffer: Buffer, flat: Tensor, by_head: bool) -> Iterator[Tensor]:
    """All blocks of the flat tensor: one view [n, rows, cols] for each run of pieces. Without `by_head` a
    block is a whole matrix.
    """
    for entry in buffer.entries:
        whole = flat[buffer.offsets[entry.name] :][: entry.size].view(entry.rows, entry.cols)
        for run in _runs(entry, by_head):
            (row, _), (col, cols) = run[0].rows, run[0].cols
            if len(run) > 1 and run[1].rows == run[0].rows:
                blocks = whole[:, col : col + len(run) * cols].unflatten(1, (len(run), cols)).transpose(0, 1)
            else:
                height = _height(run[0], by_head)
                total = sum(piece.rows[1] for piece in run)
                blocks = whole[row : row + total, col : col + cols].unflatten(0, (total // height, height))
            yield blocks.mT if blocks.shape[1] > blocks.shape[2] else blocks


def _nesterov(momentum: Tensor, grad: Tensor, direction: Tensor, keep: float) -> None:
    wide = grad.to(momentum.dtype)
    momentum.copy_(momentum * keep + wide)
    direction.copy_(wide + momentum * keep)


def _apply(
    master: Tensor, compute: Tensor, direction: Tensor, rate: Tensor, decay: float, rounded: bool
) -> None:
    moved = master * (1.0 - rate * decay) - rate * direction.to(master.dtype)
    master.copy_(moved)
    compute.copy_(round_groups(moved) if rounded else moved)


def _adam_direction(
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    direction: Tensor,
    corrections: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    wide = grad.to(first.dtype)
    first.copy_(first * beta1 + wide * (1 - beta1))
    second.copy_(second * beta2 + wide * wide * (1 - beta2))
    direction.copy_((first * corrections[0]) / (torch.sqrt(second * corrections[1]) + eps))


def _adam(
    master: Tensor,
    compute: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    rate: Tensor,
    corrections: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    wide = grad.to(master.dtype)
    mean = first * beta1 + wide * (1 - beta1)
    square = second * beta2 + wide * wide * (1 - beta2)
    first.copy_(mean)
    second.copy_(square)
    moved = master - rate * (mean * corrections[0]) / (torch.sqrt(square * corrections[1]) + eps)
    master.copy_(moved)
    compute.copy_(moved)


class Optimizer:
    """One step for all parameters. Learning rates are device scalars: a new value compiles nothing anew."""

    def __init__(
        self,
        parameters: Parameters,
        settings: Settings | None = None,
        *,
        compiled: bool = False,
        team: Team | None = None,
    ) -> None:
        self.parameters, self.settings = parameters, settings or Settings()
        self._team = team or Team()
        matrices, vectors = parameters.matrices, parameters.vectors
        self.momentum = torch.zeros_like(matrices.master)
        is_adam = self.settings.matrices == ADAMW
        self.second_of_matrices = torch.zeros_like(matrices.master) if is_adam else None
        self.first, self.second = torch.zeros_like(vectors.master), torch.zeros_like(vectors.master)
        self.direction = torch.zeros_like(matrices.compute)
        self.num_steps = 0
        self._groups = self._make_groups()
        self._rates = torch.zeros(4, dtype=matrices.master.dtype, device=matrices.master.device)

        def unit(f: Callable) -> Callable:
            return torch.compile(f, fullgraph=True, dynamic=False) if compiled else f

        self._nesterov, self._apply, self._adam = unit(_nesterov), unit(_apply), unit(_adam)
        self._adam_direction = unit(_adam_direction)

    def _make_groups(self) -> list[_Group]:
        by_shape: dict[tuple[int, int], list[Tensor]] = {}
        by_head = self.settings.matrices == HEADS
        for view in _blocks(self.parameters.matrices, self.direction, by_head):
            by_shape.setdefault((view.shape[1], view.shape[2]), []).append(view)
        # Moonlight's scale: an orthonormal r x c block has root mean square 1/sqrt(max(r, c)).
        return [_Group(views, UPDATE_RMS * max(shape) ** 0.5) for shape, views in by_shape.items()]

    def step(self, factor: float, *, rounded: bool) -> None:
        """Apply the gradients of the leaves, summed over ranks, with the peak rates times `factor`;
        `rounded`: MXFP4 for the next step.
        """
        p, settings = self.parameters, self.settings
        p.matrices.gather_grads()
        p.vectors.gather_grads()
        # Each rank then takes the same step from the same sums. Gradients of experts that only this rank has
        # are whole already: all ranks' tokens came here.
        self._team.add_up(p.matrices.common(p.matrices.grad), p.vectors.grad)
        self.num_steps += 1
        n = self.num_steps
        corrections = [1 / (1 - settings.beta1**n), 1 / (1 - settings.beta2**n)]
        rates = torch.tensor([settings.muon_rate * factor, settings.adam_rate * factor, *corrections])
        if self._rates.is_cuda:
            rates = rates.pin_memory()
        self._rates.copy_(rates, non_blocking=True)
        with torch.no_grad():
            rate = self._direct()
            self._apply(
                p.matrices.master,
                p.matrices.compute,
                self.direction,
                rate,
                settings.weight_decay,
                rounded,
            )
            self._adam(
                p.vectors.master,
                p.vectors.compute,
                p.vectors.grad,
                self.first,
                self.second,
                self._rates[1],
                self._rates[2:],
                settings.beta1,
                settings.beta2,
                settings.eps,
            )

    def _direct(self) -> Tensor:
        """Fill `direction` with where the matrices go, from their gradients; returns the rate."""
        settings, grad = self.settings, self.parameters.matrices.grad
        if self.second_of_matrices is not None:
            moments = (self.momentum, self.second_of_matrices, self.direction)
            constants = (settings.beta1, settings.beta2, settings.eps)
            self._adam_direction(grad, *moments, self._rates[2:], *constants)
            return self._rates[1]
        self._nesterov(self.momentum, grad, self.direction, settings.momentum)
        for group in self._groups:
            batch = torch.cat(group.views)
            update = orthogonalise(batch.to(torch.bfloat16) if batch.is_cuda else batch) * group.scale
            torch._foreach_copy_(group.views, list(update.split([view.shape[0] for view in group.views])))  # pyright: ignore[reportPrivateImportUsage]
        return self._rates[0]

    def state(self) -> dict[str, Tensor | int]:
        found = {"momentum": self.momentum, "first": self.first, "second": self.second}
        if self.second_of_matrices is not None:
            found["second_of_matrices"] = self.second_of_matrices
        return {**found, "num_steps": self.num_steps}

    def load_state(self, state: dict) -> None:
        for name, own in self.state().items():
            if isinstance(own, Tensor):
                own.copy_(state[name])
        self.num_steps = int(state["num_steps"])


def rate_factor(progress: float, warmup: float, fall_from: float) -> float:
    """The share of the peak rate at `progress` in 0..1: linear up to `warmup`, flat, linear to 0 from
    `fall_from`.
    """
    if progress < warmup:
        return max(progress / warmup, 0.01)
    return 1.0 if progress < fall_from else max((1.0 - progress) / (1.0 - fall_from), 0.0)

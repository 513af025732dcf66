"""The configurations of kernels, as tables: by GPU and shape, block sizes, warps and stages.

No kernel tunes itself while serving: a user's first prompt would wait for it, and two runs could differ. New
rows come from `python -m k3agent.backend.kernels.tune OP`. A row is found by the GPU's name and by upper
limits of the shape; the first that fits counts, so larger limits stand further down.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from k3agent.backend.errors import BackendError

Values = Mapping[str, int | str]


@dataclass(frozen=True)
class Row:
    """One configuration and where it holds."""

    values: Values
    gpu: str = ""
    """Part of the name of the GPU; empty: any."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Upper limits of the shape, both ends included."""

    def fits(self, gpu: str, shape: Mapping[str, int]) -> bool:
        """Is this row for that GPU and that shape?"""
        return self.gpu in gpu and all(shape[name] <= limit for name, limit in self.most.items())


FASTER: dict[str, tuple[str, ...]] = {}
"""By part of the GPU's name: the operations for which Triton was measured to be faster than PyTorch in every
case of `kernels.bench`, which prints them. Where nothing was measured, `auto` takes PyTorch."""

_rows: dict[str, list[Row]] = {}
_candidates: dict[str, Mapping[str, Sequence[int | str]]] = {}
_overrides: dict[str, Values] = {}


def pin(op: str, *rows: Row, candidates: Mapping[str, Sequence[int | str]]) -> None:
    """Set the table of an operation; its last row must fit anything. `candidates`: what tuning may try."""
    if not rows or rows[-1].gpu or rows[-1].most:
        raise BackendError(f"the last row of {op!r} must fit every GPU and shape.")
    _rows[op], _candidates[op] = list(rows), candidates


def candidates(op: str) -> Mapping[str, Sequence[int | str]]:
    """What tuning may try for each value of an operation's configuration."""
    if op not in _candidates:
        raise BackendError(f"operation {op!r} has no table of configurations.")
    return _candidates[op]


def pick(op: str, gpu: str, **shape: int) -> Values:
    """The configuration of an operation for a GPU and a shape."""
    if op in _overrides:
        return _overrides[op]
    if op not in _rows:
        raise BackendError(f"operation {op!r} has no table of configurations.")
    return next(row.values for row in _rows[op] if row.fits(gpu, shape))


@contextmanager
def override(op: str, values: Values) -> Iterator[None]:
    """Use these values for an operation, whatever its table says: for tuning and tests."""
    _overrides[op] = values
    try:
        yield
    finally:
        del _overrides[op]


def is_faster(op: str, gpu: str) -> bool:
    """Was Triton measured to be faster there?"""
    return any(part in gpu and op in ops for part, ops in FASTER.items())

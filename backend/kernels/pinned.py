"""The configurations of kernels, as tables: by GPU and shape, block sizes, warps and stages.

No kernel tunes itself while serving: a user's first prompt would wait for it, and two runs could differ. A
row is found by the GPU's name and by the shape; the first that fits counts, so larger limits stand further
down. Rows measured by `python -m k3agent.backend.kernels.tune --write FILE` come before those beside the
kernels; they are in `tuned.json`, or in the file that K3AGENT_TUNED_KERNELS names.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from k3agent.backend.errors import BackendError

Values = Mapping[str, int | str]
TUNED_VARIABLE = "K3AGENT_TUNED_KERNELS"


@dataclass(frozen=True)
class Row:
    """One configuration and where it holds."""

    values: Values
    gpu: str = ""
    """Part of the name of the GPU; empty: any."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Upper limits of the shape, both ends included."""
    equal: Mapping[str, int] = field(default_factory=dict)
    """What of the shape must be just so."""

    def fits(self, gpu: str, shape: Mapping[str, int]) -> bool:
        """Is this row for that GPU and that shape?"""
        return (
            self.gpu in gpu
            and all(shape[name] == value for name, value in self.equal.items())
            and all(shape[name] <= limit for name, limit in self.most.items())
        )


@dataclass
class Tuned:
    """What was measured, by the name of the GPU."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    """By table, smaller limits first."""
    faster: dict[str, list[str]] = field(default_factory=dict)
    """The operations for which Triton beat PyTorch; where nothing was measured, `auto` takes PyTorch."""

    def add(self, table: str, row: Row) -> None:
        """Take a row in, in the place of one for the same shape."""
        same = (row.gpu, row.most, row.equal)
        rows = [old for old in self.rows.get(table, []) if (old.gpu, old.most, old.equal) != same]
        self.rows[table] = sorted([*rows, row], key=lambda one: sorted(one.most.items()))

    @classmethod
    def read(cls, file: Path) -> "Tuned":
        """From a file; raises BackendError for one that is none."""
        try:
            content: dict[str, Any] = json.loads(file.read_text("utf-8"))
            rows = {table: [Row(**row) for row in rows] for table, rows in content["rows"].items()}
            return cls(rows, content["faster"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BackendError(
                f"{file} is no table of tuned kernels ({error}); remove it or tune anew"
            ) from error

    def write(self, file: Path) -> None:
        """To a file, one row a line; nobody ever reads half of one."""
        tables = [
            f'  "{table}": [\n   ' + ",\n   ".join(json.dumps(_plain(row)) for row in rows) + "\n  ]"
            for table, rows in sorted(self.rows.items())
        ]
        rows = ",\n".join(tables)
        text = f'{{\n "faster": {json.dumps(self.faster)},\n "rows": {{\n{rows}\n }}\n}}\n'
        part = file.with_suffix(".part")
        part.write_text(text, "utf-8")
        part.replace(file)


def _plain(row: Row) -> dict[str, Any]:
    return {"gpu": row.gpu, "equal": dict(row.equal), "most": dict(row.most), "values": dict(row.values)}


def tuned_file() -> Path:
    """Where measured rows are, if there are any."""
    named = os.environ.get(TUNED_VARIABLE)
    return Path(named) if named else Path(__file__).with_name("tuned.json")


@cache
def tuned() -> Tuned:
    """The measured rows of this process."""
    file = tuned_file()
    return Tuned.read(file) if file.exists() else Tuned()


@cache
def tuned_digest() -> str:
    """Names the measured rows; empty without any."""
    file = tuned_file()
    return hashlib.blake2b(file.read_bytes(), digest_size=6).hexdigest() if file.exists() else ""


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
    measured = tuned().rows.get(op, [])
    return next(row.values for row in (*measured, *_rows[op]) if row.fits(gpu, shape))


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
    return any(part in gpu and op in ops for part, ops in tuned().faster.items())

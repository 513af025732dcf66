"""The table of what `kernels.bench` times: for each operation shapes, implementations, and what a call must
move and compute at least.

A module of cases has functions marked with `makes`, each of which yields cases one by one, so that the
tensors of one are gone before the next is made.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

MODULES = ("cases_attention", "cases_moe")
"""Modules of kernels/ with cases; one that is not there is passed over."""


@dataclass
class Case:
    """One shape of one operation. `calls` gives for each implementation what runs it once, always on the same
    tensors; one that cannot run here is left out."""

    op: str
    shape: str
    calls: dict[str, Callable[[], object]]
    num_bytes: int = 0
    """Read and written at least, each once."""
    num_flops: int = 0
    """Of the matrix products that the operation needs."""
    graphs: set[str] = field(default_factory=lambda: {"triton"})
    """Implementations that a CUDA graph can capture."""
    error: Callable[[str], float | None] | None = None
    """The relative error of an implementation on this case."""
    limits: dict[str, int] = field(default_factory=dict)
    """The shape as tables of configurations know it (`pinned.pick`)."""


@dataclass(frozen=True)
class Setting:
    """Where cases are made."""

    device: torch.device
    tiny: bool = False
    """Shapes for a test, not for a measurement."""
    peers: bool = True
    """Also others' implementations, where they are installed."""
    fla: bool = True
    """Among these, fla's: it tunes itself at first, which takes minutes."""


Maker = Callable[[Setting], Iterator[Case]]
_makers: dict[str, list[Maker]] = {}


def makes(op: str) -> Callable[[Maker], Maker]:
    """Mark a function as a maker of cases of an operation."""

    def note(maker: Maker) -> Maker:
        _makers.setdefault(op, []).append(maker)
        return maker

    return note


def load() -> None:
    """Import all modules of cases."""
    for name in MODULES:
        full = f"k3agent.backend.kernels.{name}"
        if importlib.util.find_spec(full) is not None:
            importlib.import_module(full)


def ops() -> list[str]:
    """Operations with cases, by name."""
    return sorted(_makers)


def cases_of(op: str, setting: Setting) -> Iterator[Case]:
    """The cases of an operation, made one by one."""
    for maker in _makers.get(op, ()):
        yield from maker(setting)

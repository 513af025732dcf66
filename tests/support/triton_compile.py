"""Compiles Triton's kernels for a GPU that is not there: who calls a kernel compiles it, and nothing runs.

Triton brings the assembler along, so this finds what the interpreter passes over: types, shapes, shared
memory, registers that do not suffice.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOPPER = 90
MOST_SHARED_BYTES = 232_448
"""What a block may have on an H200."""


@dataclass(frozen=True)
class Compiled:
    name: str
    shared_bytes: int
    registers: int
    spilled_bytes: int


class _Driver:
    """The few questions that compiling asks of a driver."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", HOPPER, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(found: list[Compiled]) -> None:
    """From now on each launch compiles its kernel for an H200 and notes what it needs; once in a process."""
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(_Driver())
    seen: set[int] = set()

    def launch(function: Any, grid: object) -> Any:
        def compile_kernel(*args: object, **options: object) -> None:
            kernel = function.run(*args, grid=grid, warmup=True, **options)
            if id(kernel) not in seen:
                seen.add(id(kernel))
                found.append(_needs(kernel))

        return compile_kernel

    JITFunction.__getitem__ = launch  # pyright: ignore[reportAttributeAccessIssue]


def _needs(kernel: Any) -> Compiled:
    from triton import knobs

    assembler = knobs.nvidia.ptxas.path
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(kernel.asm["ptx"])
        command = [assembler, "-v", "-arch=sm_90a", str(source), "-o", str(Path(folder) / "out")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", said)
    spilled = re.search(r"(\d+) bytes spill stores", said)
    return Compiled(
        kernel.metadata.name,
        kernel.metadata.shared,
        int(registers.group(1)) if registers else 0,
        int(spilled.group(1)) if spilled else 0,
    )


def report(found: list[Compiled]) -> int:
    """Print what the kernels need; 1 when one does not fit."""
    fits = True
    for one in found:
        too_much = one.shared_bytes > MOST_SHARED_BYTES
        fits = fits and not too_much
        print(
            f"{one.name}: {one.shared_bytes} bytes shared{' TOO MUCH' if too_much else ''}, {one.registers}"
            f" registers, {one.spilled_bytes} bytes spilled"
        )
    sys.stdout.flush()
    return 0 if fits and found else 1

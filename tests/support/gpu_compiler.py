"""Compiles Triton kernels for a GPU that is not there: launches are replaced by compilations, which catch
what the interpreter lets pass, and say how many registers and how much spilled memory a program takes.
"""

# pyright: reportMissingImports=none
# Triton is optional

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

HOPPER = 90
_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}


@dataclass(frozen=True)
class Compiled:
    """One kernel as the assembler sees it."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    ptx: str
    sass: str
    constants: dict[str, Any]


@contextmanager
def compiling(capability: int = HOPPER, want_sass: bool = False) -> Iterator[list[Compiled]]:
    """Within it kernels are compiled instead of run; what was compiled stands in the list."""
    from triton.runtime.jit import JITFunction

    found: list[Compiled] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.append(_compile(self, args, options, capability, want_sass))

    JITFunction.run = compile_only
    try:
        yield found
    finally:
        JITFunction.run = run


def _compile(function: Any, args: Any, options: Any, capability: int, want_sass: bool) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    named = dict(zip(function.arg_names, args, strict=False))
    named |= {name: options.pop(name) for name in list(options) if name in function.arg_names}
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    hints: dict[Any, Any] = {}
    for index, parameter in enumerate(function.params):
        value = named.get(parameter.name, parameter.default)
        is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or is_one:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = _type_of(value)
        if isinstance(value, torch.Tensor) or (
            type(value) is int and value % 16 == 0 and not parameter.do_not_specialize
        ):
            hints[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constants, hints)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, spilled = _usage(made.asm["cubin"])
    sass = _sass(made.asm["cubin"]) if want_sass else ""
    return Compiled(
        function.__name__, registers, spilled, made.metadata.shared, made.asm["ptx"], sass, constants
    )


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _cuobjdump(*arguments: str) -> str:
    from triton import knobs

    command = [knobs.nvidia.cuobjdump.path, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, which hold what did not fit."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = _cuobjdump("-res-usage", file.name)
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    assert registers is not None and stack is not None, text
    return int(registers[1]), int(stack[1])


def _sass(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return _cuobjdump("-sass", file.name)


def has_assembler() -> bool:
    """Can Triton's own assembler and disassembler be run here?"""
    from triton import knobs

    try:
        return bool(knobs.nvidia.ptxas.path and knobs.nvidia.cuobjdump.path)
    except (OSError, RuntimeError):
        return False

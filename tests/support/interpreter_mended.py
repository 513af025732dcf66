"""Triton 3.6's interpreter with its faults in bf16 and scalars mended.

It keeps bf16 as integers, on which it adds and multiplies as such, cuts instead of rounding, and flushes
small values; and NumPy 2.4 no longer takes its scalars as loop bounds.
"""

# pyright: reportMissingImports=none
# Triton is optional

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_OPERATIONS = ("create_fadd", "create_fsub", "create_fmul", "create_fdiv")


def widen(bits: Any) -> Any:
    """bf16 as integers to fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: Any) -> Any:
    """fp32 to bf16 as integers, to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def mend() -> None:
    """Patch the interpreter, once."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "is_mended", False):
        return
    builder.is_mended = True
    _mend_scalars(interpreter)
    _mend_casts(interpreter)
    _mend_dot(interpreter, builder)
    for name in _OPERATIONS:
        setattr(builder, name, _in_fp32(interpreter, getattr(builder, name)))


def _mend_scalars(interpreter: Any) -> None:
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _mend_casts(interpreter: Any) -> None:
    convert, tl = interpreter._convert_float, interpreter.tl

    def patched(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) == (tl.bfloat16, tl.float32):
            return widen(data)
        if (source, target) == (tl.float32, tl.bfloat16):
            return narrow(data)
        return convert(data, source, target, rounding)

    interpreter._convert_float = patched


def _mend_dot(interpreter: Any, builder: Any) -> None:
    dot, handle, tl = builder.create_dot, interpreter.TensorHandle, interpreter.tl

    def wide(operand: Any) -> Any:
        return handle(widen(operand.data), tl.float32) if operand.dtype.scalar == tl.bfloat16 else operand

    def patched(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, wide(a), wide(b), *rest)

    builder.create_dot = patched


def _in_fp32(interpreter: Any, operation: Callable[..., Any]) -> Callable[..., Any]:
    handle, tl = interpreter.TensorHandle, interpreter.tl

    def patched(self: Any, a: Any, b: Any) -> Any:
        if a.dtype.scalar != tl.bfloat16:
            return operation(self, a, b)
        # a CPU model loaded before may have switched denormals off
        torch.set_flush_denormal(False)
        wide = [handle(widen(operand.data), tl.float32) for operand in (a, b)]
        return handle(narrow(operation(self, *wide).data), tl.bfloat16)

    return patched

"""Runs Triton's kernels on the CPU: the environment must say so before Triton is first imported."""

import os
import sys

import pytest

from support.interpreter_mended import mend

INTERPRET = "TRITON_INTERPRET"


def interpreter_or_skip() -> None:
    """Call at the top of a test module. Skips it without Triton, and on a machine with a GPU, where tests/gpu
    runs the same checks for real."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs these on the GPU", allow_module_level=True)
    if "triton" not in sys.modules:
        os.environ[INTERPRET] = "1"
    pytest.importorskip("triton")
    if os.environ.get(INTERPRET) != "1":
        pytest.skip("Triton was imported to compile, not to interpret", allow_module_level=True)
    mend()

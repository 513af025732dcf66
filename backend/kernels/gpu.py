"""What a device is and what runs on it. Nothing here imports Triton, which is optional."""

import importlib.util
import os
from functools import cache

import torch

INTERPRET = "TRITON_INTERPRET"
"""Set before Triton is imported, this runs its kernels on the CPU, for tests."""


@cache
def has_triton() -> bool:
    """Is Triton installed?"""
    return importlib.util.find_spec("triton") is not None


def is_interpreting() -> bool:
    """Do kernels run in Triton's interpreter?"""
    return os.environ.get(INTERPRET) == "1"


def runs_triton(device: torch.device) -> bool:
    """Can Triton's kernels run on tensors of this device?"""
    return has_triton() and (device.type == "cuda" or is_interpreting())


@cache
def gpu_name(device: torch.device) -> str:
    """The name that tables of measurements go by, such as "NVIDIA H200"; "cpu" where there is no GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def failures() -> tuple[type[Exception], ...]:
    """What a kernel raises that does not compile, does not fit the device or cannot run: errors of PyTorch,
    CUDA and Triton. What else is raised is a mistake of ours, which nobody is to take for the device's.
    """
    if not has_triton():
        return (RuntimeError,)
    from triton.errors import TritonError  # pyright: ignore[reportMissingImports]  # an optional package

    return (RuntimeError, TritonError)


def failures_of_trials() -> tuple[type[Exception], ...]:
    """What a measurement outlives: also what the compiler raises for configurations that it did not think of,
    and packages that are not there. It is told in the table.
    """
    return (*failures(), AssertionError, ImportError, LookupError, TypeError, ValueError)

"""Table of operations and their implementations; the plain one, `reference`, defines each operation.

The model asks for a function once, at construction. Another implementation is registered under its own name
and must agree with the reference (tests/unit/backend/kernels/test_agreement.py runs every entry). Those in
Triton are known by name and imported when one is chosen: Triton is optional.
"""

import importlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

from k3agent.backend.errors import BackendError
from k3agent.backend.kernels import pinned, sdpa
from k3agent.backend.kernels.gpu import gpu_name, runs_triton
from k3agent.backend.kernels.reference import (
    attn_res,
    causal_conv,
    gated_act,
    kda_chunk,
    kda_gate,
    kda_layer,
    kda_short,
    kda_step,
    mla,
    mla_layer,
    moe,
    mxfp4,
    rms_norm,
    router,
    sampling,
)

Kernel = Callable[..., Any]

REFERENCE = "reference"
FUSED = "fused"
"""Kernels that come with PyTorch."""
TRITON = "triton"
AUTO = "auto"
CHOICES = (AUTO, TRITON, REFERENCE)
"""What a user may ask for. AUTO takes Triton on a GPU, for operations where it was measured to be faster."""

_IN_TRITON: dict[str, str] = {
    "kda_decode": "kda_decode:kda_decode",
    "kda_prefill": "kda_prefill:kda_prefill",
    "mla_decode": "mla_attend:mla_decode",
    "mla_prefill": "mla_prefill:mla_prefill",
    "mla_store": "mla_store:mla_store",
    "moe_experts": "moe_experts:moe_experts",
    "rms_norm": "rows:rms_norm",
    "route": "router:route",
    "sample": "sampling:sample",
    "situ_glu": "rows:situ_glu",
    "stream_read": "attn_res:read_stream",
    "swiglu": "rows:swiglu",
}
"""Operation to `module:function` below kernels.triton."""

_table: dict[str, dict[str, Kernel]] = {
    "attn_res_mix": {REFERENCE: attn_res.mix_folded},
    "causal_conv": {REFERENCE: causal_conv.causal_conv},
    "causal_conv_step": {REFERENCE: causal_conv.causal_conv_step},
    "kda_chunk": {REFERENCE: kda_chunk.kda_chunk},
    "kda_decode": {REFERENCE: kda_layer.kda_layer},
    "kda_gate": {REFERENCE: kda_gate.kda_gate},
    "kda_prefill": {REFERENCE: kda_layer.kda_layer},
    "kda_short": {REFERENCE: kda_short.kda_short},
    "kda_step": {REFERENCE: kda_step.kda_step},
    "mla_decode": {REFERENCE: mla_layer.mla_attend},
    "mla_prefill": {REFERENCE: mla_layer.mla_attend},
    "mla_store": {REFERENCE: mla_layer.mla_store},
    "mla_absorbed": {REFERENCE: mla.mla_absorbed},
    "mla_expanded": {REFERENCE: mla.mla_expanded, FUSED: sdpa.mla_expanded},
    "moe_experts": {REFERENCE: moe.moe_experts},
    "mxfp4_dequantise": {REFERENCE: mxfp4.mxfp4_dequantise},
    "rms_norm": {REFERENCE: rms_norm.rms_norm},
    "route": {REFERENCE: router.route},
    "sample": {REFERENCE: sampling.sample},
    "situ_glu": {REFERENCE: gated_act.situ_glu},
    "stream_read": {REFERENCE: attn_res.read_stream},
    "swiglu": {REFERENCE: gated_act.swiglu},
}


def register(op: str, name: str, function: Kernel) -> None:
    """Add an implementation of a known operation."""
    implementations(op)[name] = function


def implementations(op: str) -> dict[str, Kernel]:
    """All implementations of an operation by name."""
    if op not in _table:
        raise BackendError(f"no operation {op!r}. Known: {', '.join(sorted(_table))}.")
    return _table[op]


def ops() -> list[str]:
    """Names of all operations."""
    return sorted(_table)


def get(op: str, name: str = REFERENCE) -> Kernel:
    """The implementation called `name`, or the reference where the operation has none of that name."""
    found = implementations(op)
    return found.get(name, found[REFERENCE])


def in_triton() -> list[str]:
    """Names of the operations that have an implementation in Triton."""
    return sorted(_IN_TRITON)


def load_triton(op: str) -> Kernel:
    """The Triton implementation of an operation. Raises BackendError when there is none or no Triton."""
    if op not in _IN_TRITON:
        raise BackendError(f"operation {op!r} is not in Triton. Those that are: {', '.join(in_triton())}.")
    module, name = _IN_TRITON[op].split(":")
    try:
        return getattr(importlib.import_module(f"k3agent.backend.kernels.triton.{module}"), name)
    except ImportError as error:
        raise BackendError(
            f"Triton cannot be used ({error}). Install it, or use --kernels reference."
        ) from error


def identity(kernels: str, device: torch.device) -> str:
    """What the rounding of a model depends on besides the device: which operations Triton does, in which
    version and with which measured tables."""
    if kernels == REFERENCE or not runs_triton(device):
        return REFERENCE
    ops = [op for op in in_triton() if choose(op, kernels, device) is not get(op)]
    tables = f" tuned {pinned.tuned_digest()}" if pinned.tuned_digest() else ""
    return f"triton {version('triton')} {' '.join(ops)}{tables}" if ops else REFERENCE


def choose(op: str, kernels: str, device: torch.device | str, default: str = REFERENCE) -> Kernel:
    """The implementation for a device that `kernels`, one of CHOICES, asks for; `default` is the one besides
    Triton's.

    Raises BackendError when Triton is asked for by name and cannot run there.
    """
    if kernels not in CHOICES:
        raise BackendError(f"no kernels {kernels!r}. Known: {', '.join(CHOICES)}.")
    if kernels == REFERENCE or op not in _IN_TRITON:
        return get(op, default)
    device = torch.device(device)
    if kernels == TRITON:
        if not runs_triton(device):
            raise BackendError(
                f"Triton does not run on {device}: use a GPU with Triton, or --kernels reference."
            )
        return load_triton(op)
    if device.type == "cuda" and runs_triton(device) and pinned.is_faster(op, gpu_name(device)):
        return load_triton(op)
    return get(op, default)

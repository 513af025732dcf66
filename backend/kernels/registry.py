"""Table of operations and their implementations; the plain one, `reference`, defines each operation.

The model asks for a function once, at construction. Another implementation is registered under its own name
and must agree with the reference (tests/unit/backend/kernels/test_agreement.py runs every entry).
"""

from collections.abc import Callable
from typing import Any

from k3agent.backend.errors import BackendError
from k3agent.backend.kernels import sdpa
from k3agent.backend.kernels.reference import (
    attn_res,
    causal_conv,
    gated_act,
    kda_chunk,
    kda_gate,
    kda_short,
    kda_step,
    mla,
    mxfp4,
    router,
)

Kernel = Callable[..., Any]

REFERENCE = "reference"
FUSED = "fused"
"""Kernels that come with PyTorch."""

_table: dict[str, dict[str, Kernel]] = {
    "attn_res_mix": {REFERENCE: attn_res.mix_folded},
    "causal_conv": {REFERENCE: causal_conv.causal_conv},
    "causal_conv_step": {REFERENCE: causal_conv.causal_conv_step},
    "kda_chunk": {REFERENCE: kda_chunk.kda_chunk},
    "kda_gate": {REFERENCE: kda_gate.kda_gate},
    "kda_short": {REFERENCE: kda_short.kda_short},
    "kda_step": {REFERENCE: kda_step.kda_step},
    "mla_absorbed": {REFERENCE: mla.mla_absorbed},
    "mla_expanded": {REFERENCE: mla.mla_expanded, FUSED: sdpa.mla_expanded},
    "mxfp4_dequantise": {REFERENCE: mxfp4.mxfp4_dequantise},
    "route": {REFERENCE: router.route},
    "situ_glu": {REFERENCE: gated_act.situ_glu},
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

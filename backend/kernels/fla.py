"""The KDA kernels of flash-linear-attention as an entry of the benchmark table, where fla-core is installed.

They start behind the convolution and end before the gated norm, so they do less than ours.
"""

import importlib.util
from functools import cache

import torch
from torch import Tensor

from k3agent.backend.kernels.arguments import KdaInputs, KdaWeights, StepTables


@cache
def is_installed() -> bool:
    """Can they be imported? They need Triton."""
    return all(importlib.util.find_spec(name) is not None for name in ("fla", "triton"))


def _arguments(inputs: KdaInputs, weights: KdaWeights, lead: tuple[int, ...]) -> dict[str, object]:
    shape = (*lead, weights.heads, weights.head_dim)
    q, k, v = (part.reshape(shape) for part in inputs.qkv.chunk(3, dim=-1))
    return {
        "q": q,
        "k": k,
        "v": v,
        "g": inputs.z.reshape(shape),
        "beta": inputs.beta.reshape(*lead, weights.heads),
        "A_log": weights.A_log,
        "dt_bias": weights.dt_bias,
        "lower_bound": weights.lower_bound,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
    }


class FlaPrefill:
    """One call of the chunked kernel; its arguments are laid out beforehand, which costs it nothing."""

    def __init__(self, inputs: KdaInputs, weights: KdaWeights, states: Tensor, tables: StepTables) -> None:
        self._arguments = _arguments(inputs, weights, (1, inputs.z.shape[0]))
        self._states = states.clone()
        self._cu_seqlens = tables.cu_seqlens.long()
        self._options = {"safe_gate": True} if weights.has_safe_gate else {}

    def __call__(self) -> object:
        from fla.ops.kda import chunk_kda  # an optional package  # pyright: ignore[reportMissingImports]

        return chunk_kda(
            **self._arguments, **self._options, initial_state=self._states, cu_seqlens=self._cu_seqlens
        )


class FlaDecode:
    """One call of the recurrent kernel for one token of each sequence."""

    def __init__(self, inputs: KdaInputs, weights: KdaWeights, states: Tensor) -> None:
        self._arguments = _arguments(inputs, weights, (inputs.z.shape[0], 1))
        self._states = states.clone()

    def __call__(self) -> object:
        from fla.ops.kda import fused_recurrent_kda  # pyright: ignore[reportMissingImports]

        with torch.inference_mode():
            return fused_recurrent_kda(**self._arguments, initial_state=self._states)

"""Compiles the kernels of attention for Hopper and prints what they take; fails where one does not fit."""

import json
import sys

import torch

from k3agent.backend.kernels import pinned
from support import kda_checks, mla_checks
from support.gpu_compiler import compiling, has_assembler

MOST_SHARED_BYTES = 232_448
"""What a block may have on an H200."""
BF16 = torch.bfloat16
MODELS = {"k3": (96, -5.0), "kimi-linear": (32, None)}


def run_kda(name: str) -> None:
    from k3agent.backend.kernels.triton.kda_decode import kda_decode
    from k3agent.backend.kernels.triton.kda_prefill import kda_prefill

    heads, bound = MODELS[name]
    for kernel, lengths, dtype in (
        (kda_decode, [1, 1], BF16), (kda_prefill, [70, 30], BF16), (kda_prefill, [70, 30], torch.float32)
    ):  # fmt: skip
        problem = kda_checks.make_problem(
            lengths, dtype=dtype, dim=128, heads=heads, bound=bound, exports={63: 2}
        )
        kernel(problem.inputs, problem.weights, problem.cache, problem.tables)


def run_mla(name: str) -> None:
    from k3agent.backend.kernels.triton.mla_attend import mla_decode
    from k3agent.backend.kernels.triton.mla_prefill import mla_prefill
    from k3agent.backend.kernels.triton.mla_store import mla_store

    heads = MODELS[name][0]
    sizes = {"heads": heads, "nope": 128, "shared": 64, "rank": 512, "value": 128, "dtype": BF16}
    for length in (1, 64, 200):
        problem = mla_checks.make_problem([length], [70], **sizes)
        rest = (problem.q, problem.key_up, problem.value_up, problem.scale, problem.latents, problem.tables)
        mla_store(problem.latent, problem.norm, 1e-6, problem.latents, problem.tables)
        if length < 200:
            mla_decode(*rest)
        else:
            mla_prefill(*rest, pieces=[(length, 70)])


def run_stream(name: str) -> None:
    from k3agent.backend.kernels.triton.attn_res import read_stream

    width, blocks = {"k3": (7168, 8), "kimi-linear": (2304, 0)}[name]
    for rows in (1, 200):
        sources, wide = torch.empty((blocks + 1, rows, width), dtype=BF16), torch.empty((blocks + 1, rows))
        query = torch.empty(width) if blocks else None
        weight = sources[0, 0]
        read_stream(sources, wide, blocks, sources[0], False, query, 1e-5, weight, 1e-5)


def as_on_h200() -> None:
    """Tables answer as they do on the GPU that is compiled for."""
    pick = pinned.pick
    pinned.pick = lambda op, gpu, **shape: pick(op, "NVIDIA H200", **shape)


RUNS = {"kda": run_kda, "mla": run_mla, "stream": run_stream}


def main() -> int:
    """Arguments: names of RUNS (none: all), and `table={json}` in place of what a table says."""
    if not has_assembler():
        print("ptxas cannot be run", file=sys.stderr)
        return 1
    overrides = [argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument]
    names = [argument for argument in sys.argv[1:] if "=" not in argument] or list(RUNS)
    as_on_h200()
    fits = True
    for table, changed in overrides:
        pinned._overrides[table] = {**pinned_row(table), **json.loads(changed)}
    for name in names:
        for model in MODELS:
            with compiling() as found:
                RUNS[name](model)
            for one in found:
                fits = fits and one.shared_bytes <= MOST_SHARED_BYTES
                print(name, model, one.name, one.registers, one.spilled_bytes, one.shared_bytes, flush=True)
    return 0 if fits else 1


def pinned_row(table: str) -> pinned.Values:
    import k3agent.backend.kernels.triton.kda_prefill
    import k3agent.backend.kernels.triton.mla_prefill  # noqa: F401

    return pinned._rows[table][0].values


if __name__ == "__main__":
    sys.exit(main())

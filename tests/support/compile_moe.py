"""Compiles the kernels for routed experts for Hopper and prints what they take; fails where one spills."""

import sys

import torch

from k3agent.backend.kernels.experts import Activation, ExpertStacks
from k3agent.backend.kernels.triton.moe_experts import moe_experts
from k3agent.backend.kernels.triton.router import route
from support.gpu_compiler import compiling, has_assembler

SPILL = 64
"""Bytes of stack that are no fault: a few live values of a program that runs once."""


def stacks(count: int, width: int, inner: int, is_packed: bool) -> ExpertStacks:
    """Without content: nothing runs."""
    if is_packed:
        shapes = (2 * inner, width // 2), (width, inner // 2), (2 * inner, width // 32), (width, inner // 32)
        return ExpertStacks(*(torch.empty(count, *shape, dtype=torch.uint8) for shape in shapes))
    return ExpertStacks(
        torch.empty(count, 2 * inner, width, dtype=torch.bfloat16),
        torch.empty(count, width, inner, dtype=torch.bfloat16),
    )


def main() -> int:
    if not has_assembler():
        print("ptxas cannot be run", file=sys.stderr)
        return 1
    rows = torch.zeros(1, dtype=torch.int32)
    worst = 0
    for count, width, inner, top, act, is_packed in (
        (16, 3584, 3072, 16, Activation(4.0, 25.0), True),
        (8, 2304, 1024, 8, Activation(), False),
    ):
        some = stacks(count, width, inner, is_packed)
        for num_tokens in (1, 8, 16, 64, 256):
            with compiling() as found:
                logits = torch.zeros(num_tokens, 896)
                route(logits, logits[0], top, activation="sigmoid", renormalize=True, scaling=1.0)
                z = torch.empty(num_tokens, width, dtype=torch.bfloat16)
                chosen = torch.zeros(num_tokens, top, dtype=torch.int32)
                moe_experts(z, chosen, torch.zeros(num_tokens, top), some, act, rows)
            for one in found:
                print(num_tokens, is_packed, one.name, one.registers, one.spilled_bytes, one.shared_bytes)
                worst = max(worst, one.spilled_bytes)
    return int(worst > SPILL)


if __name__ == "__main__":
    sys.exit(main())

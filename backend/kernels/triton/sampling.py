"""The next token of each row of logits, drawn on the device: one launch, one number a row to the host.

Randomness comes from a counter: seed and token alone say what is drawn, whatever else is in the batch.
Truncation needs no sorting: thresholds are found by halving, and the draw is the largest of the logits with
Gumbel noise.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from k3agent.backend.kernels import pinned
from k3agent.backend.kernels.gpu import gpu_name
from k3agent.backend.kernels.pinned import Row

OP = "sample"
pinned.pin(
    OP,
    Row({"BLOCK": 8192, "WARPS": 16}),
    candidates={"BLOCK": (2048, 4096, 8192, 16384), "WARPS": (8, 16, 32)},
)
_LOWEST = tl.constexpr(-80.0)
"""Less likely than e^-80 times the likeliest is never drawn."""
_HALVINGS = tl.constexpr(26)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor
) -> Tensor:
    """logits: [N, V], read as fp32. Of each row [N]: temperature (0: the likeliest, the first of equal ones),
    top_k (0: all), top_p, min_p, and an int64 seed of this token alone. Returns ids int32 [N]; -1 where the
    logits hold NaN.
    """
    num_rows, vocab_size = logits.shape
    logits = logits.float()
    values = pinned.pick(OP, gpu_name(logits.device), rows=num_rows, vocab=vocab_size)
    chosen = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    block = min(int(values["BLOCK"]), triton.next_power_of_2(vocab_size))
    _sample[(num_rows,)](
        logits, temperature, top_k, top_p, min_p, seed, chosen, logits.stride(0), vocab_size,
        BLOCK=block, num_warps=int(values["WARPS"]),
    )  # fmt: skip
    return chosen


@triton.jit
def _above(row, limit, largest, inverse, floor, vocab_size, BLOCK: tl.constexpr):
    """How many scaled logits lie above `limit` and `floor`, and the sum of their exponentials."""
    count = tl.zeros([BLOCK], dtype=tl.int32)
    mass = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK):
        at = tl.arange(0, BLOCK) + start
        value = (tl.load(row + at, mask=at < vocab_size, other=float("-inf")) - largest) * inverse
        is_above = (value > limit) & (value > floor)
        count += is_above.to(tl.int32)
        mass += tl.where(is_above, tl.exp(value), 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _sample(
    logits, temperatures, top_ks, top_ps, min_ps, seeds, chosen, stride, vocab_size, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * stride
    temperature = tl.load(temperatures + index)
    largest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    num_nan = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, vocab_size, BLOCK):
        at = tl.arange(0, BLOCK) + start
        value = tl.load(row + at, mask=at < vocab_size, other=float("-inf"))
        num_nan += (value != value).to(tl.int32)
        largest = tl.maximum(largest, value)
    most = tl.max(largest, axis=0)
    is_greedy = temperature <= 0
    inverse = 1.0 / tl.where(is_greedy, 1.0, temperature)
    floor = _LOWEST
    top_k = tl.load(top_ks + index)
    if (top_k > 0) & (temperature > 0):
        low, high = _LOWEST, 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) * 0.5
            count, _mass = _above(row, middle, most, inverse, _LOWEST, vocab_size, BLOCK)
            low, high = tl.where(count >= top_k, middle, low), tl.where(count >= top_k, high, middle)
        floor = low
    top_p = tl.load(top_ps + index)
    if (top_p < 1) & (temperature > 0):
        _count, whole = _above(row, _LOWEST, most, inverse, floor, vocab_size, BLOCK)
        low, high = _LOWEST, 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) * 0.5
            _count, mass = _above(row, middle, most, inverse, floor, vocab_size, BLOCK)
            is_low = mass >= top_p * whole
            low, high = tl.where(is_low, middle, low), tl.where(is_low, high, middle)
        floor = tl.maximum(floor, low)
    least = tl.log(tl.maximum(tl.load(min_ps + index), 1e-30)) - 1e-6
    seed = tl.load(seeds + index)
    best = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    place = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, vocab_size, BLOCK):
        at = tl.arange(0, BLOCK) + start
        value = (tl.load(row + at, mask=at < vocab_size, other=float("-inf")) - most) * inverse
        noise = -tl.log(-tl.log(tl.maximum(tl.rand(seed, at), 1e-30)))
        # the likeliest is always kept, whatever rounding says of the thresholds
        is_kept = ((value > floor) & (value >= least)) | (value >= 0)
        scored = tl.where(is_kept, tl.where(is_greedy, value, value + noise), float("-inf"))
        is_better = scored > best
        best, place = tl.where(is_better, scored, best), tl.where(is_better, at, place)
    winner = tl.max(best, axis=0)
    first = tl.min(tl.where(best == winner, place, vocab_size), axis=0)
    tl.store(chosen + index, tl.where(tl.sum(num_nan, axis=0) > 0, -1, first))

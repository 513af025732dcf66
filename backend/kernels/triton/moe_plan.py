"""Which block of a grouped product works on which expert and for which choices, decided on the device.

A *choice* is one of the k experts of one token, numbered token * k + j. Choices are sorted by expert and cut
into blocks of `block_rows`; the last block of an expert is filled up with -1. Sizes are upper limits that
depend on shapes alone, so the host waits for nothing and a graph can hold it. No atomics: equal input, equal
order.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW_CHOICES = 128
"""Up to here one program compares every choice with every other."""
_SCAN = 1024


@dataclass(frozen=True)
class Plan:
    """The blocks of one layer and step."""

    expert: Tensor
    """[N], place of the expert of each block in the stacks; -1 for blocks that are not needed."""
    choices: Tensor
    """[N * block_rows]"""
    block_rows: int

    @property
    def num_blocks(self) -> int:
        """At most; known to the host."""
        return self.expert.shape[0]


def max_blocks(num_choices: int, num_experts: int, block_rows: int) -> int:
    """Blocks that any distribution of choices over experts can need."""
    wanted = min(num_choices, num_experts)
    return min(num_choices, (num_choices - wanted) // block_rows + wanted)


def plan_blocks(
    chosen: Tensor, first: int, num_experts: int, block_rows: int, num_rows: Tensor | None = None
) -> Plan:
    """chosen: int32 [T, k]; experts outside of first .. first + num_experts belong to other ranks. Rows from
    `num_rows` [1] on get no block."""
    num_choices, top = chosen.numel(), chosen.shape[1]
    count = max_blocks(num_choices, num_experts, block_rows)
    expert = torch.empty(count, dtype=torch.int32, device=chosen.device)
    choices = torch.empty(count * block_rows, dtype=torch.int32, device=chosen.device)
    has_rows = num_rows is not None
    rows = num_rows if num_rows is not None else chosen
    if num_choices <= FEW_CHOICES:
        size = max(triton.next_power_of_2(num_choices), 16)
        _plan_few[(1,)](
            chosen, rows, expert, choices, first, num_experts, num_choices, count,
            TOP=top, HAS_ROWS=has_rows, SIZE=size, BLOCK_ROWS=block_rows,
            num_warps=max(4, min(16, size // 8)),
        )  # fmt: skip
        return Plan(expert, choices, block_rows)
    counts = torch.empty(num_experts, dtype=torch.int32, device=chosen.device)
    _count[(num_experts,)](
        chosen, rows, counts, first, num_choices, TOP=top, HAS_ROWS=has_rows, SCAN=_SCAN, num_warps=4
    )
    _plan_many[(num_experts,)](
        chosen, rows, counts, expert, choices, first, num_experts, num_choices, count,
        TOP=top, HAS_ROWS=has_rows, SCAN=_SCAN, BLOCK_ROWS=block_rows,
        EXPERTS=triton.next_power_of_2(num_experts), num_warps=4,
    )  # fmt: skip
    return Plan(expert, choices, block_rows)


@triton.jit
def _wanted(chosen, rows, offsets, num_choices, first, TOP: tl.constexpr, HAS_ROWS: tl.constexpr):
    """Places of the experts of choices; a number that no expert has for those that are not there."""
    is_there = offsets < num_choices
    if HAS_ROWS:
        is_there = is_there & (offsets < tl.load(rows) * TOP)
    return tl.where(is_there, tl.load(chosen + offsets, mask=is_there, other=0) - first, -1)


@triton.jit
def _plan_few(
    chosen, rows, expert, choices, first, num_experts, num_choices, count,
    TOP: tl.constexpr, HAS_ROWS: tl.constexpr, SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, SIZE)
    places = _wanted(chosen, rows, at, num_choices, first, TOP, HAS_ROWS)
    is_mine = (places >= 0) & (places < num_experts)
    places = tl.where(is_mine, places, num_experts)
    row, column = places[:, None], places[None, :]
    is_equal = row == column
    is_earlier = at[None, :] < at[:, None]
    rank = tl.sum((is_equal & is_earlier).to(tl.int32), axis=1)
    # blocks of each expert, counted at the first choice of it
    is_first = tl.sum((is_equal & (at[:, None] < at[None, :])).to(tl.int32), axis=0) == 0
    num_blocks = (tl.sum(is_equal.to(tl.int32), axis=0) + BLOCK_ROWS - 1) // BLOCK_ROWS
    num_blocks = tl.where(is_first, num_blocks, 0)
    before = tl.sum(tl.where(column < row, num_blocks[None, :], 0), axis=1)
    block = before + rank // BLOCK_ROWS
    for start in range(0, count * BLOCK_ROWS, SIZE):
        tl.store(choices + start + at, -1, mask=start + at < count * BLOCK_ROWS)
    for start in range(0, count, SIZE):
        tl.store(expert + start + at, -1, mask=start + at < count)
    # what is written next must come after what was cleared by other threads of this program
    tl.debug_barrier()
    tl.store(expert + block, places, mask=is_mine & (rank % BLOCK_ROWS == 0))
    tl.store(choices + block * BLOCK_ROWS + rank % BLOCK_ROWS, at, mask=is_mine)


@triton.jit
def _count(
    chosen, rows, counts, first, num_choices,
    TOP: tl.constexpr, HAS_ROWS: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """How often one expert is chosen."""
    place = tl.program_id(0)
    found = tl.zeros([SCAN], dtype=tl.int32)
    for start in range(0, num_choices, SCAN):
        places = _wanted(chosen, rows, start + tl.arange(0, SCAN), num_choices, first, TOP, HAS_ROWS)
        found += (places == place).to(tl.int32)
    tl.store(counts + place, tl.sum(found))


@triton.jit
def _plan_many(
    chosen, rows, counts, expert, choices, first, num_experts, num_choices, count,
    TOP: tl.constexpr, HAS_ROWS: tl.constexpr, SCAN: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
):  # fmt: skip
    """The blocks of one expert; the last program also marks what is left over."""
    place = tl.program_id(0)
    at = tl.arange(0, EXPERTS)
    blocks = (tl.load(counts + at, mask=at < num_experts, other=0) + BLOCK_ROWS - 1) // BLOCK_ROWS
    before = tl.sum(tl.where(at < place, blocks, 0))
    mine = tl.sum(tl.where(at == place, blocks, 0))
    for block in range(before, before + mine):
        tl.store(expert + block, place)
    total = tl.load(counts + place)
    begin = before * BLOCK_ROWS
    scan = tl.arange(0, SCAN)
    done = 0
    for start in range(0, num_choices, SCAN):
        places = _wanted(chosen, rows, start + scan, num_choices, first, TOP, HAS_ROWS)
        is_mine = places == place
        rank = done + tl.cumsum(is_mine.to(tl.int32), axis=0) - 1
        tl.store(choices + begin + rank, start + scan, mask=is_mine)
        done += tl.sum(is_mine.to(tl.int32))
    pad = tl.arange(0, BLOCK_ROWS)
    tl.store(choices + begin + total + pad, -1, mask=total + pad < mine * BLOCK_ROWS)
    if place == num_experts - 1:
        for start in range(before + mine, count, SCAN):
            tl.store(expert + start + scan, -1, mask=start + scan < count)

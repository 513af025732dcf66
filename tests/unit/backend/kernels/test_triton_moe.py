"""The kernels for routed experts in Triton's interpreter; tests/gpu runs the same checks for real."""

import pytest
from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

from support.moe_checks import (  # noqa: E402  # after the skip
    SITU,
    SWIGLU,
    check_experts,
    check_plan,
    check_route,
    check_rows,
    make_stacks,
)


@pytest.mark.parametrize(
    ("num_tokens", "num_rows"), [(1, None), (5, None), (5, 3), (40, None), (40, 0), (300, 211)]
)
@pytest.mark.parametrize("block_rows", [16, 32])
def test_blocks_hold_every_choice_once(num_tokens: int, num_rows: int | None, block_rows: int) -> None:
    check_plan(num_tokens, 12, 4, block_rows, "cpu", num_rows)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(("num_tokens", "act"), [(1, SITU), (3, SWIGLU), (40, SITU)])
def test_experts_agree_with_the_reference(num_tokens: int, act: object, is_packed: bool) -> None:
    check_experts(num_tokens, make_stacks(8, 64, 128, is_packed, "cpu"), act, 3, "cpu")


@pytest.mark.parametrize("is_packed", [True, False])
def test_experts_in_splits_and_tiles(is_packed: bool) -> None:
    tile = {"BLOCK_N": 16, "BLOCK_K": 64, "WARPS": 4, "STAGES": 2, "SPLITS": 2}
    values = {"moe_experts": {"BLOCK_M": 16}, "moe_gate_up": tile, "moe_down": tile}
    check_experts(9, make_stacks(6, 128, 64, is_packed, "cpu"), SITU, 2, "cpu", values=values)


def test_padding_and_experts_of_other_ranks_are_left_out() -> None:
    stacks = make_stacks(4, 64, 64, True, "cpu")
    part = type(stacks)(stacks.w13, stacks.w2, stacks.w13_scale, stacks.w2_scale, first=3)
    check_experts(6, part, SITU, 2, "cpu", num_experts=9, num_rows=4)
    check_experts(6, part, SITU, 2, "cpu", num_experts=9, num_rows=0)


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_route_agrees_with_the_reference(activation: str) -> None:
    check_route(5, 24, 3, activation, "cpu")
    check_route(1, 40, 16, activation, "cpu")


@pytest.mark.parametrize("width", [24, 1100])
def test_rows_agree_with_the_reference(width: int) -> None:
    check_rows(3, width, "cpu")

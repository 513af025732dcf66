"""The kernels for routed experts on a GPU, at tiny and at real shapes."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from support.moe_checks import (  # noqa: E402  # after the skips
    SITU,
    SWIGLU,
    check_experts,
    check_plan,
    check_route,
    check_rows,
    make_stacks,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("num_tokens", [1, 8, 9, 40, 700, 4096])
@pytest.mark.parametrize("block_rows", [16, 64])
def test_blocks_hold_every_choice_once(num_tokens: int, block_rows: int) -> None:
    check_plan(num_tokens, 896, 16, block_rows, "cuda", None)
    check_plan(num_tokens, 896, 16, block_rows, "cuda", num_tokens // 2)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 3, 16, 40, 300])
@pytest.mark.parametrize("act", [SITU, SWIGLU])
def test_experts_agree_with_the_reference(num_tokens: int, act: object, is_packed: bool) -> None:
    check_experts(num_tokens, make_stacks(24, 256, 384, is_packed, "cuda"), act, 6, "cuda")


@pytest.mark.parametrize("num_tokens", [1, 8, 64, 512, 3000])
def test_experts_of_real_shapes(num_tokens: int) -> None:
    check_experts(num_tokens, make_stacks(6, 3584, 3072, True, "cuda"), SITU, 4, "cuda")
    check_experts(num_tokens, make_stacks(16, 2304, 1024, False, "cuda"), SWIGLU, 8, "cuda")


@pytest.mark.parametrize("is_packed", [True, False])
def test_experts_in_splits_and_tiles(is_packed: bool) -> None:
    for block_n in (16, 64, 128):
        tile = {"BLOCK_N": block_n, "BLOCK_K": 128, "WARPS": 4, "STAGES": 3, "SPLITS": 2}
        values = {"moe_experts": {"BLOCK_M": 16}, "moe_gate_up": tile, "moe_down": tile}
        check_experts(20, make_stacks(6, 512, 256, is_packed, "cuda"), SITU, 3, "cuda", values=values)


def test_padding_and_experts_of_other_ranks_are_left_out() -> None:
    stacks = make_stacks(4, 256, 128, True, "cuda")
    part = type(stacks)(stacks.w13, stacks.w2, stacks.w13_scale, stacks.w2_scale, first=3)
    for num_rows in (0, 4, 6):
        check_experts(6, part, SITU, 2, "cuda", num_experts=9, num_rows=num_rows)


@pytest.mark.parametrize(("num_experts", "top"), [(896, 16), (256, 8), (24, 3)])
@pytest.mark.parametrize("num_tokens", [1, 70, 2048])
def test_route_agrees_with_the_reference(num_tokens: int, num_experts: int, top: int) -> None:
    check_route(num_tokens, num_experts, top, "sigmoid", "cuda")
    check_route(num_tokens, num_experts, top, "softmax", "cuda")


@pytest.mark.parametrize("width", [24, 1024, 7168, 9216])
def test_rows_agree_with_the_reference(width: int) -> None:
    check_rows(3, width, "cuda")

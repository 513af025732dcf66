"""The KDA kernels in Triton's interpreter, at tiny shapes; tests/gpu/test_kda_triton.py runs real ones."""

import pytest
from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

import torch  # noqa: E402
from support.kda_checks import (  # noqa: E402
    check_agreement,
    check_independence,
    check_pieces,
    make_problem,
)

from k3agent.backend.kernels import pinned  # noqa: E402
from k3agent.backend.kernels.triton.kda_decode import kda_decode  # noqa: E402
from k3agent.backend.kernels.triton.kda_prefill import kda_prefill  # noqa: E402


@pytest.mark.parametrize("block_v", [8, 16])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_decode_agrees(bound: float | None, block_v: int) -> None:
    problem = make_problem([1, 1, 0, 1], bound=bound, fresh=[1], padding=2)
    with pinned.override("kda_decode", {"block_v": block_v, "num_warps": 4, "norm_warps": 1}):
        check_agreement(kda_decode, problem, 1e-5)


@pytest.mark.parametrize("block_v", [8, 16])
def test_few_tokens_leave_states_behind(block_v: int) -> None:
    problem = make_problem([5, 1, 2], fresh=[1], exports={0: 4, 2: 5, 3: 6, 6: 7}, dim=12)
    with pinned.override("kda_decode", {"block_v": block_v, "num_warps": 4, "norm_warps": 1}):
        check_agreement(kda_decode, problem, 1e-5)


def test_decode_agrees_in_bf16() -> None:
    check_agreement(kda_decode, make_problem([1, 3, 1], dtype=torch.bfloat16), 1e-2)


@pytest.mark.parametrize(("bound", "lengths"), [(-5.0, [70, 1, 0, 130]), (None, [17, 64]), (-9.0, [40])])
def test_prefill_agrees(bound: float | None, lengths: list[int]) -> None:
    check_agreement(kda_prefill, make_problem(lengths, bound=bound, fresh=[0], padding=3), 2e-5)


def test_prefill_agrees_with_heads_that_fill_no_block() -> None:
    check_agreement(kda_prefill, make_problem([30, 66], dim=24, fresh=[1]), 2e-5)


@pytest.mark.parametrize("bound", [-5.0, None])
def test_prefill_agrees_some_columns_at_a_time(bound: float | None) -> None:
    values = {**pinned.pick("kda_prefill", "cpu", heads=1), "chunk_form": "16/0"}
    with pinned.override("kda_prefill", values):
        check_agreement(kda_prefill, make_problem([70], heads=1, dim=40, bound=bound), 2e-5)


@pytest.mark.parametrize("bound", [-9.0, None])
def test_prefill_agrees_where_some_channels_forget_at_once(bound: float | None) -> None:
    problem = make_problem([100], heads=1, dim=32, bound=bound)
    # half of a chunk then decays far below what fp32 holds
    problem.weights.dt_bias[::3] += 8.0
    check_agreement(kda_prefill, problem, 2e-5)


def test_prefill_agrees_in_bf16() -> None:
    check_agreement(kda_prefill, make_problem([70], dtype=torch.bfloat16), 2e-2)


@pytest.mark.parametrize("block_v", [16, 32])
def test_prefill_leaves_states_behind_at_chunk_ends(block_v: int) -> None:
    # row 20 is in a long sequence and ends no chunk; row 133 is in a short one
    exports = {20: 4, 63: 5, 127: 6, 133: 7}
    problem = make_problem([130, 4], fresh=[0], exports=exports, dim=32, heads=1)
    values = {**pinned.pick("kda_prefill", "cpu", heads=1), "block_v": block_v}
    with pinned.override("kda_prefill", values):
        check_agreement(kda_prefill, problem, 2e-5)


def test_prefill_agrees_with_states_turned() -> None:
    exports = {63: 4, 127: 5}
    problem = make_problem([130], exports=exports, dim=64, heads=1, dtype=torch.bfloat16)
    values = {**pinned.pick("kda_prefill", "cpu", heads=1), "block_v": 64, "walk_form": "turned/3"}
    # fp32 inputs would take narrower blocks, which are not turned
    with pinned.override("kda_prefill", values):
        check_agreement(kda_prefill, problem, 2e-2)


def test_prefill_in_pieces_gives_the_same_bits() -> None:
    check_pieces(kda_prefill, make_problem([150], heads=1), cuts=[64, 128])


def test_prefill_alone_and_with_others_gives_the_same_bits() -> None:
    check_independence(kda_prefill, make_problem([40, 1, 75], heads=1, fresh=[0]))

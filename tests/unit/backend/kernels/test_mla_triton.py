"""The MLA kernels in Triton's interpreter, at tiny shapes; tests/gpu/test_mla_triton.py runs real ones."""

import pytest
from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

import torch  # noqa: E402
from support.mla_checks import check_attention, check_store, make_problem  # noqa: E402

from k3agent.backend.kernels import pinned  # noqa: E402
from k3agent.backend.kernels.triton.mla_attend import mla_decode  # noqa: E402
from k3agent.backend.kernels.triton.mla_prefill import mla_prefill  # noqa: E402
from k3agent.backend.kernels.triton.mla_store import mla_store  # noqa: E402


def values(table: str, **changed: int) -> pinned.Values:
    return {**pinned.pick(table, "cpu", rows=1 << 20, sequences=1, heads=1), **changed}


def test_rows_are_stored_where_they_belong() -> None:
    check_store(mla_store, make_problem([1, 70, 0, 3], [63, 0, 5, 128], padding=2), 1e-6)
    check_store(mla_store, make_problem([2], [10], rank=24, shared=5, dtype=torch.bfloat16), 1e-2)


@pytest.mark.parametrize("splits", [1, 3, 8])
def test_decode_agrees(splits: int) -> None:
    problem = make_problem([1, 1, 0, 1], [0, 130, 64, 63], padding=1)
    with pinned.override("mla_decode", values("mla_decode", splits=splits, block_m=16, block_n=32)):
        check_attention(mla_decode, problem, 1e-5)


def test_decode_agrees_with_widths_that_fill_no_block() -> None:
    problem = make_problem([2, 5], [70, 3], heads=5, rank=40, shared=6, nope=9, value=12)
    with pinned.override("mla_decode", values("mla_decode", splits=2, block_m=16, block_n=16)):
        check_attention(mla_decode, problem, 1e-5)


def test_decode_agrees_in_bf16() -> None:
    problem = make_problem([1, 4], [100, 20], dtype=torch.bfloat16)
    with pinned.override("mla_decode", values("mla_decode", splits=2, block_m=16, block_n=64)):
        check_attention(mla_decode, problem, 1.5e-2)


@pytest.mark.parametrize(("heads", "length"), [(6, 1), (32, 1), (33, 2), (32, 17)])
def test_decode_agrees_with_the_blocks_of_a_gpu(heads: int, length: int) -> None:
    problem = make_problem([length], [200], heads=heads, dtype=torch.bfloat16)
    chosen = pinned.pick("mla_decode", "NVIDIA H200", rows=length * heads, sequences=1)
    with pinned.override("mla_decode", chosen):
        check_attention(mla_decode, problem, 1.5e-2)


@pytest.mark.parametrize("segment", [64, 192])
def test_prefill_agrees(segment: int) -> None:
    problem = make_problem([40, 1, 0, 70], [0, 200, 3, 100], padding=2)
    chosen = values("mla_prefill", segment=segment, block_m=32, block_n=32, least_tokens=0)
    with pinned.override("mla_prefill", chosen):
        check_attention(mla_prefill, problem, 1e-5, pieces=[(40, 0), (1, 200), (0, 3), (70, 100)])


def test_prefill_agrees_in_bf16_and_odd_widths() -> None:
    problem = make_problem([33], [90], dtype=torch.bfloat16, rank=40, shared=6, nope=9, value=12)
    with pinned.override("mla_prefill", values("mla_prefill", block_m=16, block_n=64, least_tokens=0)):
        check_attention(mla_prefill, problem, 1.5e-2, pieces=[(33, 90)])

"""The read of the residual stream in Triton's interpreter; tests/gpu has it at real widths."""

from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

import torch  # noqa: E402
from support.stream_checks import check_plain_read, check_reads  # noqa: E402

from k3agent.backend.kernels.triton.attn_res import read_stream  # noqa: E402


def test_reads_agree() -> None:
    check_reads(read_stream, rows=3, width=24, blocks=3)
    check_reads(read_stream, rows=1, width=32, blocks=1)


def test_reads_agree_in_bf16() -> None:
    check_reads(read_stream, rows=2, width=40, blocks=2, dtype=torch.bfloat16, tolerance=1e-2)


def test_without_blocks() -> None:
    check_plain_read(read_stream)

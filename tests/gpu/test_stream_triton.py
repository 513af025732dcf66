"""The read of the residual stream on a GPU, at the widths of K3 (8 blocks) and Kimi-Linear (none)."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from support.stream_checks import check_plain_read, check_reads  # noqa: E402

from k3agent.backend.kernels import registry  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize(("width", "blocks"), [(7168, 8), (2304, 0)])
@pytest.mark.parametrize("rows", [1, 700])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-2)])
def test_reads_agree(width: int, blocks: int, rows: int, dtype: str, tolerance: float) -> None:
    options = {"dtype": getattr(torch, dtype), "tolerance": tolerance, "device": "cuda"}
    check_reads(registry.load_triton("stream_read"), rows=rows, width=width, blocks=blocks, **options)


def test_without_blocks() -> None:
    check_plain_read(registry.load_triton("stream_read"), "cuda")

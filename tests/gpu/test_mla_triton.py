"""The MLA kernels on a GPU, at the widths of K3 and Kimi-Linear (576 numbers a row)."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from support.mla_checks import check_attention, check_repeat, check_store, make_problem  # noqa: E402

from k3agent.backend.kernels import pinned, registry  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
REAL = {"device": "cuda", "nope": 128, "shared": 64, "rank": 512, "value": 128}
DTYPES = [("float32", 1e-4), ("bfloat16", 1.5e-2)]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rows_are_stored_where_they_belong(dtype: str, tolerance: float) -> None:
    problem = make_problem(
        [1, 300, 0, 3], [63, 0, 5, 1000], heads=2, padding=2, dtype=getattr(torch, dtype), **REAL
    )
    check_store(registry.load_triton("mla_store"), problem, tolerance)


@pytest.mark.parametrize("heads", [6, 32, 96])
def test_decode_agrees(heads: int) -> None:
    problem = make_problem(
        [1, 1, 0, 1], [0, 5000, 64, 20001], heads=heads, padding=1, dtype=torch.bfloat16, **REAL
    )
    check_attention(registry.load_triton("mla_decode"), problem, 1.5e-2)


@pytest.mark.parametrize("length", [3, 17, 64])
def test_few_tokens_agree(length: int) -> None:
    problem = make_problem([length], [3000], heads=32, dtype=torch.bfloat16, **REAL)
    check_attention(registry.load_triton("mla_decode"), problem, 1.5e-2)


@pytest.mark.parametrize("segment", [512, 32768])
def test_prefill_agrees(segment: int) -> None:
    lengths, contexts = [700, 512, 1], [0, 2000, 3]
    problem = make_problem(lengths, contexts, heads=16, dtype=torch.bfloat16, **REAL)
    prefill = registry.load_triton("mla_prefill")
    values = pinned.pick("mla_prefill", torch.cuda.get_device_name(), heads=16)
    with pinned.override("mla_prefill", {**values, "segment": segment}):
        check_attention(prefill, problem, 1.5e-2, pieces=list(zip(lengths, contexts, strict=True)))


def test_the_same_bits_each_time() -> None:
    problem = make_problem([1, 1], [9000, 70], heads=32, dtype=torch.bfloat16, **REAL)
    check_repeat(registry.load_triton("mla_decode"), problem, 20)

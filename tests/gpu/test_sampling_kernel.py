"""Drawing tokens on a GPU, at the size of a real vocabulary."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from support.sampling_checks import (  # noqa: E402  # after the skips
    check_frequencies,
    check_greedy,
    check_independence,
    check_truncation,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_draws() -> None:
    check_greedy(163840, "cuda")
    check_truncation(163840, 200, "cuda")
    check_truncation(1000, 500, "cuda")
    check_frequencies(20000, "cuda")
    check_independence(163840, "cuda")

"""The KDA kernels on a GPU, at the shapes of K3 (96 heads, bounded gate) and Kimi-Linear (32, no bound)."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from support.kda_checks import check_agreement, check_independence, check_pieces, make_problem  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
MODELS = [(96, -5.0), (32, None)]
REAL = {"device": "cuda", "dim": 128}


def kernel(name: str):
    from k3agent.backend.kernels import registry

    return registry.load_triton(name)


@pytest.mark.parametrize(("heads", "bound"), MODELS)
@pytest.mark.parametrize("block_v", [32, 128])
def test_decode_agrees(heads: int, bound: float | None, block_v: int) -> None:
    from k3agent.backend.kernels import pinned

    problem = make_problem(
        [1, 1, 0, 4], heads=heads, bound=bound, fresh=[1], exports={3: 7}, padding=2, **REAL
    )
    with pinned.override("kda_decode", {"block_v": block_v, "num_warps": 8, "norm_warps": 1}):
        check_agreement(kernel("kda_decode"), problem, 1e-5)


@pytest.mark.parametrize(("heads", "bound"), MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 1.5e-2)])
def test_prefill_agrees(heads: int, bound: float | None, dtype: str, tolerance: float) -> None:
    problem = make_problem(
        [300, 1, 0, 1024], heads=heads, bound=bound, fresh=[0], padding=5, dtype=getattr(torch, dtype), **REAL
    )
    check_agreement(kernel("kda_prefill"), problem, tolerance)


@pytest.mark.parametrize("form", ["64/0", "32/0", "64/128"])
def test_prefill_agrees_in_all_forms(form: str) -> None:
    from k3agent.backend.kernels import pinned

    # the table comes with the module
    kda_prefill = kernel("kda_prefill")
    values = {**pinned.pick("kda_prefill", torch.cuda.get_device_name(), heads=32), "chunk_form": form}
    problem = make_problem([200], heads=32, bound=None, dtype=torch.bfloat16, **REAL)
    with pinned.override("kda_prefill", values):
        check_agreement(kda_prefill, problem, 1.5e-2)


@pytest.mark.parametrize("form", ["turned/3", "turned/2", "upright/2"])
def test_prefill_agrees_in_all_forms_of_the_walk(form: str) -> None:
    from k3agent.backend.kernels import pinned

    kda_prefill = kernel("kda_prefill")
    values = {**pinned.pick("kda_prefill", torch.cuda.get_device_name(), heads=96), "walk_form": form}
    values |= {"block_v": 128, "walk_warps": 8}
    problem = make_problem([300, 64], heads=96, exports={127: 5}, dtype=torch.bfloat16, **REAL)
    with pinned.override("kda_prefill", values):
        check_agreement(kda_prefill, problem, 1.5e-2)


def test_prefill_leaves_states_behind_at_chunk_ends() -> None:
    exports = {63: 3, 511: 4, 1023: 5}
    problem = make_problem([1100], heads=32, exports=exports, dtype=torch.bfloat16, **REAL)
    check_agreement(kernel("kda_prefill"), problem, 1.5e-2)


def test_prefill_leaves_states_behind_far_apart() -> None:
    # further than what the walk looks through at once
    problem = make_problem([64 * 300 + 5], heads=2, exports={64 * 280 - 1: 3}, dtype=torch.bfloat16, **REAL)
    check_agreement(kernel("kda_prefill"), problem, 1.5e-2)


@pytest.mark.parametrize(("heads", "bound"), MODELS)
@pytest.mark.parametrize("cuts", [[512], [512, 1024], [64, 1536], [1024, 2048]])
def test_prefill_in_pieces_gives_the_same_bits(heads: int, bound: float | None, cuts: list[int]) -> None:
    problem = make_problem([2100], heads=heads, bound=bound, dtype=torch.bfloat16, **REAL)
    check_pieces(kernel("kda_prefill"), problem, cuts)


def test_alone_and_with_others_gives_the_same_bits() -> None:
    problem = make_problem([512, 1, 75, 1, 1300], heads=32, fresh=[0], dtype=torch.bfloat16, **REAL)
    check_independence(kernel("kda_prefill"), problem)
    decode = make_problem([1] * 5, heads=32, dtype=torch.bfloat16, **REAL)
    check_independence(kernel("kda_decode"), decode)

"""Several ranks equal one: slices reassemble the file, and sums come before what is not linear."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.model_harness import KIMI_LINEAR, Harness
from support.threads import ThreadComm, on_ranks
from support.tiny_k3 import TEXT_CONFIG, write_tiny_k3

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.weights import load_model
from k3agent.backend.parallel.shard import Shard, check_layout
from k3agent.backend.shapes import checkpoint_tensors

WIDE = {"moe_intermediate_size": 64, "linear_attn_config": {"num_heads": 4}}
CASES = {
    "k3": {},
    "kimi-linear": KIMI_LINEAR | {"linear_attn_config": KIMI_LINEAR["linear_attn_config"] | {"num_heads": 4}},
    "all-packed": {"pack": "all", "intermediate_size": 128, "num_attention_heads": 8, "v_head_dim": 16},
}


def tokens(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("world", "expert_parallel"), [(2, 1), (2, 2), (4, 2), (4, 4)])
def test_ranks_equal_one(tmp_path: Path, case: str, packed: bool, world: int, expert_parallel: int) -> None:
    write_tiny_k3(tmp_path, **(WIDE | CASES[case]))
    ids, pieces = tokens(90), [70, 1, 19]
    whole = load_model(tmp_path, torch.float64, packed_experts=packed)
    expected = Harness(whole).run(ids, pieces)

    def work(comm: ThreadComm) -> tuple[torch.Tensor, int, int]:
        shard = Shard(comm, expert_parallel=expert_parallel)
        model = load_model(tmp_path, torch.float64, packed_experts=packed, shard=shard)
        size = sum(t.numel() for t in model.destinations().values())
        return Harness(model).run(ids, pieces), size, comm.num_calls

    results = on_ranks(world, work)
    for found, size, num_calls in results:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        assert size < sum(t.numel() for t in whole.destinations().values())
        assert num_calls > 0
    assert len({num_calls for _, _, num_calls in results}) == 1


@pytest.mark.parametrize("expert_parallel", [1, 2])
def test_slices_reassemble(tmp_path: Path, expert_parallel: int) -> None:
    write_tiny_k3(tmp_path, **WIDE)
    whole = load_model(tmp_path).destinations()

    def work(comm: ThreadComm) -> dict[str, torch.Tensor]:
        return load_model(tmp_path, shard=Shard(comm, expert_parallel=expert_parallel)).destinations()

    parts = on_ranks(2, work)
    split = Shard(ThreadComm(0, 2, None, []), expert_parallel=expert_parallel)  # type: ignore[arg-type]
    num_split = 0
    for name, expected in whole.items():
        cut = split.split(name)
        dim = None if cut is None else cut.dim
        if ".experts.w" in name:
            dim = 0 if expert_parallel > 1 else (dim or 0) + 1
        if dim is None:
            assert all(torch.equal(part[name], expected) for part in parts), name
        else:
            num_split += 1
            assert torch.equal(torch.cat([part[name] for part in parts], dim), expected), name
    assert num_split > len(whole) // 3


def test_the_plan_divides_what_the_loader_divides(tmp_path: Path) -> None:
    """`k3agent plan` counts each tensor as shared exactly where the loader shares it."""
    config = write_tiny_k3(tmp_path, vision=9)
    shard = Shard(ThreadComm(0, 2, None, []))  # type: ignore[arg-type]
    names = {"rows": 0, "columns": 1, "none": None}
    for spec in checkpoint_tensors(config, is_packed=True, is_nested=True):
        # 128 numbers for 96 heads are not worth a place in the plan
        if spec.split != "expert" and not spec.name.endswith("A_log"):
            name = spec.name.removeprefix("language_model.")
            cut = shard.split(name)
            assert (None if cut is None else cut.dim) == names[spec.split], name


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"num_attention_heads": 3}, "num_attention_heads 3"),
        ({"linear_attn_config": {"num_heads": 3}}, "linear_attn_config.num_heads 3"),
        ({"vocab_size": 255}, "vocab_size 255"),
        ({"intermediate_size": 97}, "intermediate_size 97"),
        ({"moe_intermediate_size": 33}, "moe_intermediate_size 33"),
    ],
)
def test_what_does_not_divide_is_named(tmp_path: Path, overrides: dict, field: str) -> None:
    config = write_tiny_k3(tmp_path, **overrides)
    shard = Shard(ThreadComm(0, 2, None, []))  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=field), torch.device("meta"):
        K3ForCausalLM(config, shard=shard)


@pytest.mark.parametrize(
    ("world", "expert_parallel", "overrides", "text"),
    [
        (4, 3, {}, r"expert_parallel 3 does not divide tensor_parallel 4; use 1, 2 or 4"),
        (3, 1, {}, r"tensor_parallel 3 does not divide num_attention_heads 4 of this model; use 1 or 2"),
        (
            4,
            4,
            {"num_experts": 6},
            r"expert_parallel 4 does not divide num_experts 6 of this model; use 1 or 2",
        ),
        (2, 2, {"num_experts": None}, r"this model has no experts"),
        (2, 1, {"moe_intermediate_size": 33}, r"moe_intermediate_size 33 \(shared 66\); use fewer ranks"),
    ],
)
def test_a_layout_that_does_not_divide_names_what_does(
    world: int, expert_parallel: int, overrides: dict, text: str
) -> None:
    config = ModelConfig.from_dict({**TEXT_CONFIG, "vocab_size": 256, **overrides})
    linear = replace(config.linear_attn_config, num_heads=world * 4 if world != 3 else 2)
    with pytest.raises(BackendError, match=text):
        check_layout(replace(config, linear_attn_config=linear), world, expert_parallel)


def test_groups_are_not_cut(tmp_path: Path) -> None:
    """Half of 32 columns is no group of MXFP4: the ranks must deal out whole experts."""
    write_tiny_k3(tmp_path)
    shard = Shard(ThreadComm(0, 2, None, []))  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="no whole groups"):
        load_model(tmp_path, packed_experts=False, shard=shard)
    with pytest.raises(BackendError, match="no whole groups"):
        load_model(tmp_path, shard=shard)


def test_the_released_model_divides_by_8() -> None:
    from k3agent.backend.released import K3

    config = ModelConfig.from_dict(K3)
    with torch.device("meta"):
        model = K3ForCausalLM(
            config, torch.bfloat16, packed_experts=True, shard=Shard(ThreadComm(7, 8, None, []))
        )  # type: ignore[arg-type]
    state = model.destinations()
    assert state["model.layers.1.block_sparse_moe.experts.w2.weight_packed"].shape == (896, 3584, 192)
    assert state["model.layers.0.self_attn.A_log"].shape == (12,)
    assert state["lm_head.weight"].shape == (20480, 7168)

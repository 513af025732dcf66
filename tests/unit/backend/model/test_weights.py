"""The loader: names, shapes, packing, and the odd forms of A_log."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_k3 import write_tiny_k3

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.model import mxfp4
from k3agent.backend.model.weights import expected_tensors, load_model
from k3agent.backend.released import K3

FILE = "model.safetensors"
LAYER = "language_model.model.layers.1."


def edit(folder: Path, change) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)


def test_every_stored_number_arrives(tmp_path: Path) -> None:
    write_tiny_k3(tmp_path, pack="none")
    stored = load_file(tmp_path / FILE)
    model = load_model(tmp_path, torch.float64)
    state = model.destinations()
    for name, value in stored.items():
        short = name.removeprefix("language_model.")
        if ".experts." in short:
            head, tail = short.split(".experts.")
            expert, rest = tail.split(".", 1)
            found = state[f"{head}.experts.{rest}"][int(expert)]
        else:
            found = state[short]
        if short.endswith("A_log"):
            value = value[: found.shape[0]]
        assert torch.equal(found, value.double()), name


def test_names_and_count_of_the_released_model() -> None:
    """The model's own names give the count and size of the release, two tensors for each packed matrix."""
    count, size = 0, 0
    float32 = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")
    for name, shape in expected_tensors(ModelConfig.from_dict(K3)):
        numel = torch.Size(shape).numel()
        if ".experts." in name:
            count, size = count + 2, size + numel // 2 + numel // 32
        elif name.endswith("A_log"):
            count, size = count + 1, size + 128 * 4
        else:
            count, size = count + 1, size + numel * (4 if name.endswith(float32) else 2)
    assert (count, size) == (497_220, 1_560_860_324_864)


@pytest.mark.parametrize("pack", ["experts", "all"])
def test_packed_matrices_are_recognised_by_name(tmp_path: Path, pack: str) -> None:
    write_tiny_k3(tmp_path, pack=pack)
    stored = load_file(tmp_path / FILE)
    state = load_model(tmp_path, packed_experts=False).destinations()
    assert any(name.endswith("_packed") for name in stored)
    expert = LAYER + "block_sparse_moe.experts.3.w1.weight"
    value = mxfp4.dequantize(stored[f"{expert}_packed"], stored[f"{expert}_scale"])
    assert torch.equal(state["model.layers.1.block_sparse_moe.experts.w1.weight"][3], value)
    q_proj = LAYER + "self_attn.q_proj.weight"
    assert (f"{q_proj}_packed" in stored) == (pack == "all")
    if pack == "all":
        value = mxfp4.dequantize(stored[f"{q_proj}_packed"], stored[f"{q_proj}_scale"])
        assert torch.equal(state["model.layers.1.self_attn.q_proj.weight"], value)


def test_stacked_experts_and_shards(tmp_path: Path) -> None:
    """Experts of a layer may lie in one tensor, and tensors in several files."""
    write_tiny_k3(tmp_path / "a")
    expected = load_model(tmp_path / "a").destinations()

    def stack(tensors: dict[str, torch.Tensor]) -> None:
        for kind in ("weight_packed", "weight_scale"):
            for w in ("w1", "w2", "w3"):
                names = [f"{LAYER}block_sparse_moe.experts.{e}.{w}.{kind}" for e in range(8)]
                stacked = torch.stack([tensors.pop(name) for name in names])
                tensors[f"{LAYER}block_sparse_moe.experts.{w}.{kind}"] = stacked

    edit(tmp_path / "a", stack)
    tensors = load_file(tmp_path / "a" / FILE)
    names = sorted(tensors)
    (tmp_path / "a" / FILE).unlink()
    save_file({n: tensors[n] for n in names[::2]}, tmp_path / "a" / "model-00001-of-000002.safetensors")
    save_file({n: tensors[n] for n in names[1::2]}, tmp_path / "a" / "model-00002-of-000002.safetensors")
    found = load_model(tmp_path / "a").destinations()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_float32_tensors_stay_float32(tmp_path: Path) -> None:
    write_tiny_k3(tmp_path)
    model = load_model(tmp_path, torch.bfloat16)
    state = model.destinations()
    kinds = {name.split(".")[-2 if name.endswith("weight") else -1]: t.dtype for name, t in state.items()}
    for name in ("q_conv1d", "A_log", "dt_bias", "o_norm", "e_score_correction_bias"):
        assert kinds[name] == torch.float32, name
    assert kinds["q_proj"] == kinds["embed_tokens"] == kinds["input_layernorm"] == torch.bfloat16


def test_fused_weights_are_held_once(tmp_path: Path) -> None:
    write_tiny_k3(tmp_path)
    attention = load_model(tmp_path).model.layers[0].self_attn
    storages = {p.untyped_storage().data_ptr() for p in (attention.q_proj.weight, attention.b_proj.weight)}  # pyright: ignore[reportAttributeAccessIssue]
    assert len(storages) == 1


def test_a_tensor_with_and_without_prefix_is_one_too_many(tmp_path: Path) -> None:
    write_tiny_k3(tmp_path)
    name = "model.layers.1.input_layernorm.weight"
    edit(tmp_path, lambda tensors: tensors.update({name: torch.zeros(64)}))
    with pytest.raises(BackendError, match=f"{LAYER}input_layernorm.weight .*are the same"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        # the name as the file has it, so that it can be looked for there
        ("self_attn.q_proj.weight", None, f"{FILE}: {LAYER}self_attn.q_proj.weight is missing. .*Fetch"),
        ("self_attn.q_proj.weight", torch.zeros(3, 64), r"q_proj.weight has shape \[3, 64\]"),
        ("self_attn.extra.weight", torch.zeros(1), "no place in the model, first .*self_attn.extra.weight"),
        ("self_attn.A_log", torch.ones(32), "A_log holds 32 values for 2 heads"),
        ("self_attn.A_log", torch.zeros(1), "A_log holds 1 values for 2 heads"),
        ("self_attn.A_log", torch.zeros(32, dtype=torch.uint8), "A_log has dtype U8"),
        ("block_sparse_moe.experts.0.w1.weight_scale", None, "w1.weight_scale is missing beside"),
        ("block_sparse_moe.experts.0.w1.weight_scale", torch.zeros(32, 3), "is not MXFP4"),
    ],
)
def test_the_first_fault_is_named(
    tmp_path: Path, name: str, change: torch.Tensor | None, message: str
) -> None:
    write_tiny_k3(tmp_path)

    def apply(tensors: dict[str, torch.Tensor]) -> None:
        tensors.pop(LAYER + name, None)
        if change is not None:
            tensors[LAYER + name] = change

    edit(tmp_path, apply)
    with pytest.raises(BackendError, match=message) as caught:
        load_model(tmp_path, packed_experts=False)
    assert str(tmp_path) in str(caught.value)


def test_vision_tensors_are_skipped_on_demand_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tiny_k3(tmp_path)
    edit(tmp_path, lambda t: t.update({"vision_tower.a": torch.zeros(1), "mm_projector.b": torch.zeros(1)}))
    with pytest.raises(BackendError, match=r"first mm_projector\.b.*no vision_config"):
        load_model(tmp_path)
    with caplog.at_level("INFO"):
        load_model(tmp_path, vision=False)
    assert caplog.messages == ["skipped 2 tensors of the image encoder: text only"]

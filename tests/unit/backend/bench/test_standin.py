"""Stand-ins: tiny ones are measured for real on the CPU; what the table says of floors and decays."""

import json
import math
from pathlib import Path

import pytest
import torch

from k3agent.backend.bench import standin, standins
from k3agent.backend.bench.floors import Floors
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels.bench import Ceiling
from k3agent.backend.model.kda import KDA

CPU = torch.device("cpu")
SMALL = ["--device", "cpu", "--kernels", "reference", "--chunk", "128", "--max-model-len", "512"]


@pytest.mark.parametrize("name", ["tiny-linear", "tiny-k3", "tiny-k3-rank"])
def test_a_tiny_one_is_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    files = ["--json", str(tmp_path / "figures.json"), "--markdown", str(tmp_path / "table.md")]
    flags = [*SMALL, "--cache-bytes", "8M", "--graphs", "padded", "--no-peers", *files]
    assert standin.main([name, *flags]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "figures.json").read_text())["figures"]}
    assert rows["bitwise equal resumes"]["value"] == rows["bitwise equal resumes"]["target"] == 3
    assert rows["warm TTFT, 256 + 64"]["repeats"] == 2
    assert all(row["value"] > 0 for name, row in rows.items() if not name.startswith("checkpoint"))
    assert "| decode B=3 |" in (tmp_path / "table.md").read_text()


def test_what_cannot_be_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert standin.main(["tiny-k3", "--parts", "first,last", *SMALL]) == 2
    assert "last" in capsys.readouterr().err
    assert standin.main(["tiny-k3", "--parts", "first", *SMALL, "--cache-bytes", "10K"]) == 2
    assert "--cache-bytes" in capsys.readouterr().err
    # There was no time for a single resume.
    assert standin.main(["tiny-k3", "--parts", "decode,exact", *SMALL, "--no-peers", "--total", "0"]) == 1
    assert "decode B=3" in capsys.readouterr().out
    with pytest.raises(BackendError, match="no stand-in 'k4'"):
        standins.find("k4")


@pytest.mark.parametrize("name", ["tiny-linear", "tiny-k3"])
def test_decays_are_spread_over_their_range(name: str) -> None:
    torch.manual_seed(0)
    model = standins.build(standins.find(name), CPU, torch.float32, "reference")
    layer = next(module for module in model.modules() if isinstance(module, KDA))
    bound = layer.lower_bound
    bias = layer.dt_bias
    decay = torch.nn.functional.softplus(bias) if bound is None else -bound * torch.sigmoid(bias)
    assert decay.min() < 3e-3 and 0.3 < decay.max() < 1.001
    assert decay.log().std() > 1
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_real_shapes_have_the_published_sizes() -> None:
    linear, rank = (standins.find(name).config for name in ("kimi-linear", "k3-rank"))
    assert (linear.num_hidden_layers, linear.hidden_size, linear.num_experts) == (27, 2304, 256)
    assert (rank.num_hidden_layers, rank.num_experts, rank.vision_config) == (93, 896, None)
    group = standins.find("k3-group").config
    assert [group.is_kda(i) for i in range(4)] == [True, True, True, False]
    assert all(group.is_moe(i) for i in range(4))


def test_rows_of_projections_are_even() -> None:
    rank = standins.find("tiny-k3-rank")
    model = standins.build(rank, CPU, torch.bfloat16, "reference")
    for layer in (module for module in model.modules() if isinstance(module, KDA)):
        assert layer.in_proj.shape[0] == sum(layer.in_widths)
        assert layer.in_proj.shape[0] % 16 == 0 and layer.in_widths[-1] > 0
        assert not layer.in_proj[-layer.in_widths[-1] :].any()


def test_floors_count_bytes_and_operations() -> None:
    model = standins.build(standins.find("tiny-linear"), CPU, torch.bfloat16, "reference")
    slow_memory = Floors.of(model, Ceiling(1.0, math.inf), {})
    assert slow_memory.active_experts(1) == pytest.approx(2)
    assert slow_memory.active_experts(1000) == pytest.approx(8)
    step = slow_memory.decode_s(1, 0)
    assert step > slow_memory.dense_bytes + 3 * 2 * slow_memory.expert_bytes
    # one more token in the cache is one latent row of the MLA layer
    assert slow_memory.decode_s(1, 1) - step == 48 * 2
    assert slow_memory.prefill_s(200, 0, 100) > slow_memory.prefill_s(200, 0, 200)
    slow_arithmetic = Floors.of(model, Ceiling(math.inf, 1.0), {})
    longer, shorter = (slow_arithmetic.prefill_s(100, before, 100) for before in (1, 0))
    assert longer - shorter == pytest.approx(2 * 100 * 2 * (16 + 16 + 16))

"""`k3agent plan`: the published sizes to the byte, what fits, refusals, and the three outputs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from k3agent.backend.config import ModelConfig
from k3agent.backend.memory import GPUS, Layout, Model, Workload, best_placement, layouts, place
from k3agent.backend.plan import load, main, plan, recommend
from k3agent.backend.released import K3
from k3agent.backend.shapes import checkpoint_tensors, num_active_parameters, num_tensors

MILLION = 1 << 20


@pytest.fixture(scope="module")
def k3() -> Model:
    return load("k3")


@pytest.fixture(scope="module")
def kimi_linear() -> Model:
    return load("kimi-linear")


def test_k3_weights(k3: Model) -> None:
    assert num_tensors(k3.tensors) == 497_220
    assert k3.weight_bytes == 1_560_860_324_864
    assert k3.expert_bytes == 1_446_456_066_048
    packed = sum(t.num_bytes for t in k3.tensors if t.name.endswith("_packed"))
    assert packed == 1_361_370_415_104 and k3.expert_bytes - packed == 85_085_650_944
    assert sum(t.num_parameters for t in k3.tensors) == 2_779_931_837_184
    assert num_active_parameters(k3.config, k3.tensors) == 104_189_532_416
    census = {d: sum(t.count for t in k3.tensors if t.dtype == d) for d in ("U8", "BF16", "F32")}
    assert census == {"U8": 494_592, "BF16": 2_122, "F32": 506}


def test_k3_caches(k3: Model) -> None:
    assert (k3.num_kda, k3.num_mla) == (69, 24)
    assert k3.latent_bytes(1, "bf16") == 27_648 and k3.latent_bytes(1, "fp8") == 13_824
    assert k3.latent_bytes(MILLION, "fp8") == 14_495_514_624
    assert k3.state_bytes("fp32") == 434_110_464 and k3.state_bytes("fp32", 8) == 54_263_808
    assert k3.state_bytes("bf16") == 217_055_232 and k3.state_bytes("bf16", 8) == 27_131_904
    assert k3.tail_bytes() == 15_261_696 and k3.tail_bytes(8) == 1_907_712
    assert k3.attn_res_bytes(1) == 114_688 and k3.attn_res_bytes(8192) == 939_524_096


def test_k3_weights_of_one_rank(k3: Model) -> None:
    tp8 = Layout(8, 8)
    assert round(k3.rank_weight_bytes(tp8) / 1e9, 2) == 205.95
    assert round(k3.rank_weight_bytes(tp8, keeps_vision=False) / 1e9, 2) == 205.06
    assert k3.rank_weight_bytes(Layout(1, 1)) == k3.weight_bytes


def test_kimi_linear(kimi_linear: Model) -> None:
    assert num_tensors(kimi_linear.tensors) == 20_493
    assert sum(t.num_parameters for t in kimi_linear.tensors) == 49_122_681_728
    assert round(kimi_linear.weight_bytes / 1e9, 1) == 98.2
    assert kimi_linear.latent_bytes(1, "fp8") == 4_032
    assert kimi_linear.state_bytes("fp32") == 41_943_040 and kimi_linear.tail_bytes() == 1_474_560
    assert kimi_linear.attn_res_bytes(8192) == 0


@pytest.mark.parametrize("fixture", ["tiny-k3", "tiny-k3-float64", "tiny-kimi-linear"])
def test_the_table_equals_real_files(fixture: str) -> None:
    safetensors = pytest.importorskip("safetensors")
    folder = Path(__file__).resolve().parents[3].parent / "shared" / "fixtures" / fixture
    if not folder.exists():
        pytest.skip("the fixtures folder is not beside the repository")
    config = ModelConfig.from_dir(folder)
    is_nested = config.attn_res_block_size is not None
    expected = {}
    for spec in checkpoint_tensors(config, is_packed=is_nested, is_nested=is_nested):
        for e in range(spec.count):
            expected[spec.name.replace("{e}", str(e))] = list(spec.shape)
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    assert found == expected


def test_layouts_divide_the_model(k3: Model) -> None:
    names = [layout.name for layout in layouts(k3.config, 16, link=8)]
    assert names == ["DP16 x EP16", "TP2 x DP8 x EP16", "TP4 x DP4 x EP16", "TP8 x DP2 x EP16"]
    assert [layout.name for layout in layouts(k3.config, 1, link=8)] == ["1 GPU"]
    assert layouts(k3.config, 5, link=8) == []
    # a rank never holds less than its share, and together they hold everything
    for layout in layouts(k3.config, 16, link=8):
        assert k3.rank_weight_bytes(layout) * 16 >= k3.weight_bytes


def test_what_fits(k3: Model) -> None:
    workload = Workload(context=MILLION, cache_dtype="fp8")
    assert best_placement(k3, GPUS["H200"], 5, workload) is None
    small = best_placement(k3, GPUS["H200"], 8, workload)
    assert small is not None and not small.fits and "weights of" in " ".join(small.reasons)
    assert recommend(k3, small) is None
    good = place(k3, GPUS["B300"], 8, Layout(8, 8), workload)
    assert good.fits and good.latent_bytes == 14_495_514_624
    used = good.weight_bytes + good.activation_bytes
    one = good.latent_bytes + good.state_bytes
    assert used + good.num_sequences * one <= good.usable_bytes < used + (good.num_sequences + 1) * one
    longer = Workload(context=good.max_context, cache_dtype="fp8")
    assert place(k3, GPUS["B300"], 8, Layout(8, 8), longer).num_sequences == 1
    engine, launch = recommend(k3, good) or ("", None)
    assert engine == "vllm" and launch is not None and len(launch.lines) == 1
    assert "--tensor-parallel-size 8" in launch.lines[0] and "--kv-cache-dtype fp8" in launch.lines[0]


def test_hopper_has_no_fp8_latents(kimi_linear: Model) -> None:
    workload = Workload(context=MILLION, cache_dtype="fp8")
    placement = place(kimi_linear, GPUS["H200"], 4, Layout(4, 4), workload)
    assert placement.fits and recommend(kimi_linear, placement) is None
    assert "FP8" in placement.reasons[0]


def test_one_gpu_runs_the_bundled_engine(kimi_linear: Model) -> None:
    placement = place(kimi_linear, GPUS["H200"], 1, Layout(1, 1), Workload(context=1 << 17))
    engine, launch = recommend(kimi_linear, placement) or ("", None)
    assert engine == "bundled" and launch is not None
    (line,) = launch.lines
    assert line.startswith("k3agent serve --model DIR --device cuda")


def test_without_counts_the_smallest_that_fits_comes_first(k3: Model) -> None:
    found = plan(k3, [(GPUS["B300"], None)], Workload(context=MILLION))
    assert [p.count for p in found] == [8, 16] and all(p.fits for p in found)
    nothing = plan(k3, [(GPUS["RTX-4090"], None)], Workload(context=MILLION))
    assert len(nothing) == 1 and not nothing[0].fits


@pytest.mark.parametrize("name", ["kimi-k3", "Kimi-K3", "moonshotai/Kimi-K3", "K3"])
def test_other_names_of_k3(name: str, k3: Model) -> None:
    assert load(name).config == k3.config


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--gpus", "8xb300", "--gpus", "8xX=300", "--context", "1m", "--json"]
    assert main(["k3", *flags, "--cache-dtype", "fp8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["num_tensors"] == 497_220
    assert found["model"]["weight_bytes"] == sum(found["model"]["weight_bytes_by_part"].values())
    assert found["model"]["latent_bytes_at_context"]["fp8"] == 14_495_514_624
    assert [p["gpu"] for p in found["placements"]] == ["B300", "X"]
    assert found["workload"]["context"] == MILLION


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cache-dtype", "fp8"]) == 0
    text = capsys.readouterr().out
    for expected in ("497,220", "1,560,860,324,864", "14.496 GB", "0.940 GB", "8 x B300", "vllm serve"):
        assert expected in text


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "memory.png"
    assert main(["--gpus", "B300", "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG") and str(file) in capsys.readouterr().out
    assert main(["--gpus", "B300", "--plot", str(tmp_path / "no" / "m.png")]) == 2


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(K3))
    assert main([str(tmp_path), "--json", "--gpus", "B300"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["weight_bytes"] == 1_560_860_324_864


@pytest.mark.parametrize("pack", ["none", "experts", "all"])
def test_a_folder_with_weights_is_counted_as_it_is(tmp_path: Path, pack: str) -> None:
    pytest.importorskip("torch")
    from support.tiny_k3 import write_tiny_k3

    write_tiny_k3(tmp_path, pack=pack, vision=9)
    content = (tmp_path / "model.safetensors").read_bytes()
    header = int.from_bytes(content[:8], "little")
    model = load(str(tmp_path))
    assert model.weight_bytes == len(content) - 8 - header
    assert num_tensors(model.tensors) == len(json.loads(content[8 : 8 + header])) - 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nothing"], "no model 'nothing'"),
        (["--gpus", "H9000"], "no GPU type 'H9000'"),
        (["--gpus", "5xB300", "--gpus", "8xB300"], "cannot be cut for 5 x B300"),
        (["--gpus", "0xB300"], "as in 8xH200"),
        (["{folder}"], "config.json"),
    ],
)
def test_refusals(flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag.format(folder=tmp_path) for flag in flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--context", "many"], ["--memory-share", "1.5"]])
def test_bad_numbers(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(flags)
    assert flags[1] in capsys.readouterr().err


def test_several_nodes_have_a_command_each(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["k3", "--gpus", "32xH200"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = [f"# 32 x H200, node {rank}:" for rank in range(4)]
    assert [line for line in lines if line.startswith("# 32 x")] == headings
    commands = [lines[lines.index(heading) + 1] for heading in headings]
    assert all("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve moonshotai/Kimi-K3" in line for line in commands)
    assert [line.endswith(" --headless") for line in commands] == [False, True, True, True]
    assert any("HOST-0 stands for the address of node 0" in line for line in lines)
    assert main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["placements"]
    assert row["commands"] == commands and row["engine"] == "vllm"


def test_gpus_without_a_fast_link_are_still_in_one_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kimi-linear", "--gpus", "4xRTX-PRO-6000", "--context", "32k", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["placements"]
    assert len(row["commands"]) == 1 and "--headless" not in row["commands"][0]


def test_a_small_model_runs_on_this_machine_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nano", "--gpus", "H100"]) == 0
    shown = capsys.readouterr().out
    assert "k3agent serve --model nano --device cpu" in shown
    row = next(line for line in shown.splitlines() if line.startswith("1 x H100  "))
    assert row.split()[-2] == "16,384", "more than the model's window"
    assert main(["k3", "--gpus", "H100"]) == 0
    assert "--device cpu" not in capsys.readouterr().out


def test_the_command_needs_no_torch() -> None:
    code = (
        "import sys; from k3agent.cli import main; status = main(['plan', '--gpus', 'B300', '--json']);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["name"] == "k3"

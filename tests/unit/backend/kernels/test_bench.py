"""The commands that time and tune kernels, and the tables of configurations they are about."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from k3agent.backend.errors import BackendError
from k3agent.backend.kernels import bench, cases, pinned, registry, tune
from k3agent.backend.kernels.cases import Case, Setting
from k3agent.backend.kernels.pinned import Row


@pytest.fixture
def toy_case() -> Iterator[list[int]]:
    """An operation `toy` with one case; what it yields counts the calls."""
    calls = [0]

    def run() -> None:
        calls[0] += 1

    def fails() -> None:
        raise RuntimeError("does not fit")

    @cases.makes("toy")
    def make(setting: Setting) -> Iterator[Case]:
        found = {"reference": run, "triton": fails}
        yield Case("toy", "n=1", found, num_bytes=4_300_000, error=lambda name: 0.5)

    yield calls
    del cases._makers["toy"]


def test_bench_writes_what_ran_and_leaves_out_what_failed(toy_case: list[int], tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "rows.json"), "--markdown", str(tmp_path / "table.md")]
    assert bench.main(["toy", "--device", "cpu", "--repeats", "20", *files]) == 0
    content = json.loads((tmp_path / "rows.json").read_text())
    (row,) = content["rows"]
    assert toy_case[0] == 20
    assert (row["op"], row["implementation"], row["error"]) == ("toy", "reference", 0.5)
    assert content["environment"]["torch"] == torch.__version__
    assert "| toy | n=1 | reference |" in (tmp_path / "table.md").read_text()


def test_floor_is_the_longer_of_bytes_and_flops(toy_case: list[int]) -> None:
    ceiling = bench.ceiling_of("NVIDIA H200")
    (case,) = cases.cases_of("toy", Setting(torch.device("cpu")))
    assert bench.floor_us(case, ceiling) == pytest.approx(1.0)
    case.num_flops = int(790e12 * 5e-6)
    assert bench.floor_us(case, ceiling) == pytest.approx(5.0)
    assert bench.floor_us(case, None) is None


def test_bench_names_the_unknown_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["no_such_op"]) == 2
    assert "no_such_op" in capsys.readouterr().err


def test_first_fitting_row_counts_and_an_override_comes_before() -> None:
    small, other = Row({"block": 1}, gpu="H200", most={"tokens": 16}), Row({"block": 2})
    pinned.pin("toy", small, other, candidates={"block": [1, 2]})
    assert pinned.pick("toy", "NVIDIA H200", tokens=16)["block"] == 1
    assert pinned.pick("toy", "NVIDIA H200", tokens=17)["block"] == 2
    assert pinned.pick("toy", "cpu", tokens=1)["block"] == 2
    with pinned.override("toy", {"block": 3}):
        assert pinned.pick("toy", "cpu", tokens=1)["block"] == 3
    assert pinned.pick("toy", "cpu", tokens=1)["block"] == 2
    with pytest.raises(BackendError, match="last row"):
        pinned.pin("toy", small, candidates={})
    with pytest.raises(BackendError, match="no table"):
        pinned.pick("unpinned", "cpu")


@pytest.fixture
def tuned_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of measured rows that this process reads anew."""
    file = tmp_path / "tuned.json"
    monkeypatch.setenv(pinned.TUNED_VARIABLE, str(file))
    caches = (pinned.tuned, pinned.tuned_digest)
    for cached in caches:
        cached.cache_clear()
    yield file
    for cached in caches:
        cached.cache_clear()


def test_measured_rows_come_before_those_beside_the_kernels(tuned_file: Path) -> None:
    pinned.pin("toy", Row({"block": 9}), candidates={"block": [1, 2]})
    found = pinned.Tuned(faster={"NVIDIA H200": ["kda_step"]})
    for limit, heads, block in ((64, 2, 4), (8, 2, 3), (64, 4, 5), (64, 2, 6)):
        found.add("toy", Row({"block": block}, "NVIDIA H200", {"tokens": limit}, {"heads": heads}))
    found.write(tuned_file)
    assert pinned.Tuned.read(tuned_file) == found and len(found.rows["toy"]) == 3
    picked = [
        pinned.pick("toy", "NVIDIA H200", tokens=tokens, heads=heads)["block"]
        for tokens, heads in ((8, 2), (9, 2), (9, 4), (9, 3), (65, 2))
    ]
    assert picked == [3, 6, 5, 9, 9]
    assert pinned.pick("toy", "NVIDIA H100", tokens=8, heads=2)["block"] == 9
    assert pinned.is_faster("kda_step", "NVIDIA H200")
    assert not pinned.is_faster("kda_step", "NVIDIA H100") and not pinned.is_faster("route", "NVIDIA H200")
    assert len(pinned.tuned_digest()) == 12


def test_a_broken_file_of_measured_rows_is_named(tuned_file: Path) -> None:
    assert not pinned.tuned().rows and not pinned.tuned_digest()
    pinned.tuned.cache_clear()
    tuned_file.write_text('{"rows": {"toy": [{"block": 1}]}, "faster": {}}')
    with pytest.raises(BackendError, match=r"tuned\.json is no table"):
        pinned.tuned()


def test_choice_of_implementation() -> None:
    reference = registry.get("kda_step")
    for kernels in registry.CHOICES:
        if kernels != "triton":
            assert registry.choose("kda_step", kernels, "cpu") is reference
    assert registry.choose("mla_expanded", "auto", "cpu", registry.FUSED) is registry.get(
        "mla_expanded", "fused"
    )
    with pytest.raises(BackendError, match="no kernels 'fast'"):
        registry.choose("kda_step", "fast", "cpu")


def test_triton_by_name_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setitem(registry._IN_TRITON, "kda_step", "no_such_module:kda_step")
    with pytest.raises(BackendError, match="does not run on cpu"):
        registry.choose("kda_step", "triton", "cpu")
    with pytest.raises(BackendError, match="cannot be used"):
        registry.load_triton("kda_step")
    assert registry.choose("kda_step", "auto", "cpu") is registry.get("kda_step")


ATTENTION = ["kda_decode", "kda_prefill", "mla_decode", "mla_prefill", "mla_store", "stream_read"]


def test_cases_of_attention_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert bench.main([*ATTENTION, "--tiny", "--device", "cpu", "--repeats", "1"]) == 0
    said = capsys.readouterr().out
    assert all(f"| {op} |" in said for op in ATTENTION)
    assert "Triton is faster at: none" in said


def test_faster_means_over_all_cases() -> None:
    def row(op: str, shape: str, name: str, median_us: float) -> bench.Row:
        return bench.Row(op, shape, name, median_us, median_us, None, None, None, None)

    rows = [row("a", "1", "reference", 2), row("a", "1", "triton", 1), row("a", "2", "triton", 9)]
    rows += [row("b", "1", "reference", 2), row("b", "1", "triton", 1)]
    rows += [row("b", "2", "reference", 2), row("b", "2", "triton", 3)]
    rows += [row("c", "1", "reference", 2), row("c", "1", "triton", 5)]
    assert bench.faster_ops(rows) == ["a", "b"]
    assert bench.Row("a", "1", "triton", 5, 5, 0.5, None, None, None).best_us == 0.5


def test_bench_notes_what_is_faster_beside_what_was_tuned(toy_case: list[int], tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    pinned.Tuned({"toy": [Row({"block": 1})]}, {"cpu": ["other", "toy"]}).write(file)
    assert bench.main(["toy", "--device", "cpu", "--repeats", "2", "--faster", str(file)]) == 0
    assert pinned.Tuned.read(file) == pinned.Tuned({"toy": [Row({"block": 1})]}, {"cpu": ["other"]})


def test_bench_stops_at_its_time(toy_case: list[int]) -> None:
    assert bench.main(["toy", "--device", "cpu", "--total", "-1"]) == 1
    assert toy_case[0] == 0
    assert bench.main(["toy", "--device", "cpu", "--repeats", "1", "--shape", "n=2"]) == 1


def test_tuning_descends_and_leaves_out_what_errs(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned.pin("toy", Row({"a": 1, "b": 1}), candidates={"a": [1, 2, 3], "b": [1, 2]})
    times = {(1, 1): 9, (2, 1): 7, (3, 1): 8, (2, 2): 1, (1, 2): 5, (3, 2): 4}

    def timed(case: Case, config: tune.Config, device: torch.device) -> tuple[float, float]:
        a, b = (int(config["toy"][name]) for name in "ab")
        if (a, b) == (3, 2):
            raise RuntimeError("out of resource")
        # what is faster for one case is as much slower for the other
        factor = {"n=1": a, "n=2": 1 / a}[case.shape]
        return times[a, b] * factor, 1.0 if (a, b) == (1, 2) else 0.1

    monkeypatch.setattr(tune, "time_candidate", timed)
    both = [Case("toy", shape, {}) for shape in ("n=1", "n=2")]
    search = tune.Search(both, torch.device("cpu"), {"toy": {"a": 1, "b": 1}})
    search.descend(deadline=float("inf"))
    assert (search.best, search.mean_us) == ({"toy": {"a": 2, "b": 2}}, pytest.approx(1))
    late = tune.Search(both, torch.device("cpu"), {"toy": {"a": 1, "b": 1}})
    late.descend(deadline=0.0)
    assert late.mean_us == pytest.approx(9)
    assert tune.Search(both, torch.device("cpu"), {}).mean_us == float("inf")


def test_rows_of_several_tables_say_which_shapes_they_are_for() -> None:
    limits = {"each": 2, "choices": 128, "packed": 1, "width": 64, "inner": 32, "held": 8, "rows": 16}
    case = Case("moe_experts", "T=8", {}, limits=limits)
    row = tune.row_of(case, {"BLOCK_M": 16}, torch.device("cpu"))
    assert row == Row(
        {"BLOCK_M": 16}, "cpu", {"choices": 128}, {"packed": 1, "width": 64, "inner": 32, "held": 8}
    )
    assert row.fits("cpu", limits)

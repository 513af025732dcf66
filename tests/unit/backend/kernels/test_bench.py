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


def test_a_tuned_row_can_be_pasted() -> None:
    text = tune.row_text({"block": 2, "precision": "tf32"}, "NVIDIA H200", {"tokens": 16})
    assert eval(text, {"Row": Row})[0] == Row(
        {"block": 2, "precision": "tf32"}, gpu="NVIDIA H200", most={"tokens": 16}
    )


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
    assert "every case of: none" in said


def test_faster_means_in_every_case() -> None:
    def row(op: str, shape: str, name: str, median_us: float) -> bench.Row:
        return bench.Row(op, shape, name, median_us, median_us, None, None, None, None)

    rows = [row("a", "1", "reference", 2), row("a", "1", "triton", 1), row("a", "2", "triton", 9)]
    rows += [row("b", "1", "reference", 2), row("b", "1", "triton", 1)]
    rows += [row("b", "2", "reference", 2), row("b", "2", "triton", 3)]
    assert bench.faster_ops(rows) == ["a"]


def test_auto_takes_what_was_measured_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pinned.FASTER, "H200", ("kda_step",))
    assert pinned.is_faster("kda_step", "NVIDIA H200")
    assert not pinned.is_faster("kda_step", "NVIDIA H100") and not pinned.is_faster("route", "NVIDIA H200")


def test_tuning_descends_and_leaves_out_what_errs(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned.pin("toy", Row({"a": 1, "b": 1}), candidates={"a": [1, 2, 3], "b": [1, 2]})
    times = {(1, 1): 9, (2, 1): 7, (3, 1): 8, (2, 2): 1, (1, 2): 5, (3, 2): 4}

    def timed(case: Case, table: str, values: pinned.Values, device: torch.device) -> tuple[float, float]:
        if (values["a"], values["b"]) == (3, 2):
            raise RuntimeError("out of resource")
        return times[values["a"], values["b"]], 1.0 if values["b"] == 2 and values["a"] == 1 else 0.1

    monkeypatch.setattr(tune, "time_candidate", timed)
    case = Case("toy", "n=1", {})
    search = tune.Search(case, "toy", torch.device("cpu"), {"a": 1, "b": 1})
    search.descend(deadline=float("inf"))
    assert (search.best, search.time_us) == ({"a": 2, "b": 2}, 1)
    late = tune.Search(case, "toy", torch.device("cpu"), {"a": 1, "b": 1})
    late.descend(deadline=0.0)
    assert late.time_us == 9

"""The ablation command: rows on the same batches, kept from one command to the next."""

import json
from pathlib import Path

import pytest

from k3agent.backend.errors import BackendError
from k3agent.backend.training import ablation

STEPS = (
    "--device",
    "cpu",
    "--tiny",
    "--workers",
    "1",
    "--steps",
    "6",
    "--tokens",
    "128",
    "--quantize-from",
    "0.3",
)


@pytest.fixture(autouse=True)
def kept_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets variables of its own process, which here is that of all tests."""
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLA_TENSOR_CACHE_SIZE"):
        monkeypatch.setenv(name, "1")


def command(out: Path, *words: str) -> int:
    return ablation.main(["--out", str(out), "--cache", str(out / "cache"), *STEPS, *words])


def test_rows_are_added_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "--only", "k3", "--only", "never rounded") == 0
    first = json.loads((tmp_path / "ablation.json").read_text())
    assert [row["name"] for row in first["rows"]] == ["k3", "never rounded"]
    assert {row["tokens"] for row in first["rows"]} == {6 * 128}
    # Six steps, of which two are before rounding begins: the same batches give the same losses until then.
    assert command(tmp_path, "--only", "k3", "--only", "plain residuals") == 0
    second = json.loads((tmp_path / "ablation.json").read_text())
    assert [row["name"] for row in second["rows"]] == ["k3", "plain residuals", "never rounded"]
    assert second["rows"][0] == first["rows"][0]
    assert second["rows"][1]["loss"] != first["rows"][0]["loss"]
    assert (tmp_path / "ablation.png").stat().st_size > 10_000
    text = (tmp_path / "ablation.md").read_text()
    assert text in capsys.readouterr().out
    assert "| plain residuals |" in text and "rounded afterwards:" in text


def test_the_same_row_again_is_the_same(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        assert command(tmp_path / name, "--only", "AdamW") == 0
        (row,) = json.loads((tmp_path / name / "ablation.json").read_text())["rows"]
        found.append({key: value for key, value in row.items() if key != "tokens_per_s"})
    assert found[0] == found[1]


def test_rows_of_another_length_are_refused(tmp_path: Path) -> None:
    assert command(tmp_path, "--only", "k3") == 0
    with pytest.raises(BackendError, match="rows of 6 steps, not 7"):
        command(tmp_path, "--only", "AdamW", "--steps", "7")


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "ablation.json").write_text("[]")
    with pytest.raises(BackendError, match=r"ablation\.json holds no rows"):
        command(tmp_path)


def test_no_row_is_begun_when_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "--until-s", "0") == 0
    assert "no time for 'k3'" in capsys.readouterr().out
    assert not (tmp_path / "ablation.json").exists()

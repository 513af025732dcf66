"""The model against numbers of the released code (miniature checkpoints), when the fixtures are there."""

from pathlib import Path

import pytest
import torch
from k3agent.backend import parity

FIXTURES = Path(__file__).resolve().parents[4] / "shared" / "fixtures"
TOKENS = 37


def folder(name: str) -> Path:
    if not (FIXTURES / name).exists():
        pytest.skip(f"{FIXTURES / name} is not there")
    return FIXTURES / name


def largest(name: str, dtype: torch.dtype, pieces: list[int] | None = None) -> dict[str, float]:
    return {d.name: d.largest for d in parity.compare(folder(name), dtype, pieces)}


@pytest.mark.parametrize("pieces", [[TOKENS], [1] * TOKENS, [10, 1, 26]], ids=["whole", "single", "pieces"])
def test_float64_agrees_to_1e_9(pieces: list[int]) -> None:
    found = largest("tiny-k3-float64", torch.float64, pieces)
    assert set(found) == {"logits", "layer_out", "kda_state_vk"}
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("name", ["tiny-k3", "tiny-kimi-linear"])
def test_float32_agrees_to_2e_3(name: str) -> None:
    found = largest(name, torch.float32)
    assert max(found.values()) < 2e-3, found


def test_kimi_linear_token_by_token() -> None:
    assert max(largest("tiny-kimi-linear", torch.float32, [1] * TOKENS).values()) < 2e-3


def test_command_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(folder("tiny-k3-float64"))]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "agrees"


def test_command_names_missing_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(tmp_path)]) == 2
    assert "oracle.npz does not exist" in capsys.readouterr().err

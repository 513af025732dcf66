"""`make gpu`: what it does without a GPU, and the page that it writes from what its parts left."""

import json
from pathlib import Path

import pytest
import torch

from k3agent.backend.bench import gpu


def leave(folder: Path, part: str, status: int, table: str) -> None:
    outcome = gpu.Outcome(part, f"python -m {part}", status, 12.4, "device NVIDIA H200, torch 2.11.0")
    (folder / f"{part}.outcome.json").write_text(json.dumps(gpu.asdict(outcome)))
    (folder / f"{part}.md").write_text(table)


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert gpu.main(["--folder", str(tmp_path), "--page", str(tmp_path / "page.md")]) == 0
    assert "No GPU" in capsys.readouterr().out
    assert not (tmp_path / "page.md").exists()


def test_the_page_tells_what_ran(tmp_path: Path) -> None:
    leave(tmp_path, "kernels", 0, "| a | b |\n")
    leave(tmp_path, "k3-group", 1, "### K3 group\n\ntorch 2.11\n\n| what | k3agent |\n")
    assert gpu.main(["--folder", str(tmp_path), "--page", str(tmp_path / "page.md"), "--only-page"]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "## Kernels" in page and "| a | b |" in page
    assert "`python -m k3-group`, 12 s, device NVIDIA H200, torch 2.11.0. It ended with status 1." in page
    assert "### K3 group" not in page and "| what | k3agent |" in page
    assert "Kimi-Linear" not in page


def test_an_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--parts", "tests,k4"]) == 2
    assert "k4" in capsys.readouterr().err


def test_each_part_has_a_command(tmp_path: Path) -> None:
    for part in gpu.PARTS:
        command = gpu.command_of(part, tmp_path, ["--extra"])
        assert command[-1] == "--extra"
        file = "tuned.json" if part == "tune" else f"{part}.md"
        assert part == "tests" or str(tmp_path / file) in command

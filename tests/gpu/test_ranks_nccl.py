"""Ranks on GPUs through NCCL equal one rank: the checks of tests/integration/backend/test_ranks.py."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
TESTS = Path(__file__).resolve().parents[1]
LONG_S = 500
RANK_LOST = 70

pytestmark = pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *command], capture_output=True, text=True, timeout=LONG_S, check=False
    )


@pytest.mark.parametrize("ranks", [n for n in (2, 4, 8) if n <= NUM_GPUS] or [2])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_layout_equals_one_rank(ranks: int, dtype: str) -> None:
    flags = ["--ranks", str(ranks), "--device", "cuda", "--dtype", dtype]
    found = run("-m", "k3agent.backend.rankcheck", *flags)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(("fault", "words"), [("kill", "was ended by SIGKILL"), ("raise", "rank 1 failed")])
def test_a_broken_rank_ends_the_others(fault: str, words: str) -> None:
    found = run(str(TESTS / "support" / "ranks_fault.py"), "cuda", fault)
    assert found.returncode == RANK_LOST, found.stdout + found.stderr
    assert words in found.stderr


def test_more_ranks_than_gpus_are_refused() -> None:
    flags = ["--ranks", str(2 * NUM_GPUS), "--device", "cuda", "--expert-parallel", "1", "--no-warm-up"]
    found = run("-m", "k3agent.backend.rankcheck", *flags)
    assert found.returncode == 2
    assert f"this process sees {NUM_GPUS}" in found.stderr

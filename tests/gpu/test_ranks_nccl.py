"""Ranks on GPUs through NCCL equal one rank: the checks of tests/integration/backend/test_ranks.py."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

NUM_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
LONG_S = 500
RANK_LOST = 70

pytestmark = pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")

KILLED = """
import os, signal
from k3agent.backend import rankcheck
from k3agent.backend.engine.ranks import Ranks
start = Ranks.start
def start_and_kill(*arguments):
    ranks = start(*arguments)
    tell, steps = ranks.processes.tell, []
    def counted(name, *rest):
        tell(name, *rest)
        steps.append(name)
        if steps.count("forward") == 5:
            os.kill(ranks.processes.pids[-1], signal.SIGKILL)
    ranks.processes.tell = counted
    return ranks
Ranks.start = start_and_kill
rankcheck.main(["--ranks", "2", "--device", "cuda", "--expert-parallel", "1", "--no-warm-up"])
"""


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


def test_a_killed_rank_ends_the_others() -> None:
    found = run("-c", KILLED)
    assert found.returncode == RANK_LOST, found.stdout + found.stderr
    assert "was ended by SIGKILL" in found.stderr


def test_more_ranks_than_gpus_are_refused() -> None:
    flags = ["--ranks", str(2 * NUM_GPUS), "--device", "cuda", "--expert-parallel", "1", "--no-warm-up"]
    found = run("-m", "k3agent.backend.rankcheck", *flags)
    assert found.returncode == 2
    assert f"this process sees {NUM_GPUS}" in found.stderr

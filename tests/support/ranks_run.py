"""Plays `support.ranks_graphs` in a process of its own, on a tiny model that two ranks can share."""

import os
import subprocess
import sys
from pathlib import Path

from support.tiny_k3 import write_tiny_k3
from support.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer

TESTS = Path(__file__).resolve().parents[1]
LONG_S = 500


def write_model(folder: Path) -> Path:
    """The model in a folder, which is returned."""
    write_tiny_k3(
        folder, vocab_size=VOCAB_SIZE, moe_intermediate_size=64, linear_attn_config={"num_heads": 4}
    )
    write_tiny_tokenizer(folder)
    return folder


def run(model: Path, fault: str, seen: Path, timeout_s: float = LONG_S) -> subprocess.CompletedProcess[str]:
    """What came of a fault; ranks write what they did into files of `seen`."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-P", "-m", "support.ranks_graphs", str(model), fault],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "K3_TEST_SEEN": str(seen)},
        check=False,
    )

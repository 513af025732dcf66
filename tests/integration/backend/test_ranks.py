"""Ranks as processes: what they compute, alone and as an engine, equals what one rank does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tiny_k3 import write_tiny_k3
from support.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer

from k3agent.backend.errors import RANK_LOST_STATUS

TESTS = Path(__file__).resolve().parents[2]
LONG_S = 500


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *command],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.mark.parametrize(("ranks", "groups", "dtype"), [(2, 1, "float32"), (4, 2, "float64")])
def test_steps_hits_resumes_and_saved_states_equal_one_rank(ranks: int, groups: int, dtype: str) -> None:
    check("--ranks", str(ranks), "--expert-parallel", str(groups), "--dtype", dtype)


def check(*flags: str) -> None:
    found = run("-m", "k3agent.backend.rankcheck", "--no-warm-up", *flags)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(" ok\n") == 2


def test_a_rank_that_fails_midway_ends_the_others() -> None:
    found = run(str(TESTS / "support" / "ranks_fault.py"), "cpu", "raise")
    assert found.returncode == RANK_LOST_STATUS, found.stdout + found.stderr
    assert "rank 1 failed: KeyError" in found.stderr


def engine(folder: Path, ranks: int, groups: int) -> dict[str, Any]:
    found = run(str(TESTS / "support" / "ranks_child.py"), str(folder), str(ranks), str(groups))
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_an_engine_on_two_ranks_gives_the_tokens_of_one(tmp_path: Path) -> None:
    """Requests side by side, with hits in memory and below it, guesses, aborts and preemptions."""
    write_tiny_k3(
        tmp_path, vocab_size=VOCAB_SIZE, moe_intermediate_size=64, linear_attn_config={"num_heads": 4}
    )
    write_tiny_tokenizer(tmp_path)
    expected = engine(tmp_path, 1, 1)
    found = engine(tmp_path, 2, 2)
    assert expected["num_preempted"] == 3 and expected["num_draft"] > 0
    assert {tier for hit in expected["num_cached"].values() for tier in hit if hit[tier]} == {
        "device",
        "host",
    }
    assert found == expected

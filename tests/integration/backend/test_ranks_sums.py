"""Small sums through symmetric memory on two ranks: all take that way or none, the numbers are those of the
collectives, and nobody waits for a rank that is gone. The memory is feigned: there is no GPU."""

import json
from pathlib import Path

import pytest
from support.ranks_run import run, write_model

from k3agent.backend.errors import RANK_LOST_STATUS

FREED_S = 80
"""Less than it would take to free a buffer."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def test_sums_through_the_memory_give_the_answers_of_the_collectives(model: Path, tmp_path: Path) -> None:
    found = run(model, "sums", tmp_path)
    assert found.returncode == 0, found.stderr
    outcome = json.loads(found.stdout)
    assert outcome["num_sums"] > 100
    assert outcome == {"is_same": True, "num_sums": outcome["num_sums"], "without": 0}
    assert "no sums through symmetric memory" not in found.stderr


def test_what_one_rank_cannot_have_none_uses(model: Path, tmp_path: Path) -> None:
    found = run(model, "sums meet", tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == {"is_same": True, "num_sums": 0, "without": 0}
    assert found.stderr.count("no sums through symmetric memory") == 2
    assert "the memory of a peer cannot be mapped" in found.stderr
    assert "another rank could not have them" in found.stderr


def test_a_rank_that_is_killed_in_a_sum_ends_the_one_that_waits(model: Path, tmp_path: Path) -> None:
    found = run(model, "sums kill 1", tmp_path)
    assert found.returncode == RANK_LOST_STATUS, found.stdout + found.stderr
    assert "was ended by SIGKILL" in found.stderr


def test_a_rank_without_rank_0_leaves_without_freeing_its_buffer(model: Path, tmp_path: Path) -> None:
    """Output ends when both processes have."""
    found = run(model, "sums kill 0", tmp_path, FREED_S)
    assert found.returncode == -9, found.stdout + found.stderr

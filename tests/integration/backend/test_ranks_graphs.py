"""Two ranks capture the same steps in the same order, keep what both have, and never wait for one that is
gone. Graphs are feigned: there is no GPU."""

import json
from pathlib import Path

import pytest
from support.ranks_run import run, write_model

from k3agent.backend.engine.static_steps import PREFILL_SIZES
from k3agent.backend.errors import RANK_LOST_STATUS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def lines(seen: Path) -> tuple[list[str], list[str]]:
    """What each rank did."""
    first, second = ((seen / rank).read_text().splitlines() for rank in "01")
    return first, second


def test_both_ranks_capture_and_replay_the_same_and_answer_as_one(model: Path, tmp_path: Path) -> None:
    found = run(model, "none", tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == {"is_same": True, "has_graphs": True}
    mine, theirs = lines(tmp_path)
    assert mine == theirs
    captured = [line.split(":")[0] for line in mine if line.endswith("captured")]
    assert captured == [
        *(f"prefill of {n}" for n in reversed(PREFILL_SIZES) if n <= 256),
        "decode of 2",
        "decode of 1",
    ]
    # all are given up before the ranks part, and some were used
    released = [line for line in mine if "released after" in line]
    assert [line.split(":")[0] for line in released] == captured
    assert sum(int(line.split()[-1]) for line in released) >= 10


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_cannot_capture_none_keeps(model: Path, tmp_path: Path, rank: int) -> None:
    found = run(model, f"capture {rank}", tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == {"is_same": True, "has_graphs": False}
    assert found.stderr.count("no CUDA graphs from the decode of 2 on") == 2
    assert "operation not permitted when stream is capturing" in found.stderr
    assert "another rank could not capture it" in found.stderr
    ranks = lines(tmp_path)
    # the rank that had it gave it up at once, and nobody tried the next one
    assert "decode of 2: released after 0" in ranks[1 - rank]
    assert not any("decode of 1:" in line for line in (*ranks[0], *ranks[1]))
    assert [line for line in ranks[0] if "decode of 2" not in line] == [
        line for line in ranks[1] if "decode of 2" not in line
    ]


@pytest.mark.parametrize(
    ("fault", "words"),
    [("warm-up", "rank 1 failed: RuntimeError: out of memory"), ("kill", "was ended by SIGKILL")],
)
def test_a_rank_that_fails_alone_ends_all(model: Path, tmp_path: Path, fault: str, words: str) -> None:
    found = run(model, fault, tmp_path)
    assert found.returncode == RANK_LOST_STATUS, found.stdout + found.stderr
    assert words in found.stderr

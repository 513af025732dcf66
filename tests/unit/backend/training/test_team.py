"""Two ranks, over gloo on a CPU: together they take the steps of one rank on the whole batch, by one plan."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training_rank import (
    CPU,
    STEPS,
    half,
    joined,
    tensors_of,
    train_beside,
    train_with_dealt_experts,
    trainer,
)

from k3agent.backend.errors import RANK_LOST_STATUS
from k3agent.backend.parallel import groups
from k3agent.backend.training import run
from k3agent.backend.training.ranks import cache_of, choose_gpu, gpus_of, num_workers_of
from k3agent.backend.training.team import Plan, Team
from k3agent.backend.training.trainer import to_device

LONG_S = 300.0


def run_two(work: Callable[[int, int, str], None], folder: Path) -> list[dict[str, Any]]:
    """What both ranks have left behind."""
    store = groups.open_store(2)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, store.port, str(folder))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONG_S)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_two(train_beside, tmp_path_factory.mktemp("ranks"))


def test_dealt_experts_take_the_steps_of_one_large_batch(tmp_path: Path) -> None:
    mine, other = run_two(train_with_dealt_experts, tmp_path)
    alone = trainer()
    assert torch.equal(mine["start"], alone.parameters.matrices.master)
    for step in range(STEPS):
        alone.step(to_device(joined(half(step, 0), half(step, 1)), CPU), 1.0, rounded=False)
    expected = alone.collect()
    for name in ("matrices", "vectors", "bias"):
        assert torch.allclose(mine["state"][name], expected[name], rtol=0, atol=1e-6), name
        assert torch.equal(mine["state"][name], other["state"][name]), name
    momentum = mine["state"]["optimizer"]["momentum"]
    assert torch.allclose(momentum, alone.optimizer.momentum, rtol=0, atol=1e-6)
    assert mine["loss"] == pytest.approx(alone.read_measures().loss, rel=1e-6)
    assert mine["is_same"] and other["is_same"]
    assert mine["lost"] == 0
    assert mine["own"] < alone.parameters.matrices.size
    # Any number of ranks goes on from it.
    again = trainer(seed=5)
    again.load(tmp_path)
    assert torch.equal(again.parameters.matrices.master, mine["state"]["matrices"])


def test_two_ranks_take_the_steps_of_one_large_batch(ranks: list[dict[str, Any]]) -> None:
    alone = trainer()
    for step in range(STEPS):
        alone.step(to_device(joined(half(step, 0), half(step, 1)), CPU), 1.0, rounded=False)
    for name, expected in tensors_of(alone).items():
        assert torch.equal(ranks[0][name], ranks[1][name]), name
        assert torch.allclose(ranks[0][name], expected, rtol=0, atol=1e-6), name
    assert not torch.equal(alone.parameters.matrices.master, trainer().parameters.matrices.master)
    assert alone.network.bias.abs().max() > 0.01
    measures = alone.read_measures()
    assert ranks[1]["loss"] == pytest.approx(measures.loss, rel=1e-6)
    assert torch.equal(ranks[1]["loads"], measures.loads)
    assert ranks[1]["num_tokens"] == alone.num_tokens


def test_rank_0_plans_and_anybody_can_end_it(ranks: list[dict[str, Any]]) -> None:
    mine, other = (found["plans"] for found in ranks)
    for name in ("progress", "is_logged", "is_saved", "is_over"):
        assert [plan[name] for plan in mine] == [plan[name] for plan in other]
    assert [plan["progress"] for plan in mine] == pytest.approx([0.0, 0.1, 0.2, 0.9])
    assert [plan["is_logged"] for plan in mine] == [True, False, False, False]
    assert [plan["is_over"] for plan in mine] == [False, False, False, True]
    assert all(a["weight"] + b["weight"] == pytest.approx(1) for a, b in zip(mine, other, strict=True))
    assert mine[0]["weight"] < 0.4


def test_ranks_that_differ_are_made_equal(ranks: list[dict[str, Any]]) -> None:
    first, again = ranks[0]["apart"]
    assert first > 0
    assert again == 0
    assert ranks[1]["apart"] == ranks[0]["apart"]


def test_one_rank_is_left_alone() -> None:
    team, wish = Team(), Plan(0.5, True, False, True, weight=7.0)
    x = torch.ones(2, 3)
    assert team.agree(wish) == Plan(0.5, True, False, True, weight=1.0)
    assert team.gather(x) is x
    assert team.align(x) == 0
    environment: dict[str, str] = {}
    choose_gpu(Namespace(ranks=1, rank=0, device="cuda"), environment)
    assert not environment
    options = Namespace(ranks=1, rank=0, workers=14, cache=Path("c"))
    assert (num_workers_of(options), cache_of(options)) == (14, Path("c"))


def test_each_rank_sees_its_own_gpu_first() -> None:
    assert [gpus_of(rank, 2, None) for rank in range(2)] == ["0,1", "1,0"]
    assert [gpus_of(rank, 3, "4,5,6,7") for rank in range(3)] == ["4,5,6", "5,6,4", "6,4,5"]
    # What rank 0 sets for itself is what the others start from.
    assert gpus_of(1, 2, gpus_of(0, 2, "6,7")) == "7,6"
    with pytest.raises(ValueError, match="shows 1 GPUs, --ranks 2"):
        gpus_of(0, 2, "3")


def test_workers_are_divided() -> None:
    parts = [num_workers_of(Namespace(ranks=3, rank=rank, workers=14)) for rank in range(3)]
    assert parts == [5, 5, 4]
    assert num_workers_of(Namespace(ranks=2, rank=1, workers=1)) == 1


@pytest.mark.parametrize("words", [["--ranks", "0"], ["--ranks", "2", "--preflight"]])
def test_what_ranks_cannot_do_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        run.parse(["--out", "x", *words])


def start(out: Path, *more: str) -> "subprocess.Popen[str]":
    words = ["--ranks", "2", "--device", "cpu", "--tiny", "--tokens", "128", "--eval-batches", "0"]
    words += ["--out", str(out), "--state", str(out / "state"), "--cache", str(out / "cache")]
    words += ["--log-every-s", "0.5", "--reserve-s", "0", "--minutes", "60", *more]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "k3agent.backend.training.run", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def records_of(out: Path, process: "subprocess.Popen[str]", num_steps: int) -> list[dict[str, Any]]:
    """The log, once it tells of so many steps."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end and process.poll() is None:
        lines = (out / "log.jsonl").read_text().splitlines() if (out / "log.jsonl").exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        if any(record.get("step", 0) >= num_steps for record in found):
            return found
        time.sleep(0.3)
    raise AssertionError(f"no {num_steps} steps: {process.stderr.read() if process.stderr else ''}")


def test_a_run_ends_by_sigterm_resumes_and_names_a_killed_rank(tmp_path: Path) -> None:
    first = start(tmp_path)
    records_of(tmp_path, first, 2)
    first.terminate()
    _, errors = first.communicate(timeout=LONG_S)
    assert first.returncode == 0, errors
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["stopped_by"] == "SIGTERM"
    assert report["tokens"] == 2 * 128 * report["steps"]
    saved = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [record["ranks_apart"] for record in saved if record.get("event") == "saved"] == [0.0]

    out = tmp_path / "second"
    # A state of ranks that each had all experts is gone on with by ranks that have half of them.
    second = start(out, "--resume", str(tmp_path / "state"), "--expert-parallel")
    records = records_of(out, second, report["steps"] + 2)
    assert records[0]["tokens"] == report["tokens"]
    (pid,) = records[0]["pids"]
    os.kill(pid, signal.SIGKILL)
    _, errors = second.communicate(timeout=LONG_S)
    assert second.returncode == RANK_LOST_STATUS, errors
    assert f"rank 1 (process {pid}) was ended by SIGKILL" in errors

"""Measurements of several ranks: they compare the same model, and no step takes another with it."""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_k3 import write_tiny_k3

from k3agent.backend.bench import (
    gpu,
    rank_graphs,
    rank_layers,
    rank_play,
    rank_rates,
    rank_reduce,
    rank_results,
    rank_standin,
    rank_tokens,
    ranks,
)
from k3agent.backend.bench.standins import AloneOf
from k3agent.backend.bench.widened import widen
from k3agent.backend.cache.disk_writer import DiskWriter
from k3agent.backend.cache.tiers import StateRecord
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.errors import RANK_LOST_STATUS
from k3agent.backend.model.weights import load_model
from k3agent.backend.parallel.shard import Shard, check_layout
from k3agent.backend.parity import run

LONG_S = 500
CARD = 139 << 30


@pytest.mark.parametrize(("heads", "pack"), [(3, "experts"), (4, "none")])
def test_a_widened_model_computes_the_same_and_divides(tmp_path: Path, heads: int, pack: str) -> None:
    write_tiny_k3(tmp_path / "own", vocab_size=199, pack=pack, linear_attn_config={"num_heads": heads})
    config = widen(tmp_path / "own", tmp_path / "wide", 8)
    check_layout(config, 8, 8)
    assert config.linear_attn_config.num_heads == config.num_attention_heads == 8
    ids = torch.randint(199, (70,), generator=torch.Generator().manual_seed(0))
    own, wide = (run(load_model(tmp_path / name, torch.float64), ids) for name in ("own", "wide"))
    assert (wide["logits"][:, :199] - own["logits"]).abs().max() < 1e-9
    assert not wide["logits"][:, 199:].any()
    assert Tokenizer.from_dir(tmp_path / "wide").vocab_size <= config.vocab_size


@pytest.mark.parametrize("dealt", [1, 2])
def test_each_rank_draws_its_part_of_one_model(tmp_path: Path, dealt: int) -> None:
    raw = rank_standin.group_of_k3(tiny=True, ranks=2)
    settings = EngineSettings(model_dir=rank_standin.write_config(tmp_path, raw))
    whole = rank_standin.load(settings, Shard()).destinations()
    for rank in range(2):
        shard = Shard(AloneOf(2, rank), dealt)
        part = rank_standin.load(settings, shard).destinations()
        assert part.keys() == whole.keys()
        for name, value in part.items():
            expected, split = whole[name], shard.split(name)
            is_stack = ".experts.w" in name
            if is_stack:
                numbers = shard.experts(expected.shape[0])
                expected = expected[numbers.start : numbers.stop]
            if split is not None:
                dim = split.dim + is_stack
                piece = split.piece(expected.shape[dim])
                expected = expected.narrow(dim, piece.start, piece.stop - piece.start)
            assert torch.equal(value, expected), name


def test_the_slice_of_two_cards_fits_no_single_one() -> None:
    count = rank_standin.layers_that_fit(2, CARD)
    whole, part = rank_standin.rank_bytes(rank_standin.slice_of_k3(count), 2)
    assert part < CARD < whole
    larger = rank_standin.rank_bytes(rank_standin.slice_of_k3(count + 4), 2)[1]
    assert larger > 0.88 * CARD
    assert rank_standin.layers_that_fit(4, CARD) == 24


def test_a_table_is_on_paper_after_each_row(tmp_path: Path) -> None:
    table = rank_results.Table("tokens", tmp_path, "cpu")
    assert table.status == 1
    table.add("a", "2 ranks", "1", True)
    assert table.status == 0
    table.add("b", "2 ranks", "2", False)
    assert table.status == 1
    found = json.loads((tmp_path / "tokens.json").read_text())
    assert [row["verdict"] for row in found["rows"]] == ["ok", "DIFFERS"]
    assert "| b | 2 ranks | 2 | DIFFERS |" in (tmp_path / "tokens.md").read_text()


def test_answers_with_graphs_must_be_those_without_and_have_used_them(tmp_path: Path) -> None:
    job = rank_graphs.Job("tiny", tmp_path, 2, 1, rank_graphs.WITH)

    def lives(token: int, has_graphs: bool, near: bool = False, disk: int = 0) -> rank_graphs.Lives:
        cached = {"a": {"device": 4, "disk": disk}}
        life = {"tokens": {"a": [1, 2], "b": [3, token]}, "cached": cached, "is_symmetric": near}
        return [life | {"has_graphs": has_graphs}] * 2

    def verdicts(
        device: str,
        without: rank_graphs.Lives | str,
        found: rank_graphs.Lives | str,
        job: rank_graphs.Job = job,
    ) -> list[str]:
        table = rank_results.Table("graphs", tmp_path, "cpu")
        table.device = device
        # the table looks at a GPU that is not there
        table._write = table.rows.append  # pyright: ignore[reportAttributeAccessIssue]
        rank_graphs.judge(table, job, without, found)
        return [row.verdict for row in table.rows]

    assert verdicts("cuda", lives(4, False), lives(4, True)) == ["ok", "ok"]
    assert verdicts("cuda", lives(4, False), lives(4, False)) == ["DIFFERS", "ok"]
    assert verdicts("cuda", lives(4, False), lives(5, True)) == ["ok", "DIFFERS"]
    assert verdicts("cpu", lives(4, False), lives(4, False)) == ["ok"]
    assert verdicts("cpu", lives(4, False), lives(4, False, disk=64)) == ["DIFFERS"]
    near = replace(job, sums="symmetric")
    assert verdicts("cuda", lives(4, False), lives(4, True, near=True), near) == ["ok"] * 3
    assert verdicts("cuda", lives(4, False), lives(4, True), near) == ["ok", "DIFFERS", "ok"]
    assert (
        verdicts("cuda", lives(4, False), "status 70") == verdicts("cuda", "x", lives(4, True)) == ["FAILED"]
    )


def test_models_that_differ_in_numbers_or_eyes_alone_count_once(tmp_path: Path) -> None:
    for name, dtype in (("tiny", "float32"), ("tiny-blind", "float32"), ("tiny-float64", "float64")):
        write_tiny_k3(tmp_path / name, vocab_size=199, vision=None if name == "tiny-blind" else 198)
        raw = json.loads((tmp_path / name / "config.json").read_text())
        raw.get("text_config", raw)["dtype"] = dtype
        raw["media_placeholder_token_id"] = 198
        (tmp_path / name / "config.json").write_text(json.dumps(raw))
    found = rank_graphs.jobs(tmp_path, tmp_path / "work", 2)
    assert [(job.name, job.dealt, job.graphs, job.sums) for job in found] == [
        ("tiny", dealt, graphs, "auto") for dealt in (1, 2) for graphs in ("padded", "auto")
    ]
    near = rank_graphs.jobs(tmp_path, tmp_path / "near", 2, "symmetric")
    assert [(job.graphs, job.sums) for job in near] == [("padded", "auto"), ("auto", "symmetric")] * 2


def test_other_hits_are_told_by_name() -> None:
    expected = [{"cached": {"a": {"disk": 64}, "b": {"disk": 0}}}, {"cached": {"a": {"disk": 8}}}]
    assert rank_tokens.other_hits(expected, expected) == ""
    found = [expected[0], {"cached": {"a": {"disk": 0}}}]
    text = "; 1 requests found other prefixes: a of life 2: {'disk': 0} instead of {'disk': 8}"
    assert rank_tokens.other_hits(found, expected) == text


@pytest.mark.parametrize("is_awaited", [True, False])
def test_hits_do_not_depend_on_how_fast_the_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_awaited: bool
) -> None:
    """A state that is superseded while the writer is busy is left out, unless saving waits for it."""
    gate, write = threading.Event(), DiskWriter._write

    def slow(writer: DiskWriter, *given: Any) -> None:
        gate.wait(0.5)
        write(writer, *given)

    monkeypatch.setattr(DiskWriter, "_write", slow)
    disk = DiskTier(tmp_path, "tiny", 1 << 20)
    if is_awaited:
        rank_play.await_writes(disk)
    for number in range(2):
        key = bytes([number] * 16)
        state = StateRecord(key, 64, (), is_exact=False, saved_tokens=64, state=bytes(100), tail_page=None)
        assert disk.save([], state, now=1)
        assert bool(disk.states_at(key)) == is_awaited
    disk.demote(bytes([1] * 16), ())
    gate.set()
    disk.flush()
    assert [bool(disk.states_at(bytes([number] * 16))) for number in range(2)] == [True, is_awaited]
    disk.close()


@pytest.mark.parametrize(("sums", "first"), [("auto", 0), ("symmetric", 2)])
def test_rates_that_are_compared_are_measured_side_by_side(sums: str, first: int) -> None:
    found = [layout.name for layout in rank_rates.order(2, sums)]
    near = [place for place, name in enumerate(found) if name.endswith(", sums by symmetric memory")]
    assert len(near) == first and len(set(found)) == len(found)
    for place in near:
        assert found[place - 1] + ", sums by symmetric memory" == found[place]
    assert found[0].startswith("2 ranks") and "1 rank, with graphs" in found


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("is_in_place", [True, False])
def test_sums_of_a_graph_are_checked(world: int, is_in_place: bool) -> None:
    def last(forgets: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [torch.empty(3, 16, dtype=torch.bfloat16) for _ in range(world)]
        for rank, x in enumerate(rows):
            rank_reduce.fill(x, rank)
        x, others = rows[0], rows[1:]
        total = sum(others[forgets:], start=x.clone())
        if not is_in_place:
            return total, x
        for _ in range(rank_reduce.IN_A_GRAPH - 1):
            total = total * world
        return x.copy_(total), x

    assert rank_reduce.is_sum_of_sums(*last(), world)
    assert world > 2 or not rank_reduce.is_sum_of_sums(*last(forgets=1), world)
    found, x = last()
    assert not rank_reduce.is_sum_of_sums(x.copy_(found * world) if is_in_place else found * world, x, world)
    other = found.flatten()
    other[5] = 0
    assert not rank_reduce.is_sum_of_sums(found, x, world)


def test_a_layer_that_differs_is_told(tmp_path: Path) -> None:
    """Ranks that do not add up what they have give another layer."""
    raw = rank_standin.group_of_k3(tiny=True, ranks=2)
    settings = EngineSettings(model_dir=rank_standin.write_config(tmp_path, raw))
    several = rank_layers.phases(256, (70, 13), torch.device("cpu"))
    model = rank_standin.load(settings, Shard())
    rank_layers.record(model, several, rank_layers.new_cache(model, several))

    class Apart(AloneOf):
        def broadcast(self, x: torch.Tensor) -> torch.Tensor:
            return x

    comm = Apart(2)
    part = rank_standin.load(settings, Shard(comm, 2))
    cache = rank_layers.new_cache(part, several)
    errors = [
        rank_layers.relative(found, seen.found)
        for found, seen in zip(
            rank_layers.replay(part, several[0], cache, comm),  # pyright: ignore[reportArgumentType]  # as much of a GroupComm as is used
            several[0].seen,
            strict=True,
        )
    ]
    assert len(errors) == 8 and min(errors) > 10 * rank_layers.TOLERANCE


def test_layers_on_two_ranks_are_those_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "k3agent.backend.bench.rank_layers", "--tiny", "--device", "cpu"]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" ok\n") == 12


def test_a_step_that_fails_or_hangs_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {
        "fails": "raise RuntimeError('an illegal memory access')",
        "hangs": "import time; print('begun', flush=True); time.sleep(600)",
        "works": "import pathlib, sys; pathlib.Path(sys.argv[1], 'works.md').write_text('| a table |')",
    }
    for name, value in (("LEAST_S", 0.1), ("GRACE_S", 1.0)):
        monkeypatch.setattr(ranks, name, value)
    monkeypatch.setattr(
        ranks.Session,
        "command",
        lambda _self, step, _allowed: [sys.executable, "-c", programs[step.name], str(tmp_path)],
    )
    options = argparse.Namespace(out=tmp_path, folder=tmp_path, limit_s=60.0, device="cpu", ranks=2)
    session = ranks.Session(options, [])
    begun = time.monotonic()
    session.run([ranks.Step("fails", ""), ranks.Step("hangs", "", seconds=2), ranks.Step("works", "")])
    assert time.monotonic() - begun < 300
    assert {one.step: one.status for one in session.outcomes} == {"fails": 1, "hangs": 124, "works": 0}
    page, log = ((tmp_path / f"ranks2.{end}").read_text() for end in ("md", "log"))
    assert "| a table |" in page and "status 124" in page
    assert "an illegal memory access" in log and "begun" in log
    assert len(json.loads((tmp_path / "ranks2.json").read_text())["steps"]) == 3
    assert page in gpu.page(tmp_path)
    later = ranks.Session(options, ranks.earlier(tmp_path))
    later.run([ranks.Step("works", "")])
    assert [one.step for one in later.outcomes] == ["fails", "hangs", "works"]
    assert (tmp_path / "ranks2.md").read_text().count("####") == 3


def test_what_other_numbers_of_ranks_left_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "steps", lambda: (ranks.Step("one", ""), ranks.Step("other", "")))
    monkeypatch.setattr(ranks.Session, "command", lambda *_: [sys.executable, "-c", ""])
    flags = ["--device", "cpu", "--out", str(tmp_path / "out"), "--folder", str(tmp_path / "work")]
    for number, step in (("2", "one"), ("4", "other"), ("2", "other")):
        assert ranks.main([*flags, "--ranks", number, "--steps", step]) == 0
    found = {
        number: [
            one["step"] for one in json.loads((tmp_path / "out" / f"ranks{number}.json").read_text())["steps"]
        ]
        for number in (2, 4)
    }
    assert found == {2: ["one", "other"], 4: ["other"]}


BROKEN = """
import sys, time, torch
from k3agent.backend.bench.rank_results import run_on_all
def work(options, comm):
    if comm.rank == int(options.limit_s):
        raise KeyError("what is not there")
    time.sleep(600)
    return 0
if __name__ == "__main__":
    sys.exit(run_on_all("broken_step", "broken", "", work, sys.argv[1:]))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_rank_ends_a_step_at_once(tmp_path: Path, rank: int) -> None:
    (tmp_path / "broken_step.py").write_text(BROKEN)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-P", "-m", "broken_step", "--device", "cpu", "--limit-s", str(rank)]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        env=os.environ | {"PYTHONPATH": paths},
        check=False,
    )
    assert ended.returncode == RANK_LOST_STATUS, ended.stdout + ended.stderr
    assert f"rank {rank} failed: " in ended.stderr and "what is not there" in ended.stderr

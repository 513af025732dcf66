"""Training from end to end on a CPU: the loss falls, the state resumes, and what is exported speaks."""

import argparse
import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.weights import load_model
from k3agent.backend.training import export, run
from k3agent.backend.training.data import pack, synthetic_stream
from k3agent.backend.training.loop import Run
from k3agent.backend.training.network import Batch
from k3agent.backend.training.trainer import Trainer, to_device

CPU = torch.device("cpu")


def trainer(seed: int = 0) -> Trainer:
    config = export.model_config(export.tiny_config(64))
    made = Trainer(config, CPU, dtype=torch.float32, compiled=False, seed=seed)
    made.refresh(rounded=False)
    return made


def batch(seed: int = 0) -> Batch:
    documents = (("64", document) for document in synthetic_stream(seed, 0, stage="64"))
    return to_device(pack(documents, 128, 64, 63), CPU)


def test_loss_falls_with_and_without_rounding() -> None:
    made, one = trainer(), batch()
    losses = []
    for i in range(24):
        made.step(one, 1.0, rounded=i >= 12)
        losses.append(made.read_measures().loss)
    assert losses[11] < 0.8 * losses[0]
    assert losses[-1] < 0.8 * losses[11]


def test_a_saved_state_goes_on_exactly(tmp_path: Path) -> None:
    first = trainer()
    for seed in range(3):
        first.step(batch(seed), 1.0, rounded=True)
    first.progress = 0.25
    first.save(tmp_path)
    second = trainer(seed=9)
    second.load(tmp_path)
    second.refresh(rounded=True)
    for made in (first, second):
        made.step(batch(7), 1.0, rounded=True)
    assert torch.equal(first.parameters.matrices.master, second.parameters.matrices.master)
    assert torch.equal(first.parameters.vectors.master, second.parameters.vectors.master)
    assert torch.equal(first.network.bias, second.network.bias)
    assert (second.num_steps, second.num_tokens, second.progress) == (4, 512, 0.25)


def test_the_exported_model_continues_the_phrase_it_was_trained_on(tmp_path: Path) -> None:
    made, one = trainer(), batch()
    for _ in range(90):
        made.step(one, 1.0, rounded=True)
    export.write_folder(tmp_path, export.tiny_config(64), made.parameters, made.network.bias)
    model = load_model(tmp_path)
    cache = allocate_cache(model.config, 2, 1)
    end = int(one.documents.offsets[1])
    expected = one.token_ids[:end].tolist()
    start = end // 2
    said, fresh = expected[:start], expected[:start]
    with torch.inference_mode():
        while len(said) < end:
            done = len(said) - len(fresh)
            step = ForwardBatch(
                torch.tensor(fresh), [0, len(fresh)], [done], torch.tensor([[0, 1]]), [0], [done > 0]
            )
            fresh = [int(model.forward(step, cache)[0].argmax())]
            said += fresh
    right = sum(a == b for a, b in zip(said[start:], expected[start:], strict=True))
    assert right >= 0.8 * (end - start)


def options(out: Path, *more: str) -> argparse.Namespace:
    words = ["--device", "cpu", "--tiny", "--tokens", "128", "--out", str(out), "--state", str(out / "state")]
    return run.parse([*words, "--reserve-s", "0", "--log-every-s", "0.5", *more])


class Ticks:
    """A clock that goes on with each look at it: how many steps fit does not depend on the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.05
        return self.now


def test_a_run_by_the_clock_exports_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Ticks()
    monkeypatch.setattr("k3agent.backend.training.loop.time", clock)
    chosen = options(tmp_path, "--minutes", "0.05", "--quantize-from", "0.3", "--progress-to", "0.5")
    feeds = run.start_feeds(chosen)
    try:
        feeds["train"].next(60)
        made = Run(chosen, feeds, clock.monotonic())
        made.steps()
        made.finish()
    finally:
        for feed in feeds.values():
            feed.close()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"] > 1
    assert 0.4 < report["progress"] <= 0.5
    assert report["stopped_by"] == "the clock"
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert any(record.get("event") == "rounding on" for record in records)
    joined = b"".join(part.read_bytes() for part in sorted(tmp_path.glob("model.safetensors.part*")))
    assert joined == (tmp_path / "state" / "weights" / "model.safetensors").read_bytes()
    assert len([file for file in tmp_path.iterdir() if file.is_file()]) <= 8
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    load_model(tmp_path / "state" / "weights")


def test_parts_join_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(bytes(range(256)) * 10)
    parts = export.split_file(file, tmp_path / "out", 1000)
    assert [part.stat().st_size for part in parts] == [1000, 1000, 560]
    assert b"".join(part.read_bytes() for part in parts) == file.read_bytes()


def test_synthetic_documents_repeat() -> None:
    for document in islice(synthetic_stream(1, 0, stage="64"), 5):
        ids = document.token_ids.tolist()
        assert any(ids[n:] == ids[:-n] for n in range(4, 12))


@pytest.mark.parametrize("name", ["nano_config", "tiny_config"])
def test_configurations_are_valid(name: str) -> None:
    config = export.model_config(getattr(export, name)())
    assert config.shared_width == 2 * config.moe_intermediate_size
    assert config.is_kda(0)
    assert not config.is_kda(config.num_hidden_layers - 1)

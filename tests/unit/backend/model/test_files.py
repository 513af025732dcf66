"""Bad folders and damaged files are named with field and remedy; loading takes the model and one file."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_k3 import write_tiny_k3

from k3agent.backend.errors import BackendError, ModelFilesError
from k3agent.backend.model.files import INDEX_FILE
from k3agent.backend.model.weights import load_model

FILE = "model.safetensors"


def shard(folder: Path, count: int) -> list[Path]:
    """Divide the file of a folder into shards with an index."""
    tensors = load_file(folder / FILE)
    (folder / FILE).unlink()
    names = sorted(tensors)
    places: dict[str, str] = {}
    files = []
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:06}.safetensors"
        part = names[number::count]
        save_file({name: tensors[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
        files.append(folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    return files


def test_shards_equal_one_file(tmp_path: Path) -> None:
    write_tiny_k3(tmp_path)
    expected = load_model(tmp_path).destinations()
    shard(tmp_path, 5)
    found = load_model(tmp_path).destinations()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    # a file that the index does not name belongs to something else
    save_file({"lora.weight": torch.zeros(1)}, tmp_path / "adapter.safetensors")
    load_model(tmp_path)


def missing_shard(folder: Path) -> None:
    shard(folder, 3)[1].unlink()


def index_without_map(folder: Path) -> None:
    (folder / INDEX_FILE).write_text("{}")


def index_that_leaves(folder: Path) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))


def index_with_foreign_name(folder: Path) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": {"language_model.lm_head.bias": FILE}}))


def name_in_two_files(folder: Path) -> None:
    save_file({"language_model.lm_head.weight": torch.zeros(1)}, folder / "second.safetensors")


def no_weights(folder: Path) -> None:
    (folder / FILE).unlink()


def truncated(folder: Path) -> None:
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[:-100])


def truncated_header(folder: Path) -> None:
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[:200])


def too_long(folder: Path) -> None:
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content + bytes(8))


def text_for_weights(folder: Path) -> None:
    (folder / FILE).write_bytes(b"nothing")


def pointer_for_weights(folder: Path) -> None:
    (folder / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def broken_entry(folder: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (folder / FILE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing_shard, r"model-00002-of-000003.safetensors is missing; .*first for language_model"),
        (index_without_map, r"index.json cannot be used: KeyError"),
        (index_that_leaves, r"index.json: weight_map must give each tensor the name of a file"),
        (index_with_foreign_name, r"model.safetensors lacks language_model.lm_head.bias"),
        (name_in_two_files, r"language_model.lm_head.weight is in two files"),
        (no_weights, r"has no \.safetensors file"),
        (truncated, r"model.safetensors is truncated: \d+ bytes, its header asks for \d+"),
        (truncated_header, r"model.safetensors cannot be read: it has 200 bytes"),
        (too_long, r"model.safetensors is too long"),
        (text_for_weights, r"model.safetensors cannot be read"),
        (pointer_for_weights, r"model.safetensors cannot be read"),
        (broken_entry, r"the header's entry of a is damaged"),
    ],
)
def test_damaged_weights_are_named(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    write_tiny_k3(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelFilesError, match=message) as caught:
        load_model(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_nothing_is_read_before_everything_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault lies in the last file; no tensor of the first ones is touched."""
    write_tiny_k3(tmp_path)
    files = shard(tmp_path, 3)
    tensors = load_file(files[2])
    del tensors[sorted(tensors)[-1]]
    save_file(tensors, files[2])
    reads: list[str] = []
    monkeypatch.setattr("k3agent.backend.model.files.safe_open", lambda file, **_: reads.append(file))
    with pytest.raises(BackendError):
        load_model(tmp_path)
    assert reads == []


def test_another_vocabulary_is_named(tmp_path: Path) -> None:
    write_tiny_k3(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["text_config"]["vocab_size"] = 300
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(
        ModelFilesError, match=r"embed_tokens.weight has shape \[256, 64\].*vocab_size is 300"
    ):
        load_model(tmp_path)


PEAK = """
import resource, sys
import torch
from k3agent.backend.model.weights import load_model
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
import safetensors.torch
torch.zeros(1).exp()
before = peak()
model = load_model(sys.argv[1], torch.bfloat16)
print(peak() - before, sum(t.untyped_storage().nbytes() for t in {
    t.untyped_storage().data_ptr(): t for t in model.destinations().values()}.values()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak in the unit of Linux")
def test_peak_memory_is_the_model_and_one_file(tmp_path: Path) -> None:
    write_tiny_k3(
        tmp_path, vocab_size=4096, hidden_size=512, num_experts=64, moe_intermediate_size=512,
        routed_expert_hidden_size=512, intermediate_size=2048,
    )  # fmt: skip
    files = shard(tmp_path, 8)
    largest, total = max(f.stat().st_size for f in files), sum(f.stat().st_size for f in files)
    command = [sys.executable, "-P", "-c", PEAK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    growth, size = map(int, done.stdout.split())
    assert total > 100 << 20
    # 24 MiB: the tables of names and what the allocator keeps
    assert growth < size + largest + (24 << 20), (growth, size, largest, total)
    assert size < 1.1 * total

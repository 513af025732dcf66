"""The name of a saved cache changes with all that its numbers depend on."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from k3agent.backend.engine import fingerprint as module  # noqa: E402  # after the skip
from k3agent.backend.engine.fingerprint import fingerprint  # noqa: E402

SIZE = 4096


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "_SAMPLE_BYTES", 16)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(SIZE))
    return tmp_path


def name(folder: Path, grid: int = 512, layout: str = "tp1ep1", dtype: str = "float32") -> str:
    return fingerprint(folder, getattr(torch, dtype), torch.device("cpu"), grid, layout)


def change(folder: Path, place: int) -> None:
    """One byte, without a trace in size or age."""
    file = folder / "model.safetensors"
    age = file.stat().st_mtime_ns
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(age, age))


def test_it_is_the_same_for_the_same(folder: Path) -> None:
    assert name(folder) == name(folder)


def test_settings_count(folder: Path) -> None:
    names = {name(folder), name(folder, grid=64), name(folder, layout="tp2ep1")}
    names.add(name(folder, dtype="float64"))
    names.add(fingerprint(folder, torch.float32, torch.device("cpu"), 512, "tp1ep1", "triton 3.6.0 route"))
    assert len(names) == 5


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "more.safetensors"])
def test_files_count(folder: Path, file: str) -> None:
    before = name(folder)
    (folder / file).write_text('{"a": 1}')
    assert name(folder) != before


@pytest.mark.parametrize("place", [0, 100, SIZE // 2 - 50, SIZE - 100])
def test_each_byte_of_a_small_file_counts(folder: Path, place: int) -> None:
    before = name(folder)
    change(folder, place)
    assert name(folder) != before


def test_of_a_large_file_age_and_pieces_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WHOLE_BYTES", 64)
    seen = {name(folder)}
    for place in (0, SIZE // 2, SIZE - 1):
        change(folder, place)
        seen.add(name(folder))
    os.utime(folder / "model.safetensors", ns=(5, 5))
    seen.add(name(folder))
    assert len(seen) == 5


def test_threads_count_on_a_cpu(folder: Path) -> None:
    before, threads = name(folder), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert name(folder) != before
    finally:
        torch.set_num_threads(threads)

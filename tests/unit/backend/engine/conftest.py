"""A tiny K3 on the CPU, written once."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.tiny_k3 import write_tiny_k3  # noqa: E402  # after the skip, because it imports torch
from support.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer  # noqa: E402


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-k3")
    write_tiny_k3(folder, vocab_size=VOCAB_SIZE)
    write_tiny_tokenizer(folder)
    return folder

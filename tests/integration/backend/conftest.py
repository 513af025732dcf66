"""Tiny K3 with its vocabulary on disk, in two moods: one that never ends, one that soon closes what it
opened.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from safetensors.torch import load_file, save_file
from support.serving import Running, Start, starter
from support.tiny_k3 import write_tiny_k3
from support.tiny_tokenizer import MEDIA_PAD, VOCAB_SIZE, write_tiny_tokenizer

from k3agent.backend.chat.tokenizer import Tokenizer  # after the skip


def write_model(folder: Path, **overrides: int) -> Path:
    folder.mkdir(parents=True)
    write_tiny_k3(folder, vocab_size=VOCAB_SIZE, max_position_embeddings=8192, **overrides)
    write_tiny_tokenizer(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No server of a test keeps anything in the user's folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny-k3")


@pytest.fixture(scope="session")
def seeing_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an image encoder."""
    return write_model(tmp_path_factory.mktemp("seeing") / "tiny-k3", vision=MEDIA_PAD)


@pytest.fixture(scope="session")
def hurried_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a long head row for the closing marker: sampled, it wins in about every other
    place.
    """
    folder = write_model(tmp_path_factory.mktemp("hurried") / "tiny-k3")
    close = Tokenizer.from_dir(folder).special("<|close|>")
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if name.endswith("lm_head.weight"):
                tensor[close] *= 60
        save_file(tensors, file)
    return folder


@pytest.fixture(scope="module")
def start(tiny_dir: Path) -> Iterator[Start]:
    with starter(tiny_dir) as start:
        yield start


@pytest.fixture(scope="module")
def server(start: Start, hurried_dir: Path) -> Running:
    return start(model=hurried_dir)


@pytest.fixture(scope="module")
def seeing(start: Start, seeing_dir: Path) -> Running:
    return start(model=seeing_dir)


@pytest.fixture(scope="module")
def endless(start: Start) -> Running:
    return start()

"""A folder of weights is data: nothing in it is run, unpickled, imported or followed out of the folder."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_k3 import write_tiny_k3
from support.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.errors import ModelFilesError
from k3agent.backend.model.weights import load_model

LOADS = """
import sys
seen = []
def watch(event, args):
    if event in ("exec", "import", "open", "pickle.find_class", "subprocess.Popen", "os.system", "os.exec",
                 "socket.connect", "ctypes.dlopen"):
        seen.append((event, repr(args)[:400]))
from pathlib import Path
from k3agent.backend.chat.images import ImageSettings
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.cli import default_sampling
from k3agent.backend.config import ModelConfig
from k3agent.backend.model.weights import load_model
folder = Path(sys.argv[1])
sys.addaudithook(watch)
ModelConfig.from_dir(folder)
Tokenizer.from_dir(folder)
default_sampling(folder, 300)
load_model(folder)
import json
print(json.dumps(seen))
"""


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self._path}",)


def plant(folder: Path, mark: Path) -> None:
    """Everything that loaders with remote code or pickles would run."""
    code = f"open({str(mark)!r}, 'w').write('ran')\nclass Evil:\n    pass\n"
    for name in ("modeling_kimi", "configuration_kimi", "tokenization_kimi", "__init__", "setup",
                 "conftest", "sitecustomize", "torch", "json", "numpy"):  # fmt: skip
        (folder / f"{name}.py").write_text(code)
    for name in ("pytorch_model.bin", "model.pt", "model.pkl", "training_args.bin", "a.00.pth"):
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    auto_map = {"AutoConfig": "configuration_kimi.Evil", "AutoModelForCausalLM": "modeling_kimi.Evil"}
    for name, more in (
        ("config.json", {"auto_map": auto_map, "trust_remote_code": True}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tokenization_kimi.Evil", None]},
                                   "chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}),
        ("generation_config.json", {"custom_generate": "modeling_kimi", "temperature": 0.5}),
        ("preprocessor_config.json", {"auto_map": {"AutoProcessor": "modeling_kimi.Evil"}}),
    ):  # fmt: skip
        path = folder / name
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **more}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    made.mkdir()
    write_tiny_k3(made, vocab_size=VOCAB_SIZE)
    write_tiny_tokenizer(made)
    return made


def test_nothing_of_the_folder_is_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    plant(folder, mark)
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(folder)], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONSAFEPATH": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert not mark.exists()
    seen = json.loads(done.stdout.splitlines()[-1])
    assert not [event for event in seen if event[0] not in ("open", "import", "exec", "ctypes.dlopen")], seen
    of_folder = [event for event in seen if str(folder) in event[1]]
    assert {event[0] for event in of_folder} == {"open"}
    opened = {
        name
        for name in (path.name for path in folder.iterdir())
        for event in of_folder
        if f"/{name}'" in event[1]
    }
    assert opened <= {
        "config.json", "tokenizer_config.json", "tiny.tiktoken", "generation_config.json", "model.safetensors"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl"])
def test_pickled_weights_alone_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(ModelFilesError, match=r"has no \.safetensors file"):
        load_model(folder)
    assert not mark.exists()


@pytest.mark.parametrize("place", ["../outside", "/etc/passwd", "sub/ranks"])
def test_the_tokenizer_stays_in_the_folder(folder: Path, place: str) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "ranks": place}))
    with pytest.raises(ModelFilesError, match="must name a file of the folder"):
        Tokenizer.from_dir(folder)

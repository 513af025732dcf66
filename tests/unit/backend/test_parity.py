"""The model against numbers of the released code (miniature checkpoints), when the fixtures are there."""

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.tiny_k3 import write_tiny_k3

from k3agent.backend import parity

FIXTURES = Path(__file__).resolve().parents[4] / "shared" / "fixtures"
TOKENS = 37


def folder(name: str) -> Path:
    if not (FIXTURES / name).exists():
        pytest.skip(f"{FIXTURES / name} is not there")
    return FIXTURES / name


def largest(name: str, dtype: torch.dtype, pieces: list[int] | None = None) -> dict[str, float]:
    return {d.name: d.largest for d in parity.compare(folder(name), dtype, pieces)}


@pytest.mark.parametrize("pieces", [[TOKENS], [1] * TOKENS, [10, 1, 26]], ids=["whole", "single", "pieces"])
def test_float64_agrees_to_1e_9(pieces: list[int]) -> None:
    found = largest("tiny-k3-float64", torch.float64, pieces)
    assert set(found) == {"logits", "layer_out", "kda_state_vk", "logits_cached"}
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("name", ["tiny-k3", "tiny-kimi-linear"])
def test_float32_agrees_to_2e_3(name: str) -> None:
    found = parity.compare(folder(name), torch.float32)
    assert all(d.agrees for d in found), found
    assert all(d.tolerance == 2e-3 for d in found if d.name != "layer_out"), found


def test_the_running_sum_is_measured_by_its_size() -> None:
    small, large = torch.full((2, 3, 8), 3.0), torch.full((2, 3, 8), 40.0)

    def agrees(name: str, expected: torch.Tensor, error: float, dtype: torch.dtype = torch.float32) -> bool:
        return parity.difference(name, expected + error, expected, dtype).agrees

    assert agrees("layer_out", small, 1.9e-3) and not agrees("layer_out", small, 2.1e-3)
    assert agrees("layer_out", large, 1.9e-2) and not agrees("layer_out", large, 2.1e-2)
    assert not agrees("logits", large, 2.1e-3)
    assert not agrees("layer_out", large.double(), 1e-8, torch.float64)


def test_every_array_is_compared() -> None:
    with np.load(folder("tiny-k3") / "oracle.npz") as stored:
        inputs = {"input_ids", "pixel_values", "grid_thws", "mm_input_ids"}
        assert set(largest("tiny-k3", torch.float32)) == set(stored.files) - inputs


@pytest.mark.parametrize("name", ["tiny-k3", "tiny-kimi-linear"])
def test_bfloat16_is_near(name: str) -> None:
    found = parity.compare(folder(name), torch.bfloat16)
    assert all(d.agrees and d.tolerance is None for d in found), found


def test_a_wrong_weight_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder("tiny-k3-float64"), tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.chmod(0o644)
    (tmp_path / "m").chmod(0o755)
    tensors = load_file(file)
    tensors["language_model.model.layers.4.mlp_res_proj.weight"][0, 0] += 0.01
    save_file(tensors, file)
    assert parity.main([str(tmp_path / "m"), "--dtype", "float64", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["agrees"] and not any(one["agrees"] for one in report["arrays"] if "log" in one["name"])


def test_chat_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors, tokenizer = folder("kimi-chat") / "vectors.json", folder("kimi-tokenizer")
    assert parity.main(["--chat", str(vectors), "--tokenizer", str(tokenizer), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["prompts"]) == len(json.loads(vectors.read_text()))
    cases = json.loads(vectors.read_text())
    cases["one_user"]["token_ids"][70] += 1
    cases["low"]["token_ids"].pop()
    (tmp_path / "v.json").write_text(json.dumps(cases))
    assert parity.main(["--chat", str(tmp_path / "v.json"), "--tokenizer", str(tokenizer)]) == 1
    text = capsys.readouterr().out
    assert "DIFFERS from id 70 on" in text and text.count("DIFFERS") == 2


def test_chat_vectors_with_images_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = io.BytesIO()
    Image.new("RGBA", (57, 30)).save(content, "PNG")
    url = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    case = {"messages": [{"role": "user", "content": [image]}], "token_ids": []}
    file, tokenizer = tmp_path / "v.json", folder("kimi-tokenizer")
    file.write_text(json.dumps({"seen": case}))
    [found] = parity.compare_prompts(file, tokenizer)
    case["messages"][0]["content"] = "hi"
    file.write_text(json.dumps({"plain": case}))
    [plain] = parity.compare_prompts(file, tokenizer)
    assert not found.agrees and not plain.agrees
    case["messages"][0]["content"] = 5
    file.write_text(json.dumps({"broken": case}))
    assert parity.main(["--chat", str(file), "--tokenizer", str(tokenizer)]) == 2
    assert f"{file}: the prompt broken cannot be rendered" in capsys.readouterr().err


def test_kimi_linear_token_by_token() -> None:
    assert max(largest("tiny-kimi-linear", torch.float32, [1] * TOKENS).values()) < 2e-3


def test_command_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(folder("tiny-k3-float64")), "--dtype", "float64"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "agrees"


def test_command_names_missing_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(tmp_path)]) == 2
    assert "oracle.npz does not exist" in capsys.readouterr().err
    (tmp_path / "oracle.npz").write_bytes(b"PK\x03\x04 cut")
    assert parity.main([str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    np.savez(tmp_path / "oracle.npz", logits=np.zeros(1))
    assert parity.main([str(tmp_path)]) == 2
    assert "nothing can be run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parity.main(["--chat", "x"])


def test_command_names_a_foreign_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_k3(tmp_path, vocab_size=64)
    np.savez(tmp_path / "oracle.npz", input_ids=np.array([1, 64]), logits=np.zeros((2, 64)))
    assert parity.main([str(tmp_path)]) == 2
    assert "vocab_size of 64" in capsys.readouterr().err

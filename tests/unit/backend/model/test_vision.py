"""The image encoder: parts against definitions, independence of items, and merging into the text."""

import math
from pathlib import Path

import pytest
import torch
from support.model_harness import Harness, Place
from support.tiny_k3 import write_tiny_k3

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.model.inputs import ForwardBatch
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.vision import NORM_EPS, PositionTable, VisionNorm, rotary_turns, rotate
from k3agent.backend.model.weights import load_model

PAD = 250
EXACT = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> K3ForCausalLM:
    folder = tmp_path_factory.mktemp("vision")
    write_tiny_k3(folder, vision=PAD)
    return load_model(folder, torch.float64)


def pixels(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 14, 14, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_items_do_not_see_each_other(model: K3ForCausalLM) -> None:
    grids = [(1, 4, 6), (3, 2, 2), (1, 2, 8)]
    items = [pixels(t * h * w, n) for n, (t, h, w) in enumerate(grids)]
    together = model.encode_images(torch.cat(items), grids)
    alone = [model.encode_images(item, [grid]) for item, grid in zip(items, grids, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), **EXACT)
    assert [len(part) for part in alone] == [6, 1, 4]


def test_attention_sees_the_whole_item(model: K3ForCausalLM) -> None:
    image = pixels(24)
    before = model.encode_images(image, [(1, 4, 6)])
    image[23] += 1
    after = model.encode_images(image, [(1, 4, 6)])
    assert ((before - after).abs().amax(-1) > 1e-6).all()


def test_rotation_turns_columns_and_rows_at_their_own_speed() -> None:
    turns = rotary_turns((2, 3, 5), 16, torch.float64, torch.device("cpu"))
    assert turns.shape == (30, 8)
    for place, (row, column) in enumerate([(r, c) for r in range(3) for c in range(5)] * 2):
        for i in range(4):
            speed = 10000 ** (-4 * i / 16)
            assert turns[place, 2 * i].angle().item() == pytest.approx(
                math.remainder(column * speed, math.tau)
            )
            assert turns[place, 2 * i + 1].angle().item() == pytest.approx(
                math.remainder(row * speed, math.tau)
            )
    x = torch.randn(2, 30, 16, dtype=torch.float64)
    turned = rotate(x, turns)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    quarter = rotate(
        torch.tensor([[[1.0, 0.0]]]), torch.polar(torch.ones(1, 1), torch.full((1, 1), math.pi / 2))
    )
    torch.testing.assert_close(quarter, torch.tensor([[[0.0, 1.0]]]))


def test_positions(model: K3ForCausalLM) -> None:
    assert model.vision_tower is not None
    table: PositionTable = model.vision_tower.patch_embed.pos_emb
    plain = table((1, 6, 5))
    assert torch.equal(plain, table.weight.flatten(0, 1))
    frames = table((2, 6, 5)).unflatten(0, (2, 30))
    waves = [(math.sin(10000 ** (-i / 16)), math.cos(10000 ** (-i / 16))) for i in range(16)]
    second = torch.tensor([s for s, _ in waves] + [c for _, c in waves], dtype=torch.float64)
    torch.testing.assert_close(frames[1] - plain, second.expand(30, -1), **EXACT)
    first = torch.tensor([0.0] * 16 + [1.0] * 16, dtype=torch.float64)
    torch.testing.assert_close(frames[0] - plain, first.expand(30, -1), **EXACT)
    # twice as large: a new sample lies a quarter between two old ones, or on the border
    stretched = table((1, 12, 10)).unflatten(0, (12, 10))
    torch.testing.assert_close(stretched[0, 0], table.weight[0, 0], **EXACT)
    torch.testing.assert_close(
        stretched[0, 1], 0.75 * table.weight[0, 0] + 0.25 * table.weight[0, 1], **EXACT
    )


def test_norm_multiplies_before_the_cast() -> None:
    norm = VisionNorm(8, NORM_EPS, torch.bfloat16)
    norm.weight.copy_(torch.linspace(0.5, 1.5, 8))
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    expected = torch.nn.functional.rms_norm(x.float(), (8,), norm.weight.float(), NORM_EPS).bfloat16()
    assert torch.equal(norm(x), expected)


@pytest.mark.parametrize("cut", [(23,), (5, 18), (7, 1, 1, 14), (1,) * 23])
def test_features_replace_placeholders_in_any_pieces(model: K3ForCausalLM, cut: tuple[int, ...]) -> None:
    """The definition: a model whose embedding of these tokens is the feature."""
    features = model.encode_images(pixels(24), [(1, 4, 6)])
    ids = torch.arange(23)
    ids[6:12] = PAD
    harness = Harness(model)
    place, found, done = Place([0], 0), [], 0
    for count in cut:
        rows = [i for i in range(done, done + count) if 6 <= i < 12]
        batch = ForwardBatch(
            ids[done : done + count],
            [0, count],
            [done],
            torch.tensor([[0]]),
            [0],
            [done > 0],
            torch.arange(count),
        )
        if rows:
            batch.image_rows = torch.tensor(rows) - done  # type: ignore[assignment]
            batch.image_features = features[rows[0] - 6 : rows[-1] - 5]
        found.append(model(batch, harness.cache))
        done += count
    table = model.model.embed_tokens.weight
    kept = table[PAD : PAD + 6].clone()
    try:
        # six ids that occur nowhere else stand for the six features
        table[PAD : PAD + 6] = features
        ids[6:12] = torch.arange(PAD, PAD + 6)
        expected = Harness(model).run(ids, [23], place)
    finally:
        table[PAD : PAD + 6] = kept
    torch.testing.assert_close(torch.cat(found), expected, **EXACT)


def test_refusals(model: K3ForCausalLM, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="cannot be merged"):
        model.encode_images(pixels(3), [(1, 1, 3)])
    with pytest.raises(BackendError, match="the grids need"):
        model.encode_images(pixels(5), [(1, 2, 2)])
    with pytest.raises(BackendError, match="5 frames"):
        model.encode_images(pixels(20), [(5, 2, 2)])
    with pytest.raises(BackendError, match="over 512"):
        rotary_turns((1, 2, 514), 16, torch.float32, torch.device("cpu"))
    batch = ForwardBatch(torch.arange(2), [0, 2], [0], torch.tensor([[0]]), [0], [False])
    batch.image_rows = torch.tensor([0])  # type: ignore[assignment]
    with pytest.raises(BackendError, match="do not belong together"):
        model(batch, Harness(model).cache)
    write_tiny_k3(tmp_path)
    with pytest.raises(BackendError, match="reads no images"):
        load_model(tmp_path).encode_images(pixels(4), [(1, 2, 2)])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("merge_type", "other", "merge_type 'other' is not supported"),
        ("text_hidden_size", 99, "text_hidden_size 99"),
        ("qkv_hidden_size", 50, "qkv_hidden_size 50"),
    ],
)
def test_other_encoders_are_refused(tmp_path: Path, field: str, value: object, message: str) -> None:
    write_tiny_k3(tmp_path, vision=PAD)
    import json

    raw = json.loads((tmp_path / "config.json").read_text())
    raw["vision_config"][field] = value
    with pytest.raises(BackendError, match=message):
        ModelConfig.from_dict(raw)

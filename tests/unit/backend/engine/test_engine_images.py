"""Images in the engine: prefixes are told apart, the encoder runs at most once, chunks may cut an image."""

import base64
import io
import itertools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from support.tiny_k3 import write_tiny_k3  # noqa: E402  # after the skip
from support.tiny_tokenizer import MEDIA_PAD, VOCAB_SIZE, write_tiny_tokenizer  # noqa: E402

from k3agent.backend.chat.images import ImageReader, ImageSettings  # noqa: E402
from k3agent.backend.chat.template import Rendered, render  # noqa: E402
from k3agent.backend.chat.tokenizer import Tokenizer  # noqa: E402
from k3agent.backend.engine.engine import Engine  # noqa: E402
from k3agent.backend.engine.images import place_images  # noqa: E402
from k3agent.backend.engine.messages import Add, EngineSettings, Finished, Generated, SamplingParams  # noqa: E402
from k3agent.backend.engine.runner import Runner  # noqa: E402
from k3agent.backend.errors import BackendError  # noqa: E402

names = itertools.count()


@pytest.fixture(scope="module")
def seeing_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    write_tiny_k3(folder, vocab_size=VOCAB_SIZE, vision=MEDIA_PAD)
    write_tiny_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(seeing_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(seeing_dir)


@pytest.fixture
def runner(seeing_dir: Path) -> Runner:
    return Runner.load(EngineSettings(model_dir=str(seeing_dir), threads=1, cache_bytes=8 << 20))[0]


def url(*colour: int, size: tuple[int, int] = (280, 280)) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def prompt(tokenizer: Tokenizer, *urls: str) -> Rendered:
    parts = [
        {"type": "text", "text": "look:"},
        *({"type": "image_url", "image_url": {"url": u}} for u in urls),
    ]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]}]
    return render(tokenizer, messages, read_image=ImageReader(ImageSettings()))


def ask(engine: Engine, rendered: Rendered, **options: Any) -> tuple[list[int], int]:
    """Generated ids, and how many prompt tokens came from the cache."""
    params = SamplingParams(temperature=0, max_tokens=8)
    request = Add(
        request_id=f"r{next(names)}",
        token_ids=rendered.token_ids,
        params=params,
        images=tuple(rendered.images),
        **options,
    )
    engine.add(request)
    ids: list[int] = []
    cached = -1
    while engine.has_work:
        for report in engine.step():
            if isinstance(report, Generated):
                ids += report.token_ids
            if isinstance(report, Finished):
                cached = report.num_cached
    return ids, cached


def test_images_of_one_size_are_told_apart(runner: Runner, tokenizer: Tokenizer) -> None:
    engine = Engine(runner, tokenizer, EngineSettings(model_dir=""))
    red, blue = prompt(tokenizer, url(255, 0, 0)), prompt(tokenizer, url(0, 0, 255))
    assert red.token_ids == blue.token_ids and len(red.images[0].image.pixels) == 280 * 280 * 3
    before = red.images[0].position
    first, cached = ask(engine, red)
    assert cached == 0
    other, cached = ask(engine, blue)
    assert cached <= before
    again, cached = ask(engine, red)
    assert again == first and cached > before + 100
    assert other != first
    fresh = Engine(runner, tokenizer, EngineSettings(model_dir=""))
    assert ask(fresh, blue)[0] == other


def test_chunks_may_cut_an_image_and_the_encoder_runs_once(
    runner: Runner, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = prompt(tokenizer, url(9, 8, 7), url(1, 2, 3, size=(56, 28)))
    expected, _ = ask(Engine(runner, tokenizer, EngineSettings(model_dir="")), rendered)
    calls: list[Any] = []
    encode = runner.model.encode_images
    monkeypatch.setattr(
        runner.model, "encode_images", lambda pixels, grids: calls.append(grids) or encode(pixels, grids)
    )
    engine = Engine(runner, tokenizer, EngineSettings(model_dir="", grid=64))
    assert ask(engine, rendered)[0] == expected
    assert calls == [[(1, 20, 20)], [(1, 2, 4)]]
    calls.clear()
    assert ask(engine, rendered)[0] == expected
    assert calls == []


def test_placeholders_must_be_there(tokenizer: Tokenizer) -> None:
    rendered = prompt(tokenizer, url(1, 1, 1))
    ids, spans = place_images(rendered.token_ids, rendered.images, VOCAB_SIZE)
    assert len(spans) == 1 and spans[0].stop - spans[0].start == 100
    assert len(set(ids[spans[0].start : spans[0].stop])) == 1 and VOCAB_SIZE <= ids[spans[0].start] < 2**63
    with pytest.raises(BackendError, match="placeholders are missing"):
        place_images(rendered.token_ids[:50], rendered.images, VOCAB_SIZE)

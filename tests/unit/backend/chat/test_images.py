"""Image preprocessing: the released check values, padding, transparency, patches, refusals."""

import base64
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

from k3agent.backend.chat.images import (  # noqa: E402  # after the skip
    ImageReader,
    ImageSettings,
    PreparedImage,
    patches,
    plan_layout,
    prepare_image,
    read_data_url,
)
from k3agent.backend.errors import BadRequestError, ModelFilesError  # noqa: E402

RELEASED = ImageSettings()


def encoded(image: "Image.Image", kind: str = "PNG") -> bytes:  # pyright: ignore[reportInvalidTypeForm]
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def data_url(image: "Image.Image") -> str:  # pyright: ignore[reportInvalidTypeForm]
    return "data:image/png;base64," + base64.b64encode(encoded(image)).decode()


def pixels(image: PreparedImage) -> "np.ndarray":  # pyright: ignore[reportInvalidTypeForm]
    layout = image.layout
    return np.frombuffer(image.pixels, np.uint8).reshape(layout.padded_height, layout.padded_width, 3)


@pytest.mark.parametrize(
    ("size", "resized", "grid", "tokens"),
    [
        ((28, 28), (28, 28), (2, 2), 1),
        ((1024, 768), (1024, 768), (56, 74), 1036),
        ((640, 480), (640, 480), (36, 46), 414),
        ((4000, 3000), None, (216, 286), 15444),
        ((8000, 100), (7168, 89), (8, 512), 1024),
        ((1, 1), (1, 1), (2, 2), 1),
        ((10000, 10000), (3585, 3585), (258, 258), 16641),
    ],
)
def test_released_sizes(size: tuple, resized: tuple | None, grid: tuple, tokens: int) -> None:
    layout = plan_layout(*size, RELEASED)
    assert (layout.rows, layout.columns) == grid and layout.num_tokens == tokens
    assert layout.grid == (1, *grid) and (layout.width, layout.height) == size
    assert resized is None or (layout.resized_width, layout.resized_height) == resized


@given(st.integers(1, 40_000), st.integers(1, 40_000))
def test_every_size_keeps_the_limits(width: int, height: int) -> None:
    layout = plan_layout(width, height, RELEASED)
    assert layout.rows <= 512 and layout.columns <= 512 and layout.rows % 2 == 0 == layout.columns % 2
    assert layout.resized_width <= width and layout.resized_height <= height
    assert layout.num_tokens * 4 == layout.rows * layout.columns


def test_small_images_are_padded_with_black_and_not_resized() -> None:
    source = Image.fromarray(np.arange(30 * 20 * 3, dtype=np.uint8).reshape(20, 30, 3))
    found = prepare_image(encoded(source), RELEASED)
    canvas = pixels(found)
    assert canvas.shape == (28, 56, 3)
    assert (canvas[:20, :30] == np.asarray(source)).all()
    assert not canvas[20:].any() and not canvas[:, 30:].any()


def test_patches_are_row_major_and_normalised() -> None:
    source = np.zeros((28, 56, 3), dtype=np.uint8)
    source[3, 17] = (255, 0, 51)
    source[14, 0, 1] = 255
    cut = patches(prepare_image(encoded(Image.fromarray(source)), RELEASED), RELEASED)
    assert cut.shape == (8, 3, 14, 14) and cut.dtype == np.float32
    assert cut[1, :, 3, 3].tolist() == pytest.approx([1.0, -1.0, -0.6])
    # second row of patches begins at number 4
    assert cut[4, 1, 0, 0] == 1.0
    assert (cut == -1.0).sum() == cut.size - 3


def test_transparent_parts_show_the_board() -> None:
    found = pixels(prepare_image(encoded(Image.new("RGBA", (28, 28), (255, 0, 0, 0))), RELEASED))
    for y, x, expected in ((0, 0, 255), (0, 7, 255), (0, 8, 180), (8, 0, 180), (8, 8, 255), (27, 27, 255)):
        assert found[y, x].tolist() == [expected] * 3


def test_half_transparent_parts_mix_in_float32_and_are_cut_off() -> None:
    found = pixels(prepare_image(encoded(Image.new("RGBA", (28, 28), (10, 200, 30, 100))), RELEASED))
    alpha = np.float32(100) / np.float32(255)
    expected = [int(alpha * np.float32(c) + (1 - alpha) * np.float32(255)) for c in (10, 200, 30)]
    assert found[0, 0].tolist() == expected


def test_the_board_is_laid_at_the_resized_size_and_hidden_colours_do_not_bleed() -> None:
    settings = ImageSettings(max_patches=4)
    source = np.zeros((112, 112, 4), dtype=np.uint8)
    source[..., 0] = 255  # red everywhere, but the right half is transparent
    source[:, :56, 3] = 255
    found = pixels(prepare_image(encoded(Image.fromarray(source)), settings))
    assert found.shape == (28, 28, 3)
    assert found[0, 0].tolist() == [255, 0, 0]
    # x 24..27, y 0..7: square 3, so grey; without premultiplied alpha it would be tinted red
    assert found[0, 26].tolist() == [180, 180, 180]


def test_without_a_board_alpha_is_dropped() -> None:
    settings = ImageSettings.from_dict({"transparent_bg_config": None})
    found = pixels(prepare_image(encoded(Image.new("RGBA", (28, 28), (9, 8, 7, 0))), settings))
    assert (found == (9, 8, 7)).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "I;16", "CMYK"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_modes_and_formats(mode: str, kind: str) -> None:
    source = Image.new(mode, (40, 30))
    try:
        content = encoded(source, kind)
    except (OSError, ValueError):
        pytest.skip(f"pillow writes no {kind} of mode {mode}")
    assert prepare_image(content, RELEASED).layout.grid == (1, 4, 4)


def test_settings_come_from_the_file(tmp_path: Path) -> None:
    assert ImageSettings.from_dir(tmp_path) == RELEASED
    board = {"pattern": "chessboard", "chessboard_square_size": 16, "chessboard_gray_value": 200}
    raw = {"media_proc_cfg": {"in_patch_limit": 100, "image_mean": [0, 0, 0], "transparent_bg_config": board}}
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(raw))
    found = ImageSettings.from_dir(tmp_path)
    assert found.max_patches == 100 and found.mean == (0.0, 0.0, 0.0) and found.std == (0.5, 0.5, 0.5)
    assert found.board is not None and (found.board.square, found.board.gray) == (16, 200)
    raw["media_proc_cfg"]["transparent_bg_fill_stage"] = "before_resize"
    file.write_text(json.dumps(raw))
    with pytest.raises(ModelFilesError, match="before_resize"):
        ImageSettings.from_dir(tmp_path)
    file.write_text("[")
    with pytest.raises(ModelFilesError, match=r"preprocessor_config.json"):
        ImageSettings.from_dir(tmp_path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/a.png", "data:image"),
        ("file:///etc/passwd", "data:image"),
        ("data:text/plain;base64,AAAA", "text/plain"),
        ("data:image/png,AAAA", "base64"),
        ("data:image/png;base64,@@@", "no valid base64"),
        ("data:image/png;base64,AAAA", "no known format"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), "no known format"),
    ],
)
def test_what_is_no_image_is_refused(url: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        ImageReader(RELEASED)(url)


def test_cut_files_are_refused() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise))
    with pytest.raises(BadRequestError, match="cannot be decoded"):
        prepare_image(content[: len(content) // 2], RELEASED)


def test_reader_remembers_and_forgets() -> None:
    reader = ImageReader(RELEASED, max_kept_bytes=2 * 28 * 28 * 3)
    urls = [data_url(Image.new("RGB", (28, 28), (n, 0, 0))) for n in range(3)]
    first = reader(urls[0])
    assert reader(urls[0]) is first
    assert reader(urls[1]).digest != first.digest
    reader(urls[2])
    again = reader(urls[0])
    assert again is not first and again == first and again.digest == first.digest
    assert read_data_url(urls[0]) == encoded(Image.new("RGB", (28, 28), (0, 0, 0)))

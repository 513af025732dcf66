"""Images in the conversation: a picture of half blocks, or words; and files that are none."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.screens import running

from k3agent.config.settings import Settings
from k3agent.providers.scripted import Step
from k3agent.tui import graphics
from k3agent.tui.theme import PALETTES
from k3agent.tui.widgets import thumbnail
from k3agent.tui.widgets.block import Row
from k3agent.tui.widgets.message import UserBlock
from k3agent.tui.widgets.thumbnail import COLUMNS, ROWS, Thumbnail
from k3agent.types import ImagePart

Image = pytest.importorskip("PIL.Image")
DARK = PALETTES["dark"]
RED, BLUE = (255, 0, 0, 255), (0, 0, 255, 255)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no pictures of its own."""
    monkeypatch.setattr(graphics, "TERMINAL", graphics.Graphics())


def encoded(image: Any, kind: str = "PNG") -> bytes:
    file = BytesIO()
    image.save(file, kind)
    return file.getvalue()


def flag(size: tuple[int, int] = (360, 200)) -> Any:
    """Red above, blue below."""
    image = Image.new("RGBA", size, RED)
    image.paste(BLUE, (0, size[1] // 2, *size))
    return image


def drawn(data: bytes, width: int = 80, *, is_drawn: bool = True) -> list[Row]:
    return Thumbnail(ImagePart(mime="image/png", data=data)).rows(width, DARK, is_drawn=is_drawn)


def words(rows: list[Row]) -> str:
    return "".join(part.text for part in rows[-1])


def colours(row: Row) -> set[tuple[str, str]]:
    return {
        (part.style.color.get_truecolor().hex, part.style.bgcolor.get_truecolor().hex)
        for part in row
        if part.style is not None and part.style.color is not None and part.style.bgcolor is not None
    }


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "BMP", "JPEG"])
def test_an_image_is_drawn_with_two_pixels_to_a_cell(kind: str) -> None:
    rows = drawn(encoded(flag().convert("RGB"), kind))
    assert len(rows) == ROWS + 1
    assert all("".join(part.text for part in row) == "▀" * COLUMNS for row in rows[:-1])
    assert words(rows).startswith("[image: PNG · 360 × 200 · ")
    if kind == "PNG":
        assert colours(rows[0]) == {("#ff0000", "#ff0000")} and colours(rows[-2]) == {("#0000ff", "#0000ff")}


def test_shape_is_kept_and_the_last_half_is_the_ground() -> None:
    rows = drawn(encoded(Image.new("RGB", (40, 1000))))
    assert len(rows) == ROWS + 1 and rows[0][0].text == "▀"
    rows = drawn(encoded(Image.new("RGB", (36, 3), "red")))
    assert len(rows) == 3
    assert {upper for upper, _ in colours(rows[1])} == {"#ff0000"}
    assert {lower for _, lower in colours(rows[1])} != {"#ff0000"}


def test_what_is_transparent_shows_the_ground() -> None:
    (upper, lower) = next(iter(colours(drawn(encoded(Image.new("RGBA", (36, 20), (255, 0, 0, 0))))[0])))
    assert upper == lower != "#ff0000"


@pytest.mark.parametrize("width", [10, COLUMNS - 1])
def test_where_there_is_no_room_it_is_words(width: int) -> None:
    assert len(drawn(encoded(flag()), width)) == 1


def test_no_colours_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphics, "TERMINAL", graphics.Graphics("none"))
    assert words(drawn(encoded(flag()))).startswith("[image: PNG · ")
    assert len(drawn(encoded(flag()))) == 1


def test_without_pillow_it_says_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    rows = drawn(PNG)
    assert len(rows) == 1 and "pip install 'k3agent[images]'" in words(rows)


def test_large_images_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thumbnail, "MAX_PIXELS", 360 * 200 - 1)
    rows = drawn(encoded(flag()))
    assert len(rows) == 1 and "360 × 200" in words(rows)
    monkeypatch.setattr(thumbnail, "MAX_BYTES", 10)
    assert len(drawn(encoded(flag()))) == 1


def test_a_bomb_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert "cannot be shown" in words(drawn(encoded(flag())))


PNG = encoded(flag((60, 40)))
JPEG = encoded(flag((60, 40)).convert("RGB"), "JPEG")
GIF = encoded(flag((60, 40)).convert("RGB"), "GIF")


@settings(deadline=None)
@given(
    data=st.sampled_from([PNG, JPEG, GIF]),
    cut=st.integers(0, 2000),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=8),
)
def test_broken_files_are_words_or_a_picture(data: bytes, cut: int, changes: list[tuple[int, int]]) -> None:
    found = bytearray(data[: len(data) - cut % len(data)])
    for at, value in changes:
        if found:
            found[at % len(found)] = value
    rows = drawn(bytes(found))
    assert words(rows).startswith("[image: PNG · ") and words(rows).endswith("]")
    assert all(len(row) <= COLUMNS for row in rows[:-1])


def test_of_many_images_a_few_are_drawn_until_unfolded() -> None:
    part = ImagePart(mime="image/png", data=PNG)
    block = UserBlock("look", images=[part] * 6)
    folded = len(block.lines(100, DARK))
    block.toggle()
    assert len(block.lines(100, DARK)) == folded + 2 * ROWS


@pytest.mark.parametrize("reader", ["off", "on"])
async def test_the_chat_draws_what_was_sent(tmp_path: Path, reader: str) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/shot.png").write_bytes(PNG)
    answers = [Step(text="I see a flag.")]
    async with running(tmp_path, answers, settings=Settings(ui_screen_reader=reader)) as screen:
        screen.chat.say("look at @shot.png")
        await screen.until("I see a flag.")
        assert "[image: PNG · " in screen.shown
        assert ("▀▀▀" in screen.shown) == (reader == "off")

"""Pictures by the terminal's own means: what is chosen, what is sent, and what the terminal answers."""

from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style
from support.screens import running

from k3agent.config.settings import Settings
from k3agent.providers.scripted import Step
from k3agent.tui import graphics, terminal
from k3agent.tui.graphics import Graphics, by_environment, kitty_rows, kitty_sequence, sixel_rows, sixels
from k3agent.tui.terminal import Answers
from k3agent.tui.theme import PALETTES
from k3agent.tui.widgets.block import Row
from k3agent.tui.widgets.thumbnail import COLUMNS, ROWS, Thumbnail
from k3agent.types import ImagePart

Image = pytest.importorskip("PIL.Image")
DARK = PALETTES["dark"]
SAID = "\x1b[6;18;9t\x1b[?62;4;22c"


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphics, "TERMINAL", Graphics())
    monkeypatch.delenv("NO_COLOR", raising=False)


def png(size: tuple[int, int] = (72, 40)) -> bytes:
    from io import BytesIO

    image = Image.new("RGB", size, "red")
    image.paste((0, 0, 255), (0, size[1] // 2, *size))
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def drawn(protocol: str, **more: Any) -> tuple[list[Row], list[str]]:
    sent: list[str] = []
    graphics.TERMINAL = Graphics(protocol, write=sent.append, **more)
    thumbnail = Thumbnail(ImagePart(mime="image/png", data=png()))
    return thumbnail.rows(80, DARK, is_drawn=True), sent


def decoded(sequence: str) -> tuple[int, int, list[list[tuple[int, int, int] | None]]]:
    """A sixel sequence as pixels."""
    body = re.fullmatch(r'\x1bP0;1;0q"1;1;(\d+);(\d+)(.*)\x1b\\', sequence, re.DOTALL)
    assert body is not None
    width, height = int(body[1]), int(body[2])
    pixels: list[list[tuple[int, int, int] | None]] = [[None] * width for _ in range(height)]
    colors: dict[int, tuple[int, int, int]] = {}
    x = top = color = 0
    for hit in re.finditer(r"#(\d+);2;(\d+);(\d+);(\d+)|#(\d+)|!(\d+)(.)|([$-])|([?-~])", body[3]):
        if hit[1]:
            colors[int(hit[1])] = (int(hit[2]), int(hit[3]), int(hit[4]))
        elif hit[5]:
            color = int(hit[5])
        elif hit[8]:
            x, top = 0, top + (6 if hit[8] == "-" else 0)
        else:
            count, value = int(hit[6] or 1), ord(hit[7] or hit[9]) - 63
            for column in range(x, x + count):
                for bit in range(6):
                    if value >> bit & 1:
                        pixels[top + bit][column] = colors[color]
            x += count
    return width, height, pixels


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"TERM": "xterm-256color"}, "ask"),
        ({"TERM": "xterm-kitty", "COLORTERM": "truecolor"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1", "COLORTERM": "truecolor"}, "kitty"),
        ({"TERM": "xterm-kitty"}, "blocks"),
        ({"TERM": "tmux-256color"}, "blocks"),
        ({"TERM": "xterm-kitty", "COLORTERM": "truecolor", "TMUX": "/tmp/x"}, "blocks"),
        ({"TERM": "screen"}, "blocks"),
    ],
)
def test_what_is_known_without_asking(environ: dict[str, str], found: str) -> None:
    assert by_environment("auto", environ) == found
    assert by_environment("sixel", environ) == "sixel" and by_environment("blocks", environ) == "blocks"


def test_a_terminal_is_asked_once_and_only_for_a_picture() -> None:
    sent: list[str] = []
    changes: list[str] = []
    graphics_ = Graphics("ask", write=sent.append, on_change=lambda: changes.append("x"))
    assert sent == []
    graphics_.needed()
    graphics_.needed()
    assert sent == [graphics.QUESTION]
    graphics_.answered(("62", "4"), (9, 18))
    assert (graphics_.protocol, graphics_.cell, changes) == ("sixel", (9, 18), ["x"])


@pytest.mark.parametrize(
    ("attributes", "cell"),
    [(("62", "22"), (9, 18)), (("62", "4"), None), ((), None), (("4",), (0, 18)), (("4",), (9, 9000))],
)
def test_without_a_clear_yes_it_is_blocks(attributes: tuple[str, ...], cell: tuple[int, int] | None) -> None:
    graphics_ = Graphics("ask")
    graphics_.answered(attributes, cell)
    assert graphics_.protocol == "blocks"


@given(
    data=st.binary(min_size=1, max_size=200),
    width=st.integers(1, 9),
)
def test_sixels_are_the_pixels(data: bytes, width: int) -> None:
    data = data[: len(data) // width * width] or data[:1] * width
    colors = [part for color in range(256) for part in (color % 101, color * 7 % 101, color * 3 % 101)]
    found_width, height, pixels = decoded(sixels(data, width, [round(part * 2.55) for part in colors]))
    assert (found_width, height) == (width, len(data) // width)
    flat = [pixel for row in pixels for pixel in row]
    assert flat == [tuple(colors[3 * color : 3 * color + 3]) for color in data]


def test_each_row_of_cells_draws_its_own_part() -> None:
    rows = sixel_rows(Image.open(_file(png())), 4, 3, (9, 18), Style())
    assert len(rows) == 3
    for row in rows:
        cells, drawing = row
        assert cells.text == "    " and drawing.control and drawing.cell_length == 0
        assert drawing.text.startswith("\x1b7\x1b[4D\x1bP") and drawing.text.endswith("\x1b\\\x1b8")
        width, height, pixels = decoded(drawing.text[len("\x1b7\x1b[4D") : -2])
        assert (width, height) == (36, 18) and all(pixel is not None for line in pixels for pixel in line)


def _file(data: bytes) -> Any:
    from io import BytesIO

    return BytesIO(data)


def test_kitty_gets_the_picture_once_and_cells_with_its_number() -> None:
    rows, sent = drawn("kitty")
    assert len(sent) == 1 and len(rows) == ROWS + 1
    head = re.match(r"\x1b_Ga=T,U=1,i=(\d+),f=100,c=36,r=10,q=2,m=[01];", sent[0])
    assert head is not None
    payload = "".join(re.findall(r"m=[01];([^\x1b]*)\x1b\\", sent[0]))
    assert base64.standard_b64decode(payload).startswith(b"\x89PNG")
    cells = rows[2][0]
    assert cells.text.count(graphics.PLACEHOLDER) == COLUMNS and cells.cell_length == COLUMNS
    assert cells.text[1] == graphics.MARKS[2] and cells.text[2] == graphics.MARKS[0]
    assert cells.style is not None and cells.style.color is not None
    color = cells.style.color.get_truecolor()
    assert color.red << 16 | color.green << 8 | color.blue == int(head[1])


def test_marks_are_enough_and_without_width() -> None:
    assert len(set(graphics.MARKS)) == len(graphics.MARKS) >= max(COLUMNS, ROWS)
    assert all(row[0].cell_length == COLUMNS for row in kitty_rows(70_000, COLUMNS, ROWS))


def test_long_pictures_go_in_pieces() -> None:
    sequence = kitty_sequence(7, bytes(10_000), 3, 2)
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", sequence)
    assert len(pieces) == 4 and all(len(data) <= graphics.CHUNK for _, data in pieces)
    assert [head[-1] for head, _ in pieces] == ["1", "1", "1", "0"]
    assert base64.standard_b64decode("".join(data for _, data in pieces)) == bytes(10_000)


def test_at_the_end_kitty_forgets_them() -> None:
    _, sent = drawn("kitty")
    graphics.TERMINAL.forget_all()
    assert sent[-1].startswith("\x1b_Ga=d,d=I,i=1")


@given(
    typed=st.text(st.sampled_from("abc\x1b[?6;"), max_size=8),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    at=st.integers(0, 8),
)
def test_answers_are_no_keys_however_they_come(typed: str, cuts: list[int], at: int) -> None:
    # What is typed may look like the beginning of an answer, but holds none.
    before, after = typed[:at], typed[at:]
    if "\x1b" in before:
        before = before.replace("\x1b", "")
    answers = Answers()
    answers.listen()
    text = before + SAID + after
    found = ""
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        found += answers.feed(text[start:end])
    found += answers.release()
    assert found == before + after
    assert answers.attributes == ("62", "4", "22") and answers.cell == (9, 18)


def test_nothing_is_held_back_where_nothing_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    assert answers.feed("\x1b[?62;4c") == "\x1b[?62;4c"
    answers.listen()
    assert answers.feed("\x1b") == "" and answers.release() == "\x1b"
    monkeypatch.setattr(terminal.time, "monotonic", lambda: 1e9)
    assert answers.feed("\x1b") == "\x1b"


async def test_the_chat_draws_sixels_when_the_terminal_can(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/shot.png").write_bytes(png())

    async with running(tmp_path, [Step(text="I see it.")], settings=Settings()) as screen:
        screen.chat.say("look at @shot.png")
        await screen.until("I see it.")
        assert "▀▀▀" in screen.shown and graphics.TERMINAL.protocol == "ask"
        graphics.TERMINAL.answered(("62", "4"), (9, 18))
        await screen.until(lambda: "▀▀▀" not in screen.shown)
        assert screen.shown.count("\x1bP0;1;0q") == ROWS and "[image: PNG" in screen.shown
        # The rows of a picture are no text: nothing is copied or found in them.
        transcript = screen.chat.transcript
        texts = [transcript._row_text(row) for row in range(transcript.num_rows)]
        assert not any("\x1b" in text for text in texts)
        assert all(
            strip.cell_length == transcript._width
            for strip in transcript.render_lines(transcript.size.region)
        )

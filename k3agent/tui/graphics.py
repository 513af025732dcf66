"""Pictures by the terminal's own means: placeholders of kitty, or sixels, where the terminal is known for it
or says that it can. Elsewhere half blocks stand for a picture, as in tmux and screen, which would have to
pass the others on.

No byte of an image file reaches the terminal: what is sent is made anew from the decoded picture.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from rich.color import Color
from rich.segment import ControlType, Segment
from rich.style import Style

if TYPE_CHECKING:
    from PIL.Image import Image

    from k3agent.tui.widgets.block import Row

# Asked at the first picture: the size of a cell in pixels, then what the terminal is (with 4: sixels).
QUESTION = "\x1b[16t\x1b[c"
SIXEL_ATTRIBUTE = "4"
# Where sixels are wanted in spite of a terminal that does not say how large its cells are.
USUAL_CELL = (10, 20)
MAX_CELL = 64
MAX_COLORS = 64
BAND = 6
CHUNK = 4096
PLACEHOLDER = "\U0010eeee"
# Numbers as marks above the placeholder, in kitty's order: rows and columns of a picture.
MARKS = (
    "\u0305\u030d\u030e\u0310\u0312\u033d\u033e\u033f\u0346\u034a\u034b\u034c\u0350\u0351\u0352\u0357"
    "\u035b\u0363\u0364\u0365\u0366\u0367\u0368\u0369\u036a\u036b\u036c\u036d\u036e\u036f\u0483\u0484"
    "\u0485\u0486\u0487\u0592\u0593\u0594\u0595\u0597"
)


def by_environment(wanted: str, environ: Mapping[str, str]) -> str:
    """kitty, sixel, blocks, or ask: the terminal has to be asked. `wanted` is the setting `ui.images`."""
    if wanted != "auto":
        return wanted
    term = environ.get("TERM", "")
    if environ.get("TMUX") or environ.get("STY") or term.startswith(("tmux", "screen", "linux", "dumb")):
        return "blocks"
    if environ.get("KITTY_WINDOW_ID") or term == "xterm-kitty":
        # A picture's number is a colour: with fewer colours it would be another.
        return "kitty" if environ.get("COLORTERM") in ("truecolor", "24bit") else "blocks"
    return "ask"


@dataclass
class Graphics:
    """What this terminal can; `protocol` is none where no pictures are wanted. `write` sends to it;
    `on_change` is called when it turns out that it can more.
    """

    protocol: str = "blocks"
    cell: tuple[int, int] = USUAL_CELL
    write: Callable[[str], None] = lambda sequence: None
    on_change: Callable[[], None] = lambda: None
    _has_asked: bool = False
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _sent: list[int] = field(default_factory=list)

    def needed(self) -> None:
        """A picture is about to be drawn."""
        if self.protocol in ("ask", "sixel") and not self._has_asked:
            self._has_asked = True
            self.write(QUESTION)

    def answered(self, attributes: tuple[str, ...], cell: tuple[int, int] | None) -> None:
        """What the terminal has said: its attributes, and the width and height of a cell."""
        is_new = self.protocol == "ask" and SIXEL_ATTRIBUTE in attributes and cell is not None
        if cell is not None and max(cell) <= MAX_CELL and min(cell) > 0:
            is_new = is_new or (self.protocol == "sixel" and cell != self.cell)
            self.cell = cell
        else:
            is_new = False
        if self.protocol == "ask":
            self.protocol = "sixel" if is_new else "blocks"
        if is_new:
            self.on_change()

    def send(self, png: bytes, columns: int, rows: int) -> int:
        """Give kitty a picture for so many cells; its number there."""
        number = next(self._numbers)
        self._sent.append(number)
        self.write(kitty_sequence(number, png, columns, rows))
        return number

    def forget_all(self) -> None:
        """At the end: what the terminal keeps for us."""
        for number in self._sent:
            self.write(f"\x1b_Ga=d,d=I,i={number},q=2\x1b\\")
        self._sent.clear()


def kitty_sequence(number: int, png: bytes, columns: int, rows: int) -> str:
    """Transmits a picture that placeholders will show. Nothing is answered (q=2)."""
    data = base64.standard_b64encode(png).decode()
    pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)] or [""]
    head = f"a=T,U=1,i={number},f=100,c={columns},r={rows},q=2,"
    last = len(pieces) - 1
    return "".join(
        f"\x1b_G{head if at == 0 else 'q=2,'}m={int(at < last)};{piece}\x1b\\"
        for at, piece in enumerate(pieces)
    )


def kitty_rows(number: int, columns: int, rows: int) -> list[Row]:
    """Cells that kitty fills with its picture of that number, which is their colour."""
    style = Style(color=Color.from_rgb(number >> 16 & 255, number >> 8 & 255, number & 255))
    return [
        [Segment("".join(f"{PLACEHOLDER}{MARKS[row]}{MARKS[column]}" for column in range(columns)), style)]
        for row in range(rows)
    ]


def sixel_rows(image: Image, columns: int, rows: int, cell: tuple[int, int], back: Style) -> list[Row]:
    """A picture as one strip of sixels for each row of cells: a row that is drawn anew draws its own part.

    The sequence stands behind the cells that it covers, takes the cursor back and leaves it where it was.
    """
    width, height = cell
    small = image.convert("RGB").resize((columns * width, rows * height))
    small = small.quantize(MAX_COLORS)
    colors = small.getpalette() or []
    data = small.tobytes()
    line = columns * width
    found: list[Row] = []
    for row in range(rows):
        part = data[row * height * line : (row + 1) * height * line]
        drawing = f"\x1b7\x1b[{columns}D{sixels(part, line, colors)}\x1b8"
        found.append(
            [Segment(" " * columns, back), Segment(drawing, None, [(ControlType.CURSOR_FORWARD, 0)])]
        )
    return found


def sixels(data: bytes, width: int, colors: list[int]) -> str:
    """Pixels, each the number of its colour, as one sequence."""
    height = len(data) // width
    used = sorted(set(data))
    parts = [f'\x1bP0;1;0q"1;1;{width};{height}']
    parts += [
        "#{};2;{};{};{}".format(color, *(round(part / 2.55) for part in colors[3 * color : 3 * color + 3]))
        for color in used
    ]
    bands = [
        _band([data[at : at + width] for at in range(top * width, min(top + BAND, height) * width, width)])
        for top in range(0, height, BAND)
    ]
    return "".join(parts) + "-".join(bands) + "\x1b\\"


def _band(lines: list[bytes]) -> str:
    masks: dict[int, bytearray] = {}
    for bit, line in enumerate(lines):
        for x, color in enumerate(line):
            mask = masks.get(color)
            if mask is None:
                mask = masks[color] = bytearray(len(line))
            mask[x] |= 1 << bit
    return "$".join(f"#{color}{_packed(mask)}" for color, mask in masks.items())


def _packed(mask: bytearray) -> str:
    parts: list[str] = []
    for value, same in groupby(mask):
        count = sum(1 for _ in same)
        char = chr(63 + value)
        parts.append(f"!{count}{char}" if count > 3 else char * count)
    return "".join(parts)


#: of the terminal that the UI runs in; the app says what it is
TERMINAL = Graphics()

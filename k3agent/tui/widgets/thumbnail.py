"""An image in the conversation: a small picture where Pillow is installed, its kind and size.

Two pixels are one cell: `▀` with the upper one as its colour and the lower one as its background. That needs
no protocol of the terminal's; where it has one (graphics.py), the same cells hold a finer picture.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from io import BytesIO
from itertools import groupby

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from k3agent.tui import figures, graphics
from k3agent.tui.safe import safe_line
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Row
from k3agent.types import ImagePart

COLUMNS, ROWS = 36, 10
# What a finer picture is made from.
FINE = (720, 400)
# Larger images are told, not decoded: that would be felt.
MAX_PIXELS = 9_000_000
MAX_BYTES = 20_000_000
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
# What decoders raise for files that are broken, on purpose or not.
BROKEN = (
    OSError,
    ValueError,
    SyntaxError,
    LookupError,
    TypeError,
    ArithmeticError,
    struct.error,
    MemoryError,
)
INSTALL = "pip install 'k3agent[images]' shows it"

Pixel = tuple[int, int, int, int]


class Thumbnail:
    """Decoded once, when it is first shown; of the image only the small picture is kept."""

    def __init__(self, part: ImagePart) -> None:
        self._part: ImagePart | None = part
        kind = safe_line(part.mime.removeprefix("image/").upper(), 20)
        self._words = [kind, figures.size(len(part.data))]
        self._pixels: list[list[Pixel]] = []
        self._fine = b""
        #: kitty's number of it; rows of sixels and what they were made for
        self._number = 0
        self._sixels: tuple[object, list[Row]] = (None, [])

    def rows(self, width: int, palette: Palette, *, is_drawn: bool) -> list[Row]:
        """The picture, if it is wanted and has room, and a line that says what it is."""
        back = palette.style("dim", bg="raised")
        is_drawn = is_drawn and width >= COLUMNS and graphics.TERMINAL.protocol != "none"
        if is_drawn and self._part is not None:
            self._decode(self._part)
        rows = self._picture(palette) if is_drawn else []
        return [*rows, [Segment(f"[image: {' · '.join(self._words)}]", back)]]

    def _picture(self, palette: Palette) -> list[Row]:
        """The picture in the terminal's best form."""
        graphics.TERMINAL.needed()
        protocol, cell = graphics.TERMINAL.protocol, graphics.TERMINAL.cell
        if not self._fine or protocol not in ("kitty", "sixel"):
            return _cells(self._pixels, palette)
        columns, rows = len(self._pixels[0]), (len(self._pixels) + 1) // 2
        if protocol == "kitty":
            self._number = self._number or graphics.TERMINAL.send(self._fine, columns, rows)
            return graphics.kitty_rows(self._number, columns, rows)
        key = (cell, palette.name)
        if self._sixels[0] != key:
            self._sixels = key, self._as_sixels(columns, rows, cell, palette)
        return self._sixels[1]

    def _as_sixels(self, columns: int, rows: int, cell: tuple[int, int], palette: Palette) -> list[Row]:
        from PIL import Image  # lazy: loaded by now

        with Image.open(BytesIO(self._fine), formats=("PNG",)) as image:
            ground = Image.new("RGBA", image.size, palette.raised)
            ground.alpha_composite(image.convert("RGBA"))
        return graphics.sixel_rows(ground, columns, rows, cell, palette.style("text", bg="raised"))

    def _decode(self, part: ImagePart) -> None:
        self._part = None
        try:
            from PIL import Image  # lazy: optional, and 50 ms, at the first image
        except ImportError:
            self._words.append(INSTALL)
            return
        if len(part.data) > MAX_BYTES:
            return
        try:
            with Image.open(BytesIO(part.data), formats=FORMATS) as image:
                width, height = image.size
                self._words.insert(1, f"{width:,} × {height:,}")
                if width * height > MAX_PIXELS:
                    return
                # JPEG decodes to a fraction of its size at once.
                is_fine = graphics.TERMINAL.protocol != "blocks"
                image.draft("RGB", FINE if is_fine else (COLUMNS * 2, ROWS * 4))
                small = image.convert("RGBA")
                if is_fine:
                    small.thumbnail(FINE, Image.Resampling.BOX, reducing_gap=2.0)
                    file = BytesIO()
                    small.save(file, "PNG")
                    self._fine = file.getvalue()
                small.thumbnail((COLUMNS, ROWS * 2), Image.Resampling.BOX, reducing_gap=2.0)
                data = small.tobytes()
        except (*BROKEN, Image.DecompressionBombError):
            self._words.append("cannot be shown")
            return
        flat = [(data[at], data[at + 1], data[at + 2], data[at + 3]) for at in range(0, len(data), 4)]
        wide = small.width
        self._pixels = [flat[at : at + wide] for at in range(0, len(flat), wide)]


def _cells(pixels: list[list[Pixel]], palette: Palette) -> list[Row]:
    ground = Color.parse(palette.raised).get_truecolor()
    rows: list[Row] = []
    for at in range(0, len(pixels), 2):
        upper = pixels[at]
        lower = pixels[at + 1] if at + 1 < len(pixels) else [(0, 0, 0, 0)] * len(upper)
        styles = [_style(_over(a, ground), _over(b, ground)) for a, b in zip(upper, lower, strict=True)]
        rows.append([Segment("▀" * len(list(same)), style) for style, same in groupby(styles)])
    return rows


def _over(pixel: Pixel, ground: tuple[int, int, int]) -> tuple[int, int, int]:
    """The pixel's colour where the ground shines through, in 32 steps: fewer colours, fewer bytes."""
    alpha = pixel[3]
    mixed = [(pixel[at] * alpha + ground[at] * (255 - alpha)) // 255 for at in range(3)]
    red, green, blue = ((part & 0xF8) | part >> 5 for part in mixed)
    return red, green, blue


@lru_cache(maxsize=4096)
def _style(upper: tuple[int, int, int], lower: tuple[int, int, int]) -> Style:
    return Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower))

"""No colours (NO_COLOR): what they say is said by bold and reversed text, in the terminal's own two colours.

Textual's own way would be shades of grey on a ground of its own.
"""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

# So far from the ground a background is a mark and no shade.
IS_MARK = 0.3


class NoColor(LineFilter):
    """Takes the colours out of every line."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        ground = background.brightness
        return [
            Segment(part.text, _plain(part.style, ground), part.control) if part.style is not None else part
            for part in segments
        ]


@lru_cache(maxsize=4096)
def _plain(style: Style, ground: float) -> Style:
    back = style.bgcolor
    brightness = ground if back is None or back.triplet is None else Color(*back.triplet).brightness
    return Style(
        bold=style.bold,
        dim=style.dim,
        italic=style.italic,
        underline=style.underline,
        strike=style.strike,
        reverse=style.reverse or abs(brightness - ground) > IS_MARK,
        link=style.link,
        meta=style.meta,
    )

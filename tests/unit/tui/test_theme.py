"""Colours can be read: contrast by the formula of WCAG 2."""

from __future__ import annotations

import pytest

from k3agent.config.settings import THEMES
from k3agent.tui.theme import PALETTES, Palette

WORDS = (
    "dim",
    "faint",
    "accent",
    "good",
    "warn",
    "bad",
    "code_name",
    "code_keyword",
    "code_string",
    "code_number",
)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES)
def test_everything_can_be_read(palette: Palette) -> None:
    least = 7.0 if palette.name == "contrast" else 4.5
    assert contrast(palette.text, palette.background) >= 7
    for name in WORDS:
        assert contrast(getattr(palette, name), palette.background) >= least, name
    for back in (palette.raised, palette.added, palette.removed):
        assert contrast(palette.text, back) >= 7
    for name in ("dim", "accent", "warn"):
        assert contrast(getattr(palette, name), palette.raised) >= 4.5, name


def test_the_setting_knows_every_theme() -> None:
    assert tuple(PALETTES) == THEMES

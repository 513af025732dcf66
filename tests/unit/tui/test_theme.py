"""Colours can be read: contrast by the formula of WCAG 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.screens import running

from k3agent.config.settings import THEMES
from k3agent.providers.scripted import Step
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


async def test_no_color_sends_no_colours(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="# Head\n\n`code`")], environ={"NO_COLOR": "1"}) as screen:
        await screen.submit("hi")
        await screen.until("done · 1 step")
        await screen.type("/se")
        await screen.until("/sessions")
        rows = screen.app.screen._compositor.render_strips()
        styles = [part.style for row in rows for part in row if part.style is not None]
        assert all(style.color is None and style.bgcolor is None for style in styles)
        # What is chosen is still told from the rest.
        chosen = next(row for row in rows if "/sessions" in row.text)
        assert any(part.style is not None and part.style.reverse for part in chosen)

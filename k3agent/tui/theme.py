"""Colours: one palette gives both Textual's variables and the styles of the transcript's lines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rich.style import Style
from textual.theme import Theme


@dataclass(frozen=True)
class Palette:
    """Colours as #rrggbb. `name` is what the setting `ui.theme` and `/theme` call it."""

    name: str
    is_dark: bool
    text: str
    dim: str
    faint: str
    accent: str
    background: str
    raised: str
    line: str
    good: str
    warn: str
    bad: str
    added: str
    removed: str
    code_name: str
    code_keyword: str
    code_string: str
    code_number: str

    def style(self, color: str = "", *, bg: str = "", bold: bool = False, italic: bool = False) -> Style:
        """A style of this palette; `color` and `bg` are names of its fields."""
        return Style(
            color=getattr(self, color) if color else None,
            bgcolor=getattr(self, bg) if bg else None,
            bold=bold or None,
            italic=italic or None,
        )

    @cached_property
    def theme(self) -> Theme:
        return Theme(
            name=self.name,
            primary=self.accent,
            secondary=self.dim,
            accent=self.accent,
            foreground=self.text,
            background=self.background,
            surface=self.background,
            panel=self.raised,
            success=self.good,
            warning=self.warn,
            error=self.bad,
            dark=self.is_dark,
            variables={
                "k3-dim": self.dim,
                "k3-line": self.line,
                "k3-raised": self.raised,
                "scrollbar": self.line,
                "scrollbar-hover": self.dim,
                "scrollbar-active": self.accent,
                "scrollbar-background": self.background,
                "scrollbar-background-hover": self.background,
                "scrollbar-background-active": self.background,
            },
        )


PALETTES = {
    palette.name: palette
    for palette in (
        Palette(
            "dark", True,
            text="#d7dae0", dim="#8b93a1", faint="#7f8796", accent="#7aa2f7", background="#14161b",
            raised="#1d2027", line="#343a46", good="#7fc98f", warn="#e0b56a", bad="#ef7d85",
            added="#16301f", removed="#3a1b20", code_name="#7dcfff", code_keyword="#bb9af7",
            code_string="#9ece6a", code_number="#ff9e64",
        ),
        Palette(
            "light", False,
            text="#23272e", dim="#5c6470", faint="#686f7a", accent="#2456c4", background="#fbfbf9",
            raised="#efefec", line="#c9ccd1", good="#1f7a3d", warn="#8a5a00", bad="#b3262e",
            added="#dcf2e0", removed="#fbe0e1", code_name="#0b6e99", code_keyword="#7a3ea8",
            code_string="#3f7021", code_number="#a8480a",
        ),
        Palette(
            "contrast", True,
            text="#ffffff", dim="#d0d0d0", faint="#c0c0c0", accent="#ffff00", background="#000000",
            raised="#1a1a1a", line="#ffffff", good="#00ff66", warn="#ffd000", bad="#ff8080",
            added="#004d1a", removed="#660014", code_name="#66ffff", code_keyword="#ff99ff",
            code_string="#99ff99", code_number="#ffcc66",
        ),
    )
}  # fmt: skip
DEFAULT_THEME = "dark"

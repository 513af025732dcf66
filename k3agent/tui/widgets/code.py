"""Colours for code by Pygments, for as much of it as stays quick."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.style import Style
from rich.text import Text

from k3agent.tui.theme import Palette

if TYPE_CHECKING:
    from pygments.lexer import Lexer

MAX_HIGHLIGHTED = 40_000


def highlight(code: str, language: str, palette: Palette) -> Text:
    """`code` with colours; plain where the language is unknown or the code too long."""
    text = Text(code, style=palette.style("text"))
    lexer = _lexer(language.lower()) if language and len(code) <= MAX_HIGHLIGHTED else None
    if lexer is None:
        return text
    at = 0
    for token, part in lexer.get_tokens(code):
        end = min(at + len(part), len(code))
        style = _style(token, palette)
        if style is not None and part.strip():
            text.stylize(style, at, end)
        at = end
    return text


def language_of(path: str) -> str:
    """The language that a file's name stands for: its ending, which Pygments knows as an alias or a name."""
    return f".{path.rpartition('.')[2].lower()}" if "." in path.rpartition("/")[2] else ""


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    from pygments.lexers import get_lexer_by_name, get_lexer_for_filename  # lazy: 30 ms, at the first code
    from pygments.util import ClassNotFound

    options: dict[str, Any] = {"stripnl": False, "ensurenl": False}
    try:
        if language.startswith("."):
            return get_lexer_for_filename(f"file{language}", **options)
        return get_lexer_by_name(language, **options)
    except (ClassNotFound, ValueError):
        return None


@lru_cache(maxsize=256)
def _style_by_name(token: str, palette: Palette) -> Style | None:
    for prefix, style in (
        ("Token.Comment", palette.style("faint", italic=True)),
        ("Token.Keyword", palette.style("code_keyword")),
        ("Token.Operator.Word", palette.style("code_keyword")),
        ("Token.Literal.String", palette.style("code_string")),
        ("Token.Literal.Number", palette.style("code_number")),
        ("Token.Name.Function", palette.style("code_name")),
        ("Token.Name.Class", palette.style("code_name")),
        ("Token.Name.Decorator", palette.style("code_name")),
        ("Token.Name.Tag", palette.style("code_name")),
        ("Token.Name.Attribute", palette.style("code_name")),
        ("Token.Name.Builtin", palette.style("code_name")),
        ("Token.Generic.Inserted", palette.style("good")),
        ("Token.Generic.Deleted", palette.style("bad")),
    ):
        if token.startswith(prefix):
            return style
    return None


def _style(token: object, palette: Palette) -> Style | None:
    return _style_by_name(str(token), palette)

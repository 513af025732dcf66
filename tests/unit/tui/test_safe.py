"""Untrusted text on its way to the screen."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from k3agent.tui.safe import MAX_LINE_CHARS, safe, safe_line

OBEYED = {
    "\u2028",
    "\u2029",
    "\ufeff",
    "\xad",
    "\u200b",
    "\u2060",
    "\u034f",
    "\u061c",
    "\u180e",
    "\u200e",
    "\u200f",
}
OBEYED |= {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xE0000, 0xE0080))}


@given(st.text())
def test_nothing_is_left_that_a_terminal_would_obey(text: str) -> None:
    for char in safe(text):
        assert char == "\n" or unicodedata.category(char) not in {"Cc", "Cs"}
        assert char not in OBEYED


@given(st.text(st.characters(categories=["L", "N", "P"], exclude_characters="".join(OBEYED))))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert safe(text) == text


def test_what_is_hidden_becomes_visible() -> None:
    assert safe("a\x1b[31mb\x00") == "a␛[31mb␀"
    assert safe("user\u202etxt.exe") == "user⟨202E⟩txt.exe"
    assert safe("one\u2028two") == "one⟨LS⟩two"
    assert safe("x\r\ny\rz") == "x\ny␍z"
    assert safe("a\tb") == "a   b"
    # Joined emoji and combining marks are text.
    assert safe("👩‍👩‍👧 é") == "👩‍👩‍👧 é"


def test_long_lines_and_texts_are_cut_with_a_note() -> None:
    shown = safe("x" * 1_000_000)
    assert len(shown) < 2 * MAX_LINE_CHARS and "more characters" in shown
    assert "not shown" in safe("line\n" * 100_000)
    assert safe_line("a\nb  c\x07" + "d" * 999, 12) == "a b c␇ddddd…"

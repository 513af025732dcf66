"""Untrusted text made fit for the screen: nothing in it can move the cursor, hide or reorder what is shown.

Everything that comes from a model, a tool, a file or the store passes here once, before it is laid out.
Control characters become their pictures, marks that reorder or hide text become visible, lines are cut.
"""

from __future__ import annotations

import re

from k3agent.safety.visible import reveal

MAX_LINE_CHARS = 4_000
MAX_CHARS = 200_000
TAB = 4

# U+2028 and U+2029 are line ends to some programs and nothing to others: shown, they are neither.
_NAMED = {0x2028: "⟨LS⟩", 0x2029: "⟨PS⟩", 0x7F: "␡", 0xFEFF: "⟨BOM⟩", 0xAD: "⟨SHY⟩"}
_PICTURES = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)},
    **{code: f"⟨{code:02X}⟩" for code in range(0x80, 0xA0)},
    # left-to-right and right-to-left marks, embeddings, overrides, isolates: they reorder what is read
    **{
        code: f"⟨{code:04X}⟩"
        for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    },
    **{code: f"⟨{code:04X}⟩" for code in (0x200B, 0x2060, 0x180E, 0x034F)},
    **_NAMED,
}
# Tags and private selectors can carry text that nobody sees.
_HIDDEN = re.compile("[\U000e0000-\U000e007f\ud800-\udfff]")
_SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


def safe(text: str, *, max_chars: int = MAX_CHARS) -> str:
    """`text` for display: line feeds stay, tabs are spaces, everything else that a terminal would obey is
    visible. Very long lines and texts are cut with a note; what was cut stays in the store.
    """
    if len(text) > max_chars:
        cut = len(text) - max_chars
        text = f"{text[:max_chars]}\n[… {cut:,} more characters are not shown]"
    text = text.replace("\r\n", "\n")
    if _SUSPECT.search(text):
        text = _HIDDEN.sub(lambda hit: f"⟨{ord(hit[0]):X}⟩", text).translate(_PICTURES)
    text = reveal(text)
    if "\t" in text:
        text = text.expandtabs(TAB)
    if len(text) > MAX_LINE_CHARS:
        text = "\n".join(map(_cut_line, text.split("\n")))
    return text


def safe_line(text: str, limit: int = 300) -> str:
    """One line: white space runs are one space, and what is longer than `limit` is cut."""
    line = " ".join(safe(text[: limit * 4], max_chars=limit * 4).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _cut_line(line: str) -> str:
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[:MAX_LINE_CHARS]} [… {len(line) - MAX_LINE_CHARS:,} more characters in this line]"

"""Characters that hide, reorder or imitate nothing: shown as `⟨202E⟩`, so that what is read is what is there.

Joiners and emoji styles stay where scripts and emoji need them. `restore` turns the marks back, so that text
copied from what was shown fits the file it came from.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# Marks, embeddings, overrides and isolates of direction; spaces and fillers without width; interlinear marks.
_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# A joiner between letters that do not join, or a style that nothing is styled by, can only carry a message.
_IDLE = (
    "(?<=[\x00-\x7f])[\u200c\u200d\ufe00-\ufe0e]|(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]"
    "|(?<=[\u200c\u200d])[\u200c\u200d]"
)
_SUSPECT = re.compile(f"[{_HIDDEN}]|{_IDLE}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MARK = re.compile("⟨([0-9A-F]{4,6})⟩")


def reveal(text: str) -> str:
    """`text` with a mark for each such character; ordinary text comes back as it is."""
    if text.isascii():
        return text
    return _SUSPECT.sub(lambda hit: f"⟨{ord(hit[0]):04X}⟩", text)


def clean(text: str) -> str:
    """`text` without anything that a terminal would obey or hide; tabs and line feeds stay."""
    return reveal(_CONTROL.sub("�", text))


def code_block(text: str, language: str = "") -> str:
    """A block of Markdown whose fence is longer than any run of backticks in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def marks(shown: str) -> set[str]:
    """All marks in a text."""
    return {mark.group() for mark in _MARK.finditer(shown)}


def restore(text: str, known: Collection[str]) -> str:
    """The characters again, for the marks in `known`."""
    return _MARK.sub(lambda mark: chr(int(mark[1], 16)) if mark[0] in known else mark[0], text)

"""Makes a command's raw output fit for the model: decoded, without terminal control, head and tail only.

The output lies in a file and is read piece by piece, so memory does not grow with it.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_CHARS = 30_000
PIECE_BYTES = 1 << 18
# A "line" longer than this is handed on in pieces.
MAX_PENDING = 1 << 20
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movement
    r"|\x1b[\]PX^_](?:[^\x07\x1b\n]|\x1b(?!\\))*(?:\x07|\x1b\\)?"  # titles, links, other strings
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BACKSPACE = re.compile(r"[^\x08\n]\x08")


def clean(text: str) -> str:
    """`text` as a terminal would leave it: no escapes, progress bars in their last state, only `\\n` ends."""
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        if "\r" in text:
            text = "\n".join(map(_last_state, text.split("\n")))
    while "\x08" in text:
        shorter = _BACKSPACE.sub("", text)
        if shorter == text:
            text = text.replace("\x08", "")
            break
        text = shorter
    return _CONTROLS.sub("", text)


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def one_line(text: str) -> str:
    """`text` for people, on one line: what a terminal would obey or hide is shown as an escape."""
    if text.isprintable():
        return text
    text = text.rstrip("\n").replace("\n", " ⏎ ")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """`text` is all of it when `num_cut` is 0, else head and tail around a line that says so."""

    text: str
    num_cut: int


def excerpt(path: Path, *, shown: str, max_chars: int = MAX_CHARS) -> Excerpt:
    """What the model gets of the output in `path`; `shown` is how the full output is named to it."""
    half = max_chars // 2
    head, tail, total = "", "", 0
    for piece in _pieces(path):
        total += len(piece)
        if len(head) < max_chars:
            taken = max_chars - len(head)
            head, piece = head + piece[:taken], piece[taken:]
        tail = (tail + piece)[-half:]
    whole = head + tail
    if total <= max_chars or len(whole.rstrip()) <= max_chars:
        return Excerpt(whole.rstrip(), 0)
    whole = whole[half:] if len(tail) < half else tail
    end = whole[-half:].rstrip()
    num_cut = total - half - len(whole[-half:])
    note = f"[... {num_cut} characters cut; full output: {shown}]"
    return Excerpt(f"{head[:half].rstrip()}\n{note}\n{end.lstrip(chr(10))}", num_cut)


def _pieces(path: Path) -> Iterator[str]:
    """The cleaned text, in pieces that end with a line where that is possible. What is written while it is
    read is left out: a program may write faster than we read.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pending = ""
    with path.open("rb") as stream:
        left = os.fstat(stream.fileno()).st_size
        while True:
            data = stream.read(min(PIECE_BYTES, left))
            left -= len(data)
            pending += decoder.decode(data, final=not data)
            if not data:
                break
            cut = pending.rfind("\n") + 1
            if not cut and len(pending) > MAX_PENDING:
                # One endless line: all states of a progress bar but the last may go.
                cut = pending.rfind("\r", 0, -1) + 1 or len(pending) // 2
            if cut:
                yield clean(pending[:cut])
                pending = pending[cut:]
    if pending:
        yield clean(pending)

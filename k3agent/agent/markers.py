"""Finds K3's own grammar where it must not be: in the text or reasoning that a server hands out.

A server whose parser lost its way leaks channel markers; nothing after one can be trusted, so the answer is
thrown away and asked for again. Text is held back while its end could be the beginning of a marker, so that
none is shown.
"""

from __future__ import annotations

import re

STRUCTURAL = (
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|end_of_msg|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|im_end|>",
)
# Thinking that arrives as text. Only at the beginning of a line: inside a sentence somebody speaks about
# the tag.
THINK = ("<think>", "</think>")
LONGEST = max(len(marker) for marker in STRUCTURAL + THINK)
_STRUCTURAL = re.compile("|".join(re.escape(marker) for marker in STRUCTURAL))
_THINK = re.compile(r"^[ \t]*(</?think>)", re.MULTILINE)
_MAYBE = frozenset(marker[:length] for marker in STRUCTURAL + THINK for length in range(1, len(marker)))


def mentions_marker(text: str) -> bool:
    return _STRUCTURAL.search(text) is not None or _THINK.search(text) is not None


def held_back(text: str) -> int:
    """How many characters at the end of `text` could be the beginning of a marker."""
    start = text.rfind("<", max(0, len(text) - LONGEST))
    if start < 0:
        return 0
    return len(text) - start if text[start:] in _MAYBE else 0


class LeakFilter:
    """One channel of one answer. `feed` gives what may be shown now; `leak` is the marker once one was
    found.
    """

    def __init__(self, *, is_on: bool, finds_think: bool) -> None:
        self._is_on = is_on
        self._finds_think = finds_think
        self._line = ""
        self._pending = ""
        self.leak: str | None = None

    def feed(self, piece: str) -> str:
        if not self._is_on:
            return piece
        if self.leak is not None:
            return ""
        self._pending += piece
        if "<" not in self._pending:
            return self._release(len(self._pending))
        found = self._find()
        if found is not None:
            self.leak = found
            return ""
        return self._release(len(self._pending) - held_back(self._pending))

    def flush(self) -> str:
        """The rest, when the answer is complete: the beginning of a marker alone is only text."""
        return "" if self.leak is not None else self._release(len(self._pending))

    def _find(self) -> str | None:
        match = _STRUCTURAL.search(self._pending)
        if match is not None:
            return match.group()
        if not self._finds_think:
            return None
        # `_line` is what was already released of the line that is going on.
        match = _THINK.search(self._line + self._pending)
        return None if match is None else match.group(1)

    def _release(self, length: int) -> str:
        shown, self._pending = self._pending[:length], self._pending[length:]
        if shown:
            line = shown.rsplit("\n", 1)[-1]
            # Only the beginning of a line matters to `_THINK`; long ones are not kept.
            self._line = line[:LONGEST] if "\n" in shown else (self._line + line)[:LONGEST]
        return shown

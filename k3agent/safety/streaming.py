"""Masks a text that comes in pieces: what may become a secret is held back until it is known."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3agent.safety.masking import Span, TextMasker
from k3agent.safety.shapes import RUN_NEEDLES

MAX_HELD = 1 << 16
# What was given out already still tells what follows: the name before a value, the scheme before an address.
CONTEXT_CHARS = 200
MAX_LINES = 400
# A key's header is followed by its lines soon, or the text only talks of keys.
MAX_BEFORE_KEY = 600
MAX_WORD = 16
_RUN_CHARS = "".join(map(chr, range(0x21, 0x7F)))
_LEADING_RUN = re.compile(r"[A-Za-z0-9+/_=.-]*")
_LINE_START = re.compile(r"[ \t]*(?:[0-9]{1,7}\t)?")
_LAST_NAME = re.compile(
    r"(?i:token|secret|passw|passphrase|key|pwd|auth|login|machine|bearer)[A-Za-z0-9_-]*[\"']?[ \t]*"
    r"(?:[:=]>?[ \t]*[\"']?)?(?:(?i:bearer|basic|token)[ \t]+)?(?P<run>[!-~]*)\Z"
)
_KEY_BEGIN = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|-----(?:B(?:E(?:G(?:I(?:N[A-Z0-9 ]*)?)?)?)?)?-{0,5}\Z"
)
_KEY_END = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/]{32}")
# No word of a language: it has a digit, or a capital letter in the middle, or belongs to an address.
_ODD = re.compile(r"[0-9@]|[a-z_][A-Z]|:/?\Z|://|[+/=]")
_SHIFT = re.compile(r"(?<![A-Za-z0-9])")
_NEEDLE_STARTS = frozenset(needle[:size] for needle in RUN_NEEDLES for size in range(1, len(needle)))
_MAX_NEEDLE = max(map(len, RUN_NEEDLES))


class StreamMasker:
    """`feed` gives what can be shown by now, `flush` the rest. Put together they hold no secret."""

    def __init__(self, masker: TextMasker) -> None:
        self._masker = masker
        self._context = ""
        self._held = ""
        # A secret longer than what is held: what follows up to the next space belongs to it.
        self._is_inside = False

    def feed(self, piece: str) -> str:
        if self._is_inside:
            piece = self._skip(piece)
        self._held += piece
        text, known = self._context + self._held, len(self._context)
        spans = self._masker.spans(text)
        start = known + self._open_start(self._held)
        # What is complete is given out as a whole.
        start = next((max(first, known) for first, last, _ in spans if first < start < last), start)
        is_too_long = len(text) - start > MAX_HELD
        start = len(text) if is_too_long else start
        masked = self._give(text, spans, start)
        if is_too_long:
            self._is_inside = masked.endswith("]") and not text.endswith("]")
        return masked

    def flush(self) -> str:
        text, self._is_inside = self._context + self._held, False
        return self._give(text, self._masker.spans(text), len(text))

    def _give(self, text: str, spans: list[Span], end: int) -> str:
        """What was held, up to `end` of `text`, masked; the rest is held on."""
        begin = len(self._context)
        # What began before is out: a name that was taken for part of a secret, or a word.
        inside = [(max(first, begin), last, label) for first, last, label in spans if begin < last <= end]
        self._held = text[end:]
        self._context = text[max(0, end - CONTEXT_CHARS) : end]
        return self._masker.replace(text[:end], inside)[begin:]

    def _skip(self, piece: str) -> str:
        inside = _LEADING_RUN.match(piece)
        end = inside.end() if inside else 0
        self._is_inside = end == len(piece)
        return piece[end:]

    def _open_start(self, text: str) -> int:
        """From here on the text may be the beginning of a secret."""
        run_start = len(text.rstrip(_RUN_CHARS))
        start = min(self._run_start(text, run_start), self._spaced_start(text), self._wrapped_start(text))
        name = _LAST_NAME.search(self._line_before(text, run_start))
        if name is not None and name.group("run"):
            start = min(start, len(text) - len(name.group("run")))
        for block in _KEY_BEGIN.finditer(text):
            end = _KEY_END.search(text, block.start())
            if start < end.end() if end is not None else _may_be_key(text[block.end() :]):
                return min(start, block.start())
        return max(0, start)

    def _line_before(self, text: str, run_start: int) -> str:
        """The end of the last line, with what was given of it already."""
        line = text[max(text.rfind("\n") + 1, run_start - CONTEXT_CHARS) :]
        return line if "\n" in text else self._context.rpartition("\n")[2] + line

    def _run_start(self, text: str, run_start: int) -> int:
        """Within the last word."""
        run = text[run_start:]
        if not run:
            return len(text)
        if len(run) >= MAX_WORD or _ODD.search(run) or any(needle in run for needle in RUN_NEEDLES):
            return run_start
        overlap = max((_overlap(run, form) for form, _ in self._masker.forms), default=0)
        for place in _SHIFT.finditer(run):
            tail = run[place.start() :]
            if tail in _NEEDLE_STARTS:
                overlap = max(overlap, len(tail))
                break
        return len(text) - overlap

    def _wrapped_start(self, text: str) -> int:
        """Where a word began that may go on in the next line, as a long key that is broken over lines."""
        at, joined = len(text), ""
        for begin, first, last in _lines_back(text):
            at = max(first, len(text[first:last].rstrip(_RUN_CHARS)) + first)
            joined = text[at:last] + joined
            if at > first or begin == 0:
                break
        if "\n" not in text[at:]:
            return len(text)
        is_open = (
            any(needle in joined for needle in RUN_NEEDLES)
            or any(joined[-size:] in _NEEDLE_STARTS for size in range(1, _MAX_NEEDLE))
            or any(form in joined or _overlap(joined, form) for form, _ in self._masker.forms)
        )
        return at if is_open else len(text)

    def _spaced_start(self, text: str) -> int:
        """Where a known value that holds spaces or lines may have begun."""
        return len(text) - max((_overlap(text, form) for form in self._masker.spaced_forms), default=0)


def _lines_back(text: str) -> Iterator[tuple[int, int, int]]:
    """The lines from the last to the first: where each begins, and where its text begins and ends without
    number and break.
    """
    end = len(text)
    for number in range(MAX_LINES):
        begin = text.rfind("\n", 0, end) + 1
        found = _LINE_START.match(text, begin, end)
        first = found.end() if found else begin
        last = first + len(text[first:end].rstrip("\r\\")) if number else end
        yield begin, first, last
        end = begin - 1
        if end < 0:
            return


def _overlap(text: str, form: str) -> int:
    """How many characters at the end of `text` are the first ones of `form`, but not all of it."""
    tail = text[-(len(form) - 1) :]
    at = tail.find(form[0])
    while at >= 0:
        if form.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(form[0], at + 1)
    return 0


def _may_be_key(after: str) -> bool:
    return len(after) < MAX_BEFORE_KEY or _KEY_LINE.search(after[:MAX_BEFORE_KEY]) is not None

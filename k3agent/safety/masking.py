"""Replaces secrets in texts: known values in every form in which they are printed, and what looks like a key.

Values are found as they are, escaped for JSON, URLs, HTML and shells, in base64 and hex, and broken over
lines. What is put in their place names the variable, and tells nothing of the value.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

from k3agent.safety import shapes

MIN_LENGTH = 8
# Shorter ones would be found by chance in base64 and hex, and where lines are put together.
MIN_ENCODED = 12
MIN_LINE = 20
MIN_WRAPPED_LINE = 32
MAX_DECODED = 200_000
# What a break in the middle of a long word looks like; `read` puts a number before each line.
GAP = re.compile(r"\\?\r?\n[ \t]*(?:[0-9]{1,7}\t)?")
# The same in a text with plain line ends: it is found much faster, since it begins with a fixed character.
_PLAIN_GAP = re.compile(r"\n[ \t]*(?:[0-9]{1,7}\t)?")
_BASE64 = re.compile(
    r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{20,}(?:\r?\n[ \t]*(?:[0-9]{1,7}\t)?[A-Za-z0-9+/_-]+)*={0,2}"
)
# (start, end, label)
Span = tuple[int, int, str]
_PLACEHOLDER = re.compile(r"\[masked: [^\]\n]{1,80}\]")


@dataclass(frozen=True, slots=True)
class Known:
    """A value that is known to be secret. `label` stands in its place, mostly the variable's name."""

    value: str
    label: str


def placeholder(label: str) -> str:
    return f"[masked: {label}]"


class TextMasker:
    """Masks texts. `mask` is idempotent, and gives ordinary text back as it is."""

    def __init__(self, known: Iterable[Known] = ()) -> None:
        self._forms: list[tuple[str, str]] = []
        self._values: dict[str, str] = {}
        # Those that are no single word.
        self.spaced_forms: list[str] = []
        # What stood in some text so far: a file that is written with one of these would lose its secret.
        self.used: set[str] = set()
        self.learn(known)

    def learn(self, known: Iterable[Known]) -> None:
        """Mask these values, too, from now on."""
        new = {
            item.value: item.label
            for item in known
            if item.value not in self._values and _is_secret(item.value)
        }
        if not new:
            return
        self._values |= new
        forms = {form: label for value, label in reversed(self._values.items()) for form in _forms(value)}
        forms |= self._values
        # Longest first, so that a secret that holds another one goes as a whole.
        self._forms = sorted(forms.items(), key=lambda item: -len(item[0]))
        self.spaced_forms = [form for form in forms if not form.isascii() or form.split() != [form]]

    @property
    def forms(self) -> list[tuple[str, str]]:
        """(text to look for, label), the longest first."""
        return self._forms

    def mask(self, text: str) -> str:
        return text if len(text) < MIN_LENGTH else self.replace(text, self.spans(text))

    def spans(self, text: str) -> list[Span]:
        """Where the secrets stand, in order and apart from each other."""
        found = [*self._known(text), *shapes.find(text), *self._decoded(text)]
        if "\n" in text:
            found += self._wrapped(text, found)
        kept = [hit.span() for hit in _PLACEHOLDER.finditer(text)] if found and "[masked: " in text else []
        merged: list[Span] = []
        for start, end, label in sorted(found, key=lambda span: (span[0], -span[1])):
            if any(low <= start and end <= high for low, high in kept):
                continue
            if merged and start < merged[-1][1]:
                first = merged[-1]
                merged[-1] = (first[0], max(first[1], end), first[2])
            else:
                merged.append((start, end, label))
        return merged

    def replace(self, text: str, spans: Iterable[Span]) -> str:
        out, at = [], 0
        for start, end, label in spans:
            self.used.add(placeholder(label))
            out += [text[at:start], placeholder(label)]
            at = end
        return "".join((*out, text[at:]))

    def stand_ins(self, text: str) -> list[str]:
        """The stand-ins in `text` that this masker has put somewhere: what they stand for is not there."""
        return [hit for hit in dict.fromkeys(_PLACEHOLDER.findall(text)) if hit in self.used]

    def recall(self, text: str) -> None:
        """Take up the stand-ins of a text that an earlier process has masked."""
        self.used.update(_PLACEHOLDER.findall(text))

    def _known(self, text: str) -> list[Span]:
        found = []
        for form, label in self._forms:
            start = text.find(form)
            while start >= 0:
                found.append((start, start + len(form), label))
                start = text.find(form, start + len(form))
        return found

    def _decoded(self, text: str) -> list[Span]:
        """Runs of base64 that hold a secret."""
        found = []
        for run in _BASE64.finditer(text):
            if run.end() - run.start() > MAX_DECODED:
                continue
            inside = _from_base64(run.group())
            if inside is None:
                continue
            labels = [label for value, label in self._values.items() if value in inside]
            labels += [label for _, _, label in shapes.find(inside)]
            if labels:
                found.append((run.start(), run.end(), labels[0]))
        return found

    def _wrapped(self, text: str, found: list[Span]) -> list[Span]:
        """Secrets that go on in the next line. `found`: those within a line."""
        plain = text.replace("\r\n", "\n") if "\r" in text else text
        plain = plain.replace("\\\n", "\n") if "\\\n" in plain else plain
        joined = _PLAIN_GAP.sub("", plain)
        known, likely = self._known(joined), list(shapes.find(joined, only_wrapping=True))
        # Most often there is none, and finding the places again is slow.
        if not known and not likely:
            return []
        known = _spread(text, [span for span in known if span[1] - span[0] >= MIN_ENCODED])
        likely = [_trimmed(text, span) for span in _spread(text, likely)]
        return known + [span for span in likely if _goes_on(text, span, found)]


def _spread(text: str, spans: list[Span]) -> list[Span]:
    """Spans of the text without gaps as spans of `text`; only those that hold a gap."""
    starts, offsets, last = [0], [0], 0
    for gap in GAP.finditer(text):
        starts.append(starts[-1] + gap.start() - last)
        offsets.append(gap.end())
        last = gap.end()
    found = []
    for start, end, label in spans:
        first, final = bisect_right(starts, start) - 1, bisect_right(starts, end - 1) - 1
        if first != final:
            begin = offsets[first] + start - starts[first]
            found.append((begin, offsets[final] + end - starts[final], label))
    return found


def _trimmed(text: str, span: Span) -> Span:
    """Without the first word of a line that goes on with other words: that is no part of a key."""
    start, end, label = span
    return (start, text.rfind("\n", start, end), label) if text[end : end + 1] in (" ", "\t") else span


def _goes_on(text: str, span: Span, found: list[Span]) -> bool:
    """A key that is whole in its line is followed by other text, unless line and rest look like wrapped."""
    if not any(start <= span[0] < end for start, end, _ in found):
        return True
    line = text[text.rfind("\n", 0, span[0]) + 1 : text.find("\n", span[0])]
    return len(line) >= MIN_WRAPPED_LINE and text[span[1] : span[1] + 1] in ("", "\r", "\n", "\\")


def _is_secret(value: str) -> bool:
    return len(value) >= MIN_LENGTH and not _is_plain_word(value)


def _is_plain_word(value: str) -> bool:
    """Words that stand in for a password in development: masking them would make ordinary text unreadable."""
    return len(value) < MIN_ENCODED and value.isalpha() and (value.islower() or value.istitle())


def _forms(value: str) -> set[str]:
    """How a value is written by programs that escape or encode it, without the value itself."""
    escaped = json.dumps(value)[1:-1]
    found = {
        escaped,
        escaped.replace("/", "\\/"),
        json.dumps(escaped)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value, safe=""),
        quote_plus(value),
        re.sub(r"%[0-9A-F]{2}", lambda hit: hit.group().lower(), quote(value, safe="")),
        quote(value),
        html.escape(value),
        html.escape(value, quote=False),
        shlex.quote(value).strip("'"),
        repr(value)[1:-1],
    }
    if "\n" in value:
        lines = [line.strip() for line in value.splitlines() if not line.startswith("-----")]
        found |= {line for line in lines if len(line) >= MIN_LINE}
        found.add(value.replace("\n", "\r\n"))
    raw = value.encode("utf-8", "surrogateescape")
    if len(raw) >= MIN_ENCODED:
        found |= {raw.hex(), raw.hex().upper()}
        for shift in range(3):
            # The characters at both ends also depend on what stands beside the value.
            whole = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
            cut = -(-shift * 8 // 6)
            core = whole[cut : len(whole) - ((shift + len(raw)) % 3 != 0)]
            found |= {core, core.replace("+", "-").replace("/", "_")}
    found.discard(value)
    return {form for form in found if len(form) >= MIN_LENGTH}


def _from_base64(run: str) -> str | None:
    """The text that `run` encodes, or None when it encodes none."""
    squeezed = "".join(GAP.sub("", run).split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        raw = base64.b64decode(squeezed[: len(squeezed) - (len(squeezed) % 4 == 1)] + "==")
        text = raw.decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return text if sum(char.isprintable() or char in "\r\n\t" for char in text) == len(text) else None

"""Addresses in untrusted text that may become links of the terminal (OSC 8) and be copied."""

from __future__ import annotations

import re

MAX_CHARS = 2_000
# ASCII only: look-alike letters of other scripts stay words. No quotes, brackets of markup, back-slashes.
_URL = re.compile(r"https?://[A-Za-z0-9\[][!#-&(-;=?-\[\]_a-z~]*", re.IGNORECASE)
_AFTER = ".,;:!?*_~"


def link_of(target: str) -> str:
    """`target`, if it is a whole address that a terminal may be given; else empty."""
    hit = _URL.fullmatch(target)
    return target if hit is not None and len(target) <= MAX_CHARS else ""


def urls(text: str) -> list[tuple[int, int]]:
    """(start, end) of the addresses in prose, without the punctuation behind them."""
    found: list[tuple[int, int]] = []
    for hit in _URL.finditer(text):
        url = hit[0]
        while url and (url[-1] in _AFTER or (url[-1] in ")]" and _is_unpaired(url))):
            url = url[:-1]
        if link_of(url):
            found.append((hit.start(), hit.start() + len(url)))
    return found


def _is_unpaired(url: str) -> bool:
    opening = {")": "(", "]": "["}[url[-1]]
    return url.count(url[-1]) > url.count(opening)


def all_links(text: str) -> list[str]:
    """Each address once, in the order of the text."""
    return list(dict.fromkeys(text[start:end] for start, end in urls(text)))

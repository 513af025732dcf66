"""Looking at little of a text finds what looking at all of it finds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.secret_shapes import HARMLESS, in_context
from support.secret_shapes import shapes as live

from k3agent.safety import shapes

NEEDLES = sorted({needle for shape in shapes.SHAPES for needle in shape.needles})
FRAGMENTS = [
    *live().values(),
    *(text for text, _ in in_context().values()),
    *HARMLESS,
    *NEEDLES,
    *(" ", "\t", "\n", "\r\n", "\u00a0", "=", ":", ": ", '"', "'", "?", "&", "@", "/", "-", "_", ".", "Z9"),
    *("machine h login u password s3cret99", "https://u:p4ssw0rd@h/", "?token=", "Authorization: Bearer "),
    "a" * 40,
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


def naive(text: str, only_wrapping: bool) -> set[tuple[int, int, str]]:
    """Each pattern on each whole line that has one of its words."""
    found: set[tuple[int, int, str]] = set()
    for shape in shapes.SHAPES:
        if only_wrapping and not shape.wraps:
            continue
        pattern = re.compile(shape.pattern.removesuffix(shapes._END) if only_wrapping else shape.pattern)
        for line in re.finditer(r"(?s:.+)" if shape.is_multiline else r"[^\n]+", text):
            begin, end = line.span()
            if any(text.find(needle, begin, end) >= 0 for needle in shape.needles):
                group = "secret" if "secret" in pattern.groupindex else 0
                found |= {(*hit.span(group), shape.label) for hit in pattern.finditer(text, begin, end)}
    return found


@given(TEXTS)
def test_all_that_a_look_at_whole_lines_finds(text: str) -> None:
    assert set(shapes.find(text)) == naive(text, only_wrapping=False)


@given(TEXTS)
def test_the_same_without_line_breaks(text: str) -> None:
    joined = text.replace("\n", "")
    assert set(shapes.find(joined, only_wrapping=True)) == naive(joined, only_wrapping=True)


@pytest.mark.parametrize(
    "text",
    [
        "sk-" * 50_000,
        "gsk_" + "a" * 150_000,
        "TOKEN=" * 25_000,
        "TOKEN=1" * 21_000 + "(",
        "eyJ-" * 30_000,
        "a-b+c." * 25_000 + " ://@",
        "A1b2" * 40_000 + " -----END PRIVATE KEY",
        ("A" * 40 + "\n") * 3_000 + "- PRIVATE KEY-----",
    ],
    ids=["sk", "letters", "names", "names and values", "token", "address", "key", "lines of a key"],
)
def test_a_text_made_to_be_slow_is_not(text: str) -> None:
    """By the square each of them would take minutes."""
    assert len(list(shapes.find(text))) <= 1


def test_what_is_very_long_is_still_found() -> None:
    value = "aB3" * 5_000
    for text, secret in (
        (f"API_TOKEN={value}.", value),
        (f"eyJ{'a' * 500}.eyJ{value}.{value}", f"eyJ{'a' * 500}.eyJ{value}.{value}"),
    ):
        assert any(text[begin:end] == secret for begin, end, _ in shapes.find(text))
    lines = "\n".join(["MIIE" + "b7Q/" * 15] * 150)
    text = f"a word\n{lines}\n-----END RSA PRIVATE KEY-----\n"
    assert [text[begin:end] for begin, end, _ in shapes.find(text)] == [text[7:-1]]


def test_one_long_line_of_words_is_looked_at_word_by_word() -> None:
    """Each window once: by the square it would take minutes."""
    text = "dp. " * 200_000
    assert list(shapes.find(text, only_wrapping=True)) == []
    assert list(shapes.find("dp." * 200_000, only_wrapping=True)) == []

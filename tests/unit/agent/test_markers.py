"""Markers of K3's grammar are found however the stream cuts them, and nothing else is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.agent.markers import STRUCTURAL, THINK, LeakFilter, mentions_marker


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def run(pieces: list[str], *, finds_think: bool = True) -> tuple[str, str | None]:
    leaks = LeakFilter(is_on=True, finds_think=finds_think)
    shown = "".join(leaks.feed(piece) for piece in pieces)
    return shown + leaks.flush(), leaks.leak


harmless = st.text(st.sampled_from("ab <|>openthik/\n_"), max_size=60).filter(
    lambda text: not mentions_marker(text)
)


@given(harmless, st.lists(st.integers(0, 99), max_size=8))
def test_harmless_text_passes_unchanged(text: str, places: list[int]) -> None:
    assert run(cut(text, places)) == (text, None)


@given(harmless, st.sampled_from(STRUCTURAL), harmless, st.lists(st.integers(0, 199), max_size=8))
def test_a_structural_marker_is_found_and_nothing_of_it_shown(
    before: str, marker: str, after: str, places: list[int]
) -> None:
    shown, leak = run(cut(before + marker + after, places))
    assert leak is not None
    assert before.startswith(shown) or (before + marker).startswith(shown)
    assert not any(part in shown for part in STRUCTURAL)
    assert len(shown) <= len(before)


@given(harmless, st.sampled_from(THINK), st.lists(st.integers(0, 199), max_size=6))
def test_think_tags_count_at_the_beginning_of_a_line_of_text(
    before: str, tag: str, places: list[int]
) -> None:
    shown, leak = run(cut(before + "\n" + tag + "x", places))
    assert leak is not None and tag not in shown
    assert run(cut("a word " + tag, places)) == ("a word " + tag, None)
    assert run(cut(tag + "x", places), finds_think=False) == (tag + "x", None)


@pytest.mark.parametrize("text", ["a < b", "<|", "<|open", "x <thin", "1 <| 2", "<", "|>"])
def test_the_beginning_of_a_marker_alone_is_text(text: str) -> None:
    assert run(list(text)) == (text, None)


def test_switched_off_it_shows_everything_at_once() -> None:
    leaks = LeakFilter(is_on=False, finds_think=True)
    assert leaks.feed("<|open|>") == "<|open|>" and leaks.leak is None


@pytest.mark.parametrize(
    ("text", "found"), [("x<|sep|>y", True), ("  <think>", True), ("say <think>", False)]
)
def test_mentions(text: str, found: bool) -> None:
    assert mentions_marker(text) is found

"""The event-stream decoder: any cutting of the bytes gives the same events, and only CR and LF end a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.providers.sse import MAX_EVENT_BYTES, SseDecoder, SseError, SseEvent


def decode(raw: bytes, sizes: list[int]) -> list[SseEvent]:
    decoder = SseDecoder()
    events: list[SseEvent] = []
    at = 0
    for size in [*sizes, len(raw)]:
        events += decoder.feed(raw[at : at + size])
        at += size
    return events + decoder.flush()


TEXT = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=30)


@given(
    st.lists(TEXT.filter(bool), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 9)),
)
def test_any_cutting_gives_the_same_events(texts: list[str], newline: str, sizes: list[int]) -> None:
    raw = "".join(f"data: {text}{newline}{newline}" for text in texts).encode()
    assert [event.data for event in decode(raw, sizes)] == texts


def test_fields_comments_and_several_data_lines() -> None:
    raw = b"\xef\xbb\xbf: keep-alive\nevent: x\ndata:one\ndata: two\nid: 7\nretry: 3\n\ndata: last"
    assert decode(raw, []) == [
        SseEvent(comment="keep-alive"),
        SseEvent(data="one\ntwo", name="x"),
        SseEvent(data="last"),
    ]


def test_unicode_line_ends_are_text() -> None:
    raw = "data: a\u2028b\u2029c\x85d\x0be\x0cf\n\n".encode()
    assert decode(raw, [])[0].data == "a\u2028b\u2029c\x85d\x0be\x0cf"


def test_a_long_line_in_small_pieces_is_not_joined_again_and_again() -> None:
    """32 MB in 8,192 pieces: copying what is there for each piece would take minutes."""
    decoder = SseDecoder()
    assert decoder.feed(b"data: ") == []
    for _ in range(8192):
        assert decoder.feed(b"x" * 4096) == []
    assert [len(event.data) for event in decoder.feed(b"\n\n")] == [32 << 20]


def test_a_line_without_an_end_is_given_up() -> None:
    decoder = SseDecoder()
    with pytest.raises(SseError, match="more than"):
        for _ in range(MAX_EVENT_BYTES // 65536 + 1):
            decoder.feed(b"x" * 65536)

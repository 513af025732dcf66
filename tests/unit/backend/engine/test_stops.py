"""Stop strings: found wherever tokens cut them, in the response alone, and the engine ends there."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from k3agent.backend.chat.tokenizer import Tokenizer  # after the skip
from k3agent.backend.engine.stops import StopWatch


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(tiny_dir)


def first_stop(tokenizer: Tokenizer, watch: StopWatch, ids: list[int]) -> tuple[int, str] | None:
    """How many tokens were fed until a stop string was found, and which."""
    for count, token_id in enumerate(ids, 1):
        found = watch.feed(token_id)
        if found is not None:
            return count, found
    return None


def bytewise(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token a byte, as odd a spelling as there is."""
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [single[bytes([byte])] for byte in text.encode()]


texts = st.text(st.sampled_from("ab\né"), max_size=12)


@given(text=texts, stops=st.lists(st.text(st.sampled_from("ab\né"), min_size=1, max_size=4), max_size=3))
def test_the_earliest_end_is_found(tokenizer: Tokenizer, text: str, stops: list[str]) -> None:
    ids = bytewise(tokenizer, text)
    found = first_stop(tokenizer, StopWatch(tokenizer, tuple(stops), None), ids)
    data = text.encode()
    ends = [data.find(s.encode()) + len(s.encode()) for s in stops if s.encode() in data]
    if not ends:
        assert found is None
    else:
        assert found is not None
        assert found[0] == min(ends) and data[: min(ends)].endswith(found[1].encode())


def test_a_match_may_lie_inside_one_token(tokenizer: Tokenizer) -> None:
    longest = max(range(tokenizer.vocab_size), key=lambda i: len(tokenizer.token_bytes(i)))
    text = tokenizer.decode([longest])
    if len(text) > 2:
        watch = StopWatch(tokenizer, (text[1:2],), None)
        assert watch.feed(longest) == text[1:2]


def test_only_the_response_is_searched(tokenizer: Tokenizer) -> None:
    def marker(name: str) -> int:
        return tokenizer.special(f"<|{name}|>")

    def text(value: str) -> list[int]:
        return tokenizer.encode(value)

    think = [*text("a stop b"), marker("close"), *text("think"), marker("sep")]
    opened = [marker("open"), *text("response"), marker("sep")]
    assert first_stop(tokenizer, StopWatch(tokenizer, ("stop",), "think"), think + opened) is None
    answer = [*think, *opened, *text("well, stop")]
    assert first_stop(tokenizer, StopWatch(tokenizer, ("stop",), "think"), answer) == (len(answer), "stop")
    # neither the tags' names nor a match across markup count
    assert first_stop(tokenizer, StopWatch(tokenizer, ("response", "think"), "think"), think + opened) is None
    split = [*text("st"), marker("close"), *text("response"), marker("sep"), *text("op")]
    assert first_stop(tokenizer, StopWatch(tokenizer, ("stop",), "response"), split) is None
    plain = StopWatch(tokenizer, ("stop",), None)
    assert first_stop(tokenizer, plain, think) is not None

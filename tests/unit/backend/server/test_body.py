"""Bodies: what is JSON here, and how deep and how large it may be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.errors import BadRequestError
from k3agent.backend.server import body
from k3agent.backend.server.body import MAX_DEPTH, decode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=st.dictionaries(st.text(), JSON))
def test_objects_come_through(value: dict[str, object]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = json.dumps(value).encode()
    try:
        assert decode(data) == json.loads(data)
    except BadRequestError:
        # the only thing that a real value can be refused for here is an infinite number
        assert "Infinity" in text


@given(data=st.binary(max_size=200))
def test_bytes_are_an_object_or_refused(data: bytes) -> None:
    try:
        assert isinstance(decode(data), dict)
    except BadRequestError as error:
        assert "body" in str(error)


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_depth() -> None:
    decode(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 5000, 200_000):
        with pytest.raises(BadRequestError, match="nested deeper"):
            decode(nested(depth))


def test_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_VALUES", 100)
    decode(b'{"a": [' + b"1," * 90 + b"1]}")
    for text in (b'{"a": [' + b"1," * 200 + b"1]}", b'{"a": [' + b"[]," * 200 + b"1]}"):
        with pytest.raises(BadRequestError, match="more than 100 values"):
            decode(text)


def test_a_mark_in_front_is_no_content() -> None:
    assert decode(b"\xef\xbb\xbf{}") == {}

"""Codec: what is written is what is read."""

from __future__ import annotations

import dataclasses
import json
import typing
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent import codec
from k3agent import events as ev
from k3agent.types import (
    Finish,
    ImagePart,
    Message,
    MessageId,
    Origin,
    ReasoningPart,
    Role,
    SessionId,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
# Texts of a message never hold lone surrogates next to each other; see `step._whole`.
texts = st.text(max_size=40)
images = st.builds(ImagePart, mime=st.sampled_from(["image/png", "image/webp"]), data=st.binary(max_size=60))
results = st.builds(
    ToolResult,
    call_id=texts,
    content=st.lists(st.builds(TextPart, text=texts) | images, min_size=1, max_size=3).map(tuple),
    is_error=st.booleans(),
)
parts = (
    st.builds(TextPart, text=texts)
    | st.builds(ReasoningPart, text=texts, details=st.none() | st.lists(objects, max_size=2).map(tuple))
    | images
    | st.builds(ToolCall, id=texts, name=texts, arguments=texts)
    | results
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])
times = st.datetimes(timezones=zones)
counts = st.integers(0, 10**9)
usages = st.builds(
    Usage, input_tokens=counts, cached_tokens=counts, output_tokens=counts, reasoning_tokens=counts
)
messages = st.builds(
    Message,
    id=texts.map(MessageId),
    parent=st.none() | texts.map(MessageId),
    role=st.sampled_from(Role),
    origin=st.sampled_from(Origin),
    parts=st.lists(parts, max_size=4).map(tuple),
    created_at=times,
    model=st.none() | texts,
    finish=st.none() | st.sampled_from(Finish),
    usage=st.none() | usages,
)


@given(messages)
def test_a_message_comes_back_equal(message: Message) -> None:
    text = codec.message_to_json(message)
    assert codec.message_from_json(text) == message
    assert "\n" not in text
    assert codec.message_to_json(codec.message_from_json(text)) == text


@given(ANY_TEXT)
def test_every_text_can_be_stored_as_utf8(text: str) -> None:
    encoded = codec.dump({"text": text}).encode()
    # Neighbouring surrogate halves are one character in JSON; everything else comes back as it was.
    read = json.loads(encoded)["text"]
    assert read.encode("utf-16-le", "surrogatepass") == text.encode("utf-16-le", "surrogatepass")


FIELDS = {
    "str": texts,
    "int": counts,
    "int | None": st.none() | counts,
    "float": st.floats(0, 1e9),
    "bool": st.booleans(),
    "JsonObject | None": st.none() | objects,
    "SessionId": texts.map(SessionId),
    "datetime": times,
    "Message": messages,
    "ToolResult": results,
    "Usage": usages,
    "Decision": st.sampled_from(ev.Decision),
    "TurnOutcome": st.sampled_from(ev.TurnOutcome),
    "tuple[str, ...]": st.lists(texts, max_size=3).map(tuple),
}
EVENTS = typing.get_args(ev.AnyEvent)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_comes_back_equal(kind: type) -> None:
    fields = {field.name: FIELDS[str(field.type)] for field in dataclasses.fields(kind)}

    @given(st.builds(kind, **fields))
    def check(event: ev.AnyEvent) -> None:
        assert codec.event_from_json(codec.event_to_json(event)) == event

    check()


def test_every_event_class_is_in_the_union() -> None:
    assert set(codec._event_types().values()) == set(EVENTS)


def test_a_newer_format_is_refused_with_advice() -> None:
    message = Message(
        id=MessageId("m"),
        parent=None,
        role=Role.USER,
        origin=Origin.HUMAN,
        parts=(),
        created_at=datetime.now(UTC),
    )
    body = codec.message_to_dict(message)
    body["v"] = codec.FORMAT + 1
    with pytest.raises(codec.FormatError, match="update k3agent"):
        codec.message_from_dict(body)
    body["v"] = codec.FORMAT
    body["parts"] = [{"type": "hologram"}]
    with pytest.raises(codec.FormatError, match="hologram"):
        codec.message_from_json(json.dumps(body))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"v":1}', '{"v":1,"id":"a","parent":null,"role":"king"}']
)
def test_what_is_no_message_is_a_format_error(text: str) -> None:
    with pytest.raises(codec.FormatError):
        codec.message_from_json(text)


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    message = Message(
        id=MessageId("m"),
        parent=None,
        role=Role.USER,
        origin=Origin.HUMAN,
        parts=(),
        created_at=datetime.now(UTC),
    )
    body = {**codec.message_to_dict(message), "mood": "sunny"}
    assert codec.message_from_dict(body) == message


def test_specs_come_back_equal() -> None:
    spec = ToolSpec(name="read", description="Läs.\nmehr", parameters={"type": "object", "properties": {}})
    assert codec.spec_from_dict(json.loads(codec.dump(codec.spec_to_dict(spec)))) == spec

"""What an endpoint may say that nothing can hold: half characters in names, numbers without end."""

from __future__ import annotations

import math

import pytest

from k3agent.providers.answer import AnswerReader, parse_usage
from k3agent.providers.callreader import CallReader
from k3agent.types import CallDelta


def test_names_ids_and_models_are_texts_that_can_be_stored() -> None:
    reader = AnswerReader(CallReader(set(), str), frozenset({"read"}), is_lenient=False)
    call = {"index": 0, "id": "c\ud800", "function": {"name": "re\udfffad", "arguments": "{}"}}
    chunk = {"model": "m\ud800", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    (delta,) = reader.feed(chunk)
    assert isinstance(delta, CallDelta)
    assert (delta.id, delta.name, reader.model) == ("c?", "re?ad", "m?")
    # The same id in a later fragment is the same call.
    more = {"index": 0, "id": "c\ud800", "function": {"arguments": "x"}}
    assert reader.feed({"choices": [{"index": 0, "delta": {"tool_calls": [more]}}]}) == [
        CallDelta(index=0, arguments="x")
    ]


@pytest.mark.parametrize("value", [2**70, 1e300, math.inf, math.nan, -5, "many", [1], True, None])
def test_a_usage_that_no_model_has_is_none(value: object) -> None:
    assert parse_usage({"prompt_tokens": value, "completion_tokens": value}) is None
    found = parse_usage({"prompt_tokens": 7, "completion_tokens": value, "cached_tokens": value})
    assert found is not None and (found.input_tokens, found.output_tokens) == (7, 0)

"""Argument strings: read, repaired where nothing is invented, refused with a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.agent.arguments import ArgumentsInvalid, canonical, parse_object, validate
from k3agent.tools.edit import EditArgs
from k3agent.tools.read import ReadArgs
from k3agent.tools.todo import TodoArgs

values = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=6), values, max_size=4)


@given(objects)
def test_valid_json_is_taken_as_it_is(value: dict) -> None:
    assert parse_object(json.dumps(value)) == (value, "")


@given(objects.filter(bool))
def test_missing_closers_at_the_end_are_added(value: dict) -> None:
    assert parse_object(json.dumps(value)[:-1])[0] == value


@given(objects.filter(bool), st.integers(1, 400))
def test_what_is_cut_off_is_never_completed_into_a_longer_text(value: dict, length: int) -> None:
    text = json.dumps(value)[:length]
    try:
        found, _ = parse_object(text)
    except ArgumentsInvalid:
        return

    def strings(item: object) -> set[str]:
        if isinstance(item, dict):
            return {text for pair in item.items() for part in pair for text in strings(part)}
        if isinstance(item, list):
            return {text for part in item for text in strings(part)}
        return {item} if isinstance(item, str) else set()

    assert strings(found) <= strings(value)


@pytest.mark.parametrize("text", ["", "  ", "{}", " {} "])
def test_nothing_is_an_empty_object(text: str) -> None:
    assert parse_object(text) == ({}, "")


@pytest.mark.parametrize(
    ("text", "value", "note"),
    [
        ('{"a": 1,}', {"a": 1}, "a trailing comma"),
        ('{"a": [1, 2,],}', {"a": [1, 2]}, "a trailing comma"),
        ('{"a": ",}"}', {"a": ",}"}, ""),
        ('{"a": "x\ny"}', {"a": "x\ny"}, "line breaks"),
        ('```json\n{"a": 1}\n```', {"a": 1}, "a code fence"),
        ('{"a": {"b": [1', {"a": {"b": [1]}}, "missing closing brackets"),
        ("{'a': True, 'b': None}", {"a": True, "b": None}, "Python quotes"),
        ('"{\\"a\\": 1}"', {"a": 1}, "an object inside a string"),
    ],
)
def test_repairs_are_said(text: str, value: dict, note: str) -> None:
    found, said = parse_object(text)
    assert found == value and said.startswith(note) and bool(said) == bool(note)


@pytest.mark.parametrize(
    "text",
    ['{"content": "half a te', '{"a": 1]', "rm -rf /", '{"a" 1}', "{'a': open('x')}", '{"a": "\\u12"}'],
)
def test_what_cannot_be_repaired_is_refused(text: str) -> None:
    with pytest.raises(ArgumentsInvalid, match="not valid JSON"):
        parse_object(text)


@pytest.mark.parametrize(
    ("text", "kind"), [("[1]", "a list"), ("3", "a number"), ("null", "null"), ("true", "a boolean")]
)
def test_other_json_is_named(text: str, kind: str) -> None:
    with pytest.raises(ArgumentsInvalid, match=f"not {kind}"):
        parse_object(text)


def problem(kind: type, value: dict) -> str:
    with pytest.raises(ArgumentsInvalid) as caught:
        validate(kind, value)
    return str(caught.value)


def test_problems_name_the_field_and_the_reason() -> None:
    assert problem(ReadArgs, {}) == "path: missing"
    assert problem(ReadArgs, {"path": "a", "lines": 3}).startswith(
        "lines: unknown; the fields are path, offset"
    )
    assert problem(ReadArgs, {"path": 3}).startswith("path: input should be a valid string")
    both = problem(EditArgs, {"path": "a", "old": 1})
    assert "old: " in both and "; new: missing" in both
    assert problem(TodoArgs, {"items": [{"text": "a", "status": "lost"}]}).startswith("items.0.status: ")


def test_valid_arguments_are_given_back() -> None:
    assert validate(ReadArgs, {"path": "a"}) == ReadArgs(path="a")


def test_comparison_ignores_order_and_spaces_of_json_only() -> None:
    assert canonical('{"a":1,"b":"x y"}') == canonical('{ "b": "x y", "a": 1 }')
    assert canonical('{"b":"x y"}') != canonical('{"b":"x  y"}')
    assert canonical("") == canonical("{}")
    assert canonical("{torn  text") == canonical("{torn text")


@pytest.mark.parametrize(
    "text",
    [
        '{"path": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": ' * 5000 + "1" + "}" * 5000,
        '{"a": ' * 100 + "1" + "}" * 100,
        '{"path": ' + "[" * 100_000,
        json.dumps('{"a": ' * 5000 + "1" + "}" * 5000),
    ],
)
def test_what_is_nested_without_end_is_refused_and_not_a_crash(text: str) -> None:
    with pytest.raises(ArgumentsInvalid):
        parse_object(text)

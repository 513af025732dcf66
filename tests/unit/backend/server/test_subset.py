"""Schemas within and outside what Kimi's API takes, and who is held to it."""

from typing import Any

import pytest

from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.sampling import Profile
from k3agent.backend.server.schema import parse_chat
from k3agent.backend.server.subset import check_subset

TEXT = {"type": "string"}


def with_property(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        with_property(TEXT, required=["a"], additionalProperties=False),
        with_property({"type": "string", "enum": ["x", "y"], "default": "x", "description": "d"}),
        with_property({"anyOf": [TEXT, {"type": "null"}], "title": "t"}),
        with_property({"$ref": "#/$defs/node"}, **{"$defs": {"node": with_property({"$ref": "#"})}}),
        with_property({"type": "array", "items": TEXT, "minItems": 1, "maxItems": 9}),
        {"type": "object", "additionalProperties": {}},
        {"type": "object", "additionalProperties": TEXT, "$id": "x"},
    ],
)
def test_within(schema: dict[str, Any]) -> None:
    check_subset(schema, "it")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string"}, "root"),
        ({"properties": {"a": TEXT}}, "root"),
        ({"type": "object", "$schema": "x"}, r"\$schema"),
        (with_property({}), "type is required"),
        (with_property(True), "a schema is an object"),
        (with_property({"type": ["string", "null"]}), "type"),
        (with_property({"type": "text"}), "text"),
        (with_property({"type": "string", "pattern": "a"}), "pattern"),
        (with_property({"type": "string", "const": "a"}), "const"),
        (with_property({"type": "string", "$defs": {}}), r"\$defs"),
        (with_property({"type": "string", "anyOf": [TEXT]}), "beside anyOf"),
        (with_property({"anyOf": []}), "anyOf"),
        (with_property({"$ref": "http://x"}), r"\$ref"),
        (with_property({"type": "string", "enum": ["x", 1]}), "one kind"),
        (with_property({"type": "string", "enum": []}), "enum"),
        (with_property({"type": "array", "items": [TEXT]}), "a schema is an object"),
        (with_property(TEXT, required=["b"]), "b"),
        (with_property(TEXT, required=["a"], additionalProperties=5), "additionalProperties"),
        ({"type": "object", "properties": {"anyOf": TEXT}}, "called anyOf"),
        (with_property(TEXT, **{"$defs": {"a/b": TEXT}}), "no /"),
    ],
)
def test_outside(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequestError, match=f"it is not a valid moonshot flavored json schema.*{words}"):
        check_subset(schema, "it")


def test_depth_is_bounded() -> None:
    schema: dict[str, Any] = TEXT
    for _ in range(28):
        schema = with_property(schema)
    check_subset(schema, "it")
    for _ in range(100):
        schema = with_property(schema)
    with pytest.raises(BadRequestError, match="deeper"):
        check_subset(schema, "it")


def test_only_the_strict_profile_and_strict_schemas_are_held_to_it() -> None:
    def body(**function: Any) -> dict[str, Any]:
        parameters = with_property({"type": "string", "pattern": "a"})
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters, **function}}
        return {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}

    parse_chat(body(), Profile())
    parse_chat(body(strict=False), Profile(is_strict=True))
    with pytest.raises(BadRequestError, match="pattern"):
        parse_chat(body(), Profile(is_strict=True))
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string"}}}
    plain = {**body(strict=False), "response_format": answer}
    parse_chat(plain, Profile())
    with pytest.raises(BadRequestError, match="response_format"):
        parse_chat(plain, Profile(is_strict=True))

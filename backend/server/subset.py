"""The part of JSON Schema that Kimi's API takes for tools and answers; the strict profile asks for it."""

from collections.abc import Iterator
from typing import Any

from k3agent.backend.chat.template import Json
from k3agent.backend.server.fields import refuse, shown

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_BESIDE_REF = frozenset({"$ref", "anyOf", "description", "title"})
_ROOT_ONLY = frozenset({"$defs", "$id"})
_ALLOWED = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "$ref"}
    | {"description", "title", "default", "minLength", "maxLength", "minimum", "maximum"}
    | {"minItems", "maxItems"}
)
_RESERVED_NAMES = frozenset({"$defs", "$ref", "anyOf", "required", "additionalProperties"})
_MAX_DEPTH = 30
_MAX_ENUM = 1000
_MAX_ANY_OF = 500


def check_subset(schema: Json, what: str) -> None:
    """Raise BadRequestError for a schema outside the subset; `what` names it."""
    details = next(_faults(schema), None)
    if details is not None:
        refuse(f"{what} is not a valid moonshot flavored json schema, details: <{details}>")


def _faults(root: Json) -> Iterator[str]:
    """What is wrong, first things first."""
    if root and root.get("type") != "object" and "$ref" not in root:
        yield 'the root must have type "object"'
    level: list[tuple[str, Any, bool]] = [("root", root, True)]
    for name, schema in (root.get("$defs") or {}).items() if isinstance(root.get("$defs"), dict) else ():
        if "/" in name:
            yield f"$defs.{name}: no / in names"
        level.append((f"$defs.{name}", schema, False))
    for _ in range(_MAX_DEPTH):
        deeper: list[tuple[str, Any, bool]] = []
        for at, schema, may_be_empty in level:
            yield from _faults_of_one(at, schema, may_be_empty, is_root=schema is root)
            if isinstance(schema, dict):
                deeper += _below(at, schema)
        if not deeper:
            return
        level = deeper
    yield f"nested deeper than {_MAX_DEPTH} levels"


def _below(at: str, schema: Json) -> Iterator[tuple[str, Any, bool]]:
    """The schemas within one, and whether they may be empty."""
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        yield f"{at}.{name}", inner, False
    if "items" in schema:
        yield f"{at}[]", schema["items"], False
    if isinstance(schema.get("additionalProperties"), dict):
        yield f"{at}.additionalProperties", schema["additionalProperties"], True
    branches = schema.get("anyOf")
    for number, inner in enumerate(branches) if isinstance(branches, list) else ():
        yield f"{at}.anyOf[{number}]", inner, False


def _faults_of_one(at: str, schema: Any, may_be_empty: bool, *, is_root: bool) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield f"{at}: a schema is an object, not {shown(schema)}"
        return
    unknown = schema.keys() - _ALLOWED - (_ROOT_ONLY if is_root else frozenset())
    if unknown:
        yield f"{at}: {min(unknown)} is not supported"
    if "anyOf" in schema or "$ref" in schema:
        beside = schema.keys() - _BESIDE_REF - (_ROOT_ONLY if is_root else frozenset())
        if beside:
            yield f"{at}: {min(beside)} must not stand beside anyOf or $ref"
        reference = schema.get("$ref", "#")
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/$defs/")):
            yield f"{at}: $ref {shown(reference)} must be # or #/$defs/NAME"
        branches = schema.get("anyOf", [{}])
        if not isinstance(branches, list) or not 1 <= len(branches) <= _MAX_ANY_OF:
            yield f"{at}: anyOf must be 1 to {_MAX_ANY_OF} schemas"
    elif "type" not in schema and (schema or not may_be_empty):
        yield f"{at}: type is required"
    elif schema.get("type", "object") not in _TYPES:
        yield f"{at}: type {shown(schema.get('type'))} is not one of {', '.join(_TYPES)}"
    yield from _faults_of_parts(at, schema)


def _faults_of_parts(at: str, schema: Json) -> Iterator[str]:
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        yield f"{at}: properties must be an object"
        properties = {}
    if reserved := properties.keys() & _RESERVED_NAMES:
        yield f"{at}: a property must not be called {min(reserved)}"
    required = schema.get("required", [])
    if not isinstance(required, list):
        yield f"{at}: required must be an array"
    elif missing := [name for name in required if not isinstance(name, str) or name not in properties]:
        yield f"{at}: required names {shown(missing[0])}, which is not in properties"
    if not isinstance(schema.get("additionalProperties", True), bool | dict):
        yield f"{at}: additionalProperties must be a boolean or a schema"
    listed = schema.get("enum", [None])
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MAX_ENUM:
        yield f"{at}: enum must be 1 to {_MAX_ENUM} values"
    elif len({type(value) for value in listed}) > 1 or isinstance(listed[0], dict | list):
        yield f"{at}: enum must list scalars of one kind"

"""Tool schemas in the subset that Moonshot's endpoints accept.

References are put in place, keywords outside the subset go away, missing types are filled in. Arguments
are still checked against the tool's own schema; this is only how it is declared. Source: kimi-api.md
section 3.5.
"""

from __future__ import annotations

from typing import Any

from k3agent.types import JsonObject

_ALLOWED = (
    "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "$ref", "description",
    "title", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
)  # fmt: skip
_MAX_DEPTH = 30


def wire_schema(schema: JsonObject) -> JsonObject:
    """`schema` normalised; its root is an object schema, and one without parameters has empty properties."""
    definitions = schema.get("$defs") or schema.get("definitions") or {}
    root = _node(schema, definitions, ())
    root["type"] = "object"
    root.setdefault("properties", {})
    root.pop("anyOf", None)
    return root


def _node(schema: Any, definitions: JsonObject, path: tuple[str, ...]) -> JsonObject:
    if not isinstance(schema, dict) or len(path) > _MAX_DEPTH:
        return {"type": "string"}
    schema = _resolved(schema, definitions, path)
    reference = schema.get("$ref")
    if reference is not None:
        path = (*path, str(reference))
        schema = {key: value for key, value in schema.items() if key != "$ref"}
    if "anyOf" not in schema and isinstance(schema.get("oneOf"), list):
        schema = {**schema, "anyOf": schema["oneOf"]}
    if "const" in schema and "enum" not in schema:
        schema = {**schema, "enum": [schema["const"]]}
    node = {key: schema[key] for key in schema if key in _ALLOWED}
    if isinstance(node.get("type"), list):
        node = _split_types(node)
    if "anyOf" in node:
        branches = [_node(branch, definitions, path) for branch in node["anyOf"]]
        kept = {key: node[key] for key in ("description", "title") if key in node}
        return {"anyOf": branches, **kept}
    if "type" not in node:
        node = {"type": _guess_type(node), **node}
    _descend(node, definitions, path)
    return node


def _resolved(schema: JsonObject, definitions: JsonObject, path: tuple[str, ...]) -> JsonObject:
    """The target of a local reference, with what stood beside it; a cycle ends in a plain object."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    if reference in path:
        return {"type": "object"}
    target = definitions.get(reference.rsplit("/", 1)[-1], {"type": "object"})
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    return {**target, **beside, "$ref": reference}


def _descend(node: JsonObject, definitions: JsonObject, path: tuple[str, ...]) -> None:
    if isinstance(node.get("properties"), dict):
        node["properties"] = {
            name: _node(value, definitions, path) for name, value in node["properties"].items()
        }
    if isinstance(node.get("required"), list):
        names = node.get("properties", {})
        node["required"] = [name for name in node["required"] if name in names]
    if isinstance(node.get("additionalProperties"), dict) and node["additionalProperties"]:
        node["additionalProperties"] = _node(node["additionalProperties"], definitions, path)
    if "items" in node:
        node["items"] = (
            _node(node["items"], definitions, path) if isinstance(node["items"], dict) else {"type": "string"}
        )


def _split_types(node: JsonObject) -> JsonObject:
    """`type: [a, b]` as one branch for each type."""
    beside = {key: node[key] for key in ("description", "title") if key in node}
    rest = {key: value for key, value in node.items() if key not in {"type", *beside}}
    branches = [{"type": kind, **(rest if kind != "null" else {})} for kind in node["type"]]
    return {**branches[0], **beside} if len(branches) == 1 else {"anyOf": branches, **beside}


def _guess_type(node: JsonObject) -> str:
    if "properties" in node or "additionalProperties" in node:
        return "object"
    if "items" in node:
        return "array"
    values = node.get("enum") or []
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return kinds.get(type(values[0]), "string") if values else "string"

"""A tool as a model is told of it: its prompt text and a JSON schema that every Kimi endpoint takes.

Schema subset: kimi-api.md section 3.5. References are put in place, optional fields have their plain type and
are left out of `required`, defaults and titles go (defaults make constrained decoding unstable).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from k3agent.prompts.loader import load
from k3agent.tools.base import Args, Tool
from k3agent.types import JsonObject, ToolSpec

FULL_KEYS = (
    "description",
    "enum",
    "maximum",
    "maxLength",
    "minimum",
    "minLength",
    "maxItems",
    "minItems",
    "type",
)
COMPACT_KEYS = ("enum", "type")


def spec(tool: Tool[Any], compact: bool) -> ToolSpec:
    """`compact`: one sentence and the bare types, for the embedded model."""
    text = load(f"tools/{tool.name}")
    description = text.partition("\n")[0] if compact else text
    return ToolSpec(name=tool.name, description=description, parameters=schema(tool.args, compact))


@cache
def schema(args: type[Args], compact: bool) -> JsonObject:
    """The schema of `args` with sorted keys. Treat it as read-only: it is shared."""
    full = args.model_json_schema()
    return _plain(full, full.get("$defs", {}), COMPACT_KEYS if compact else FULL_KEYS)


def _plain(node: JsonObject, definitions: JsonObject, keys: tuple[str, ...]) -> JsonObject:
    if "$ref" in node:
        node = {
            **definitions[node["$ref"].removeprefix("#/$defs/")],
            **{k: node[k] for k in node if k != "$ref"},
        }
    branches = [branch for branch in node.get("anyOf", ()) if branch.get("type") != "null"]
    if len(branches) == 1:
        node = {**branches[0], **{key: value for key, value in node.items() if key != "anyOf"}}
    elif branches:
        raise TypeError(f"A tool argument has {len(branches)} possible types; give it one: {node}")
    result: JsonObject = {key: node[key] for key in keys if key in node}
    if node.get("type") == "object":
        properties: JsonObject = node.get("properties", {})
        result["properties"] = {
            name: _plain(properties[name], definitions, keys) for name in sorted(properties)
        }
        result["required"] = list(node.get("required", ()))
        if not result["required"]:
            del result["required"]
        if keys is COMPACT_KEYS:
            result.pop("description", None)
    if "items" in node:
        result["items"] = _plain(node["items"], definitions, keys)
    return dict(sorted(result.items()))

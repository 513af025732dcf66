"""Tool schemas in the accepted subset."""

from enum import Enum
from typing import Literal

from pydantic import BaseModel, Field

from k3agent.providers.schema import wire_schema

BANNED = {
    "$schema", "allOf", "oneOf", "not", "const", "pattern", "format", "multipleOf", "exclusiveMinimum",
    "exclusiveMaximum", "$ref", "$defs", "default", "uniqueItems", "prefixItems", "discriminator",
}  # fmt: skip


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    text: str = Field(min_length=1, pattern="^a")
    color: Color = Color.RED


class Everything(BaseModel):
    path: str
    limit: int | None = Field(default=None, gt=3)
    items: list[Item] = []
    mode: Literal["a"] = "a"
    pair: tuple[int, str] = (1, "x")
    free: dict[str, int] = {}
    child: "Everything | None" = None


def keywords(node: object, *, is_names: bool = False) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(keywords, node)) if node else set()
    if not isinstance(node, dict):
        return set()
    own = set() if is_names else set(node)
    return own.union(
        *(keywords(value, is_names=key == "properties" and not is_names) for key, value in node.items())
    )


def typed(node: dict) -> bool:
    if "anyOf" in node:
        return "type" not in node and all(typed(branch) for branch in node["anyOf"])
    inner = [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]
    return "type" in node and all(typed(child) for child in inner)


def test_pydantic_schema_fits_the_subset() -> None:
    schema = wire_schema(Everything.model_json_schema())
    assert not keywords(schema) & BANNED
    assert typed(schema)
    assert schema["properties"]["items"]["items"]["properties"]["color"]["enum"] == ["red", "blue"]
    assert schema["required"] == ["path"]


def test_plain_schema_stays_as_it_is() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    assert wire_schema(schema) == schema
    assert wire_schema({}) == {"type": "object", "properties": {}}


def test_names_in_required_exist() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a", "b"]}
    assert wire_schema(schema)["required"] == ["a"]
    assert wire_schema(schema)["properties"]["a"]["type"] == "integer"

"""Schemas: the subset that every Kimi endpoint takes, and the frozen form for the embedded model."""

import json
import subprocess
import sys

import pytest

from k3agent.prompts.loader import load
from k3agent.tools import BUILTIN, COMPACT
from k3agent.tools.specs import spec

ALLOWED = {
    "type", "properties", "required", "items", "enum", "description",
    "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
}  # fmt: skip
RESERVED = {"$defs", "$ref", "anyOf", "required", "additionalProperties"}


def check(node, allowed):
    assert set(node) <= allowed, node
    assert isinstance(node["type"], str)
    assert list(node) == sorted(node)
    if node["type"] == "object":
        assert list(node["properties"]) == sorted(node["properties"])
        assert set(node.get("required", ())) <= set(node["properties"])
        assert not set(node["properties"]) & RESERVED
        for child in node["properties"].values():
            check(child, allowed)
    if node["type"] == "array":
        check(node["items"], allowed)


@pytest.mark.parametrize("name", BUILTIN)
def test_schema_subset(name):
    full, compact = spec(BUILTIN[name], compact=False), spec(BUILTIN[name], compact=True)
    check(full.parameters, ALLOWED)
    check(compact.parameters, {"type", "properties", "required", "items", "enum"})
    assert full.name == compact.name == name
    assert compact.description == full.description.split("\n")[0]
    assert len(compact.description) <= 70 and compact.description.endswith(".")


def test_optional_fields_have_a_plain_type_and_take_null():
    tool = BUILTIN["edit"]
    parameters = spec(tool, compact=True).parameters
    assert parameters["properties"]["line"] == {"type": "integer"}
    assert parameters["required"] == ["path", "old", "new"]
    assert tool.args(path="a", old="b", new="c", line=None).line is None  # pyright: ignore[reportAttributeAccessIssue]


def test_compact_form_is_frozen():
    """A model is trained on exactly these bytes."""
    tools = [spec(BUILTIN[name], compact=True) for name in COMPACT]
    assert [tool.description for tool in tools] == [
        "Read a text file; lines come with their numbers.",
        "Create a file or replace all of its text.",
        "Replace one piece of text in a file.",
        "Search file contents with a regular expression.",
        "List files and folders that match a pattern.",
        "Run a command in the workspace and show its output.",
        "Try small changes around a line until a command succeeds.",
    ]
    assert [(tool.name, json.dumps(tool.parameters, separators=(",", ":"))) for tool in tools] == [
        (
            "read",
            '{"properties":{"limit":{"type":"integer"},"offset":{"type":"integer"},"path":{"type":"string"}},'
            '"required":["path"],"type":"object"}',
        ),
        (
            "write",
            '{"properties":{"content":{"type":"string"},"path":{"type":"string"}},'
            '"required":["path","content"],"type":"object"}',
        ),
        (
            "edit",
            '{"properties":{"all":{"type":"boolean"},"line":{"type":"integer"},"new":{"type":"string"},'
            '"old":{"type":"string"},"path":{"type":"string"}},"required":["path","old","new"],"type":"object"}',
        ),
        (
            "grep",
            '{"properties":{"glob":{"type":"string"},"ignore_case":{"type":"boolean"},'
            '"limit":{"type":"integer"},"path":{"type":"string"},"pattern":{"type":"string"}},'
            '"required":["pattern"],"type":"object"}',
        ),
        (
            "glob",
            '{"properties":{"limit":{"type":"integer"},"path":{"type":"string"},"pattern":{"type":"string"}},'
            '"required":["pattern"],"type":"object"}',
        ),
        (
            "shell",
            '{"properties":{"background":{"type":"boolean"},"command":{"type":"string"},'
            '"timeout_s":{"type":"integer"}},"required":["command"],"type":"object"}',
        ),
        (
            "try",
            '{"properties":{"command":{"type":"string"},"line":{"type":"integer"},"path":{"type":"string"}},'
            '"required":["path","line","command"],"type":"object"}',
        ),
    ]


def test_all_tools_cost_little():
    """About four characters are a token; the first request with everything must stay below 6,000 tokens."""
    tools = [spec(tool, compact=False) for tool in BUILTIN.values()]
    size = sum(len(json.dumps(tool.parameters)) + len(tool.description) for tool in tools)
    assert size < 4 * 3500


def test_prompt_texts_are_tidy():
    for name in BUILTIN:
        text = load(f"tools/{name}")
        assert text.isascii()
        assert text.split("\n")[1] == "" or "\n" not in text


def test_import_is_cheap():
    code = "import k3agent.tools, sys; assert 'pydantic' not in sys.modules; k3agent.tools.BUILTIN['read']"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_attribute():
    import k3agent.tools

    with pytest.raises(AttributeError):
        _ = k3agent.tools.NOTHING

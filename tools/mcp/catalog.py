"""What a server says of its tools, made fit for a model: names, descriptions, schemas, and their memory.

All of it is the server's own text: names lose odd characters, descriptions stand in a fence or go where they
talk to a model, and everything is bounded. What a server said last is kept, so that the next session
knows its tools before the server is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3agent.safety.fencing import fence, speaks_to_the_model
from k3agent.safety.visible import reveal
from k3agent.safety.writing import replace_text
from k3agent.types import JsonObject, ServerSpec, ToolSpec

PREFIX = "mcp__"
MAX_NAME_CHARS = 64
MAX_TOOLS = 300
MAX_REMEMBERED = 100
MAX_DESCRIPTION_CHARS = 4_000
MAX_SCHEMA_CHARS = 16_000
# What is longer is not even looked through for words that may stay: of one schema, of a server's schemas.
MAX_READ_CHARS = 4 * MAX_SCHEMA_CHARS
MAX_READ_CHARS_IN_ALL = 600_000
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_FILE = "mcp-tools.json"
# Keywords of a schema whose values are words for the model, and those whose values are data. Neither can
# stand in a fence, so what talks to a model goes, and long data goes, too.
_WORDS = ("description", "title", "$comment")
_SAMPLES = ("default", "examples", "example", "const", "enum")
MAX_SAMPLE_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A tool as its server names it, and as the model is told of it."""

    server: str
    tool: str
    spec: ToolSpec


def tool_name(server: str, tool: str) -> str:
    """The name for the model and for rules. What cannot stand in it is replaced, and told apart by a hash."""
    plain = f"{PREFIX}{server}__{_ODD.sub('_', tool)}"
    if plain == f"{PREFIX}{server}__{tool}" and len(plain) <= MAX_NAME_CHARS:
        return plain
    mark = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{plain[: MAX_NAME_CHARS - 7]}_{mark}"


def listed(server: str, tools: Iterable[Any]) -> tuple[Listed, ...]:
    """The tools of `tools/list` that can be used, by name; what is not understood is left out."""
    found: dict[str, Listed] = {}
    left = MAX_READ_CHARS_IN_ALL
    for tool in tools:
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not name or len(found) >= MAX_TOOLS:
            continue
        told = tool_name(server, name)
        if told not in found:
            schema = tool.get("inputSchema")
            size = _size(schema)
            left -= min(size, left) if size <= MAX_READ_CHARS else 0
            spec = ToolSpec(
                name=told,
                description=_description(server, name, tool.get("description")),
                parameters=_schema(schema) if size <= MAX_READ_CHARS and left else dict(_ANYTHING),
            )
            found[told] = Listed(server=server, tool=name, spec=spec)
    return tuple(found[name] for name in sorted(found))


def _size(schema: Any) -> int:
    try:
        return len(json.dumps(schema))
    except (ValueError, RecursionError):
        return MAX_READ_CHARS + 1


def _description(server: str, tool: str, text: Any) -> str:
    head = f"The tool {_one_line(tool)} of the MCP server {server}, which also wrote all about its arguments."
    if not isinstance(text, str) or not text.strip():
        return head
    # No more is looked through than is shown.
    text = reveal(text[: MAX_DESCRIPTION_CHARS + 1_000].strip())
    if speaks_to_the_model(text):
        return f"{head} Its description is left out: it talks to a model instead of telling of the tool."
    if len(text) > MAX_DESCRIPTION_CHARS:
        text = text[:MAX_DESCRIPTION_CHARS] + " [...]"
    return f"{head} What the server says of it:\n{fence(text, f'MCP server {server}')}"


def _one_line(text: str) -> str:
    return reveal(" ".join(text.split()))[:100]


_ANYTHING: JsonObject = {"type": "object", "properties": {}, "additionalProperties": True}


def _schema(schema: Any) -> JsonObject:
    """The schema of the arguments; without its words, or none, where it is too long."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    for with_words in (True, False):
        plain = _plain(schema, with_words, 0)
        assert isinstance(plain, dict)
        if len(json.dumps(plain)) <= MAX_SCHEMA_CHARS:
            return {**plain, "type": "object"}
    return dict(_ANYTHING)


def _plain(
    node: Any, with_words: bool, depth: int, *, are_names: bool = False, is_sample: bool = False
) -> Any:
    """`node` with what its words hide made visible, and without those that talk to a model. `are_names`: the
    keys are the server's own names; `is_sample`: all of it is data.
    """
    if depth > 40:
        return {}
    if isinstance(node, list):
        return [
            _plain(item, with_words, depth + 1, are_names=is_sample, is_sample=is_sample)
            for item in node
            if not _is_left_out(item, is_sample)
        ]
    if isinstance(node, str):
        return reveal(node)
    if not isinstance(node, dict):
        return node
    out: JsonObject = {}
    for key, value in node.items():
        is_keyword = not are_names
        if (is_keyword and key == "$schema") or speaks_to_the_model(key):
            continue
        becomes_sample = is_sample or (is_keyword and key in _SAMPLES)
        if _is_left_out(value, becomes_sample):
            continue
        if is_keyword and key in _WORDS and isinstance(value, str) and not with_words:
            continue
        names = becomes_sample or (is_keyword and key in ("properties", "$defs", "definitions"))
        plain = _plain(value, with_words, depth + 1, are_names=names, is_sample=becomes_sample)
        # An empty list of choices would allow nothing.
        if plain != [] or not (is_keyword and key in _SAMPLES):
            out[key] = plain
    return out


def _is_left_out(value: Any, is_sample: bool) -> bool:
    # JSON knows neither infinity nor NaN, Python's reader does.
    if isinstance(value, float):
        return not math.isfinite(value)
    if not isinstance(value, str):
        return False
    return bool(speaks_to_the_model(value)) or (is_sample and len(value) > MAX_SAMPLE_CHARS)


# --- what was said last -------------------------------------------------------------------------------------


def fingerprint(server: ServerSpec) -> str:
    """Of what the server is; tools of another one under the same name are not its tools."""
    what = [server.command, server.args, sorted(server.env), server.cwd, server.url]
    return hashlib.sha256(json.dumps(what).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def remembered(home: Path, server: ServerSpec) -> tuple[Listed, ...] | None:
    """The tools that the server had when it was last there; None when it never was."""
    entry = _load(home).get(fingerprint(server))
    return None if entry is None else listed(server.name, entry)


def remember(home: Path, server: ServerSpec, tools: list[Any]) -> None:
    """Keep what the server said; a folder that cannot be written only costs the memory."""
    known = _load(home)
    key = fingerprint(server)
    if known.get(key) == tools:
        return
    known.pop(key, None)
    known[key] = tools
    for old in list(known)[:-MAX_REMEMBERED]:
        del known[old]
    with contextlib.suppress(OSError):
        # For its owner alone, as everything in this folder.
        replace_text(home / _FILE, json.dumps(known), mode=0o600)


def _load(home: Path) -> dict[str, list[Any]]:
    try:
        data = json.loads((home / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, Mapping):
        return {}
    return {str(key): value for key, value in data.items() if isinstance(value, list)}

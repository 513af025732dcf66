"""What an editor is shown of a call: its kind, the places it touches, and the change it proposes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k3agent.safety.visible import code_block, reveal
from k3agent.types import ImagePart, JsonObject, TextPart, ToolResult

KINDS = {
    "read": "read",
    "write": "edit",
    "edit": "edit",
    "patch": "edit",
    "try": "edit",
    "grep": "search",
    "glob": "search",
    "shell": "execute",
    "jobs": "execute",
    "fetch": "fetch",
    "todo": "think",
    "ask": "think",
    "task": "think",
}
MAX_SHOWN_CHARS = 60_000
MAX_OLD_BYTES = 1 << 20


def kind_of(tool: str) -> str:
    return KINDS.get(tool, "other")


def arguments_of(text: str) -> JsonObject:
    """The arguments as an object; empty where the model's string is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def locations(tool: str, arguments: JsonObject, cwd: Path) -> list[JsonObject]:
    path = arguments.get("path")
    if not isinstance(path, str) or not path or tool not in ("read", "write", "edit", "try", "grep", "glob"):
        return []
    place: JsonObject = {"path": str(_absolute(path, cwd))}
    line = arguments.get("offset") if tool == "read" else arguments.get("line")
    if isinstance(line, int) and not isinstance(line, bool) and line > 0:
        place["line"] = line
    return [place]


def proposed(tool: str, arguments: JsonObject, cwd: Path) -> list[JsonObject]:
    """What can be shown before the call runs: the change of an edit, a patch, a command."""
    path = arguments.get("path")
    if tool == "edit" and isinstance(path, str):
        old, new = arguments.get("old"), arguments.get("new")
        if isinstance(old, str) and isinstance(new, str):
            return [_diff(_absolute(path, cwd), old, new)]
    if tool == "write" and isinstance(path, str) and isinstance(arguments.get("content"), str):
        place = _absolute(path, cwd)
        return [_diff(place, _text_of_file(place), arguments["content"])]
    if tool == "patch" and isinstance(arguments.get("patch"), str):
        return [text_content(f"```diff\n{arguments['patch']}\n```")]
    if tool in ("shell", "try") and isinstance(arguments.get("command"), str):
        return [text_content(f"```sh\n{arguments['command']}\n```")]
    return []


def result_content(tool: str, result: ToolResult) -> list[JsonObject]:
    """A result; program output stands in a code block."""
    content: list[JsonObject] = []
    for part in result.content:
        match part:
            case TextPart() if tool in ("shell", "try", "jobs", "grep", "read") and not result.is_error:
                content.append(text_content(shown_block(part.text)))
            case TextPart():
                content.append(text_content(part.text))
            case ImagePart():
                content.append({"type": "content", "content": image_block(part)})
    return content


def shown_block(text: str) -> str:
    """What a call printed, as a block."""
    return code_block(shown(text))


def shown(text: str) -> str:
    """Head and tail of a long text; hidden characters as marks."""
    if len(text) > MAX_SHOWN_CHARS:
        left = len(text) - MAX_SHOWN_CHARS
        half = MAX_SHOWN_CHARS // 2
        text = f"{text[:half]}\n[... {left} characters left out here]\n{text[-half:]}"
    return reveal(text)


def text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def text_content(text: str) -> JsonObject:
    return {"type": "content", "content": text_block(shown(text))}


def image_block(part: ImagePart) -> JsonObject:
    import base64  # lazy: only for images

    return {"type": "image", "mimeType": part.mime, "data": base64.b64encode(part.data).decode()}


def plan_entries(todo: Sequence[JsonObject]) -> list[JsonObject]:
    """The model's steps as the entries of a plan."""
    states = {"pending": "pending", "active": "in_progress", "done": "completed"}
    return [
        {
            "content": str(item.get("text", "")),
            "priority": "medium",
            "status": states.get(str(item.get("status")), "pending"),
        }
        for item in todo
    ]


def _absolute(path: str, cwd: Path) -> Path:
    return cwd / path


def _diff(path: Path, old: str | None, new: str) -> JsonObject:
    return {"type": "diff", "path": str(path), "oldText": old, "newText": new}


def _text_of_file(path: Path) -> Any:
    """The text that a `write` replaces, None for a new file or one that cannot be shown."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_OLD_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None

"""Messages, parts and events to JSON and back, with a format number.

A message is stored as the JSON made here and read back equal, byte for byte in every text. Images are
base64. A reader refuses a format newer than its own instead of guessing; new optional fields do not raise
the number.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from k3agent import events as ev
from k3agent.types import (
    Finish,
    ImagePart,
    JsonObject,
    Message,
    MessageId,
    Origin,
    Part,
    ReasoningPart,
    Role,
    SessionId,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

FORMAT = 1


class FormatError(ValueError):
    """Stored data that this version cannot read. The text says what it is and what to do."""


def dump(value: Any) -> str:
    """Compact JSON, non-ASCII kept. Lone surrogates, which UTF-8 cannot hold, are written as escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text


def part_to_dict(part: Part) -> JsonObject:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ReasoningPart():
            body: JsonObject = {"type": "reasoning", "text": part.text}
            if part.details is not None:
                body["details"] = list(part.details)
            return body
        case ImagePart():
            return {"type": "image", "mime": part.mime, "data": base64.b64encode(part.data).decode("ascii")}
        case ToolCall():
            return {"type": "call", "id": part.id, "name": part.name, "arguments": part.arguments}
        case ToolResult():
            return {"type": "result", **result_to_dict(part)}


def part_from_dict(body: JsonObject) -> Part:
    kind = body.get("type")
    if kind == "text":
        return TextPart(text=body["text"])
    if kind == "reasoning":
        details = body.get("details")
        return ReasoningPart(text=body["text"], details=None if details is None else tuple(details))
    if kind == "image":
        return ImagePart(mime=body["mime"], data=base64.b64decode(body["data"]))
    if kind == "call":
        return ToolCall(id=body["id"], name=body["name"], arguments=body["arguments"])
    if kind == "result":
        return result_from_dict(body)
    raise FormatError(f"stored message has a part of unknown type {kind!r}; a newer k3agent wrote it: update")


def result_to_dict(result: ToolResult) -> JsonObject:
    body: JsonObject = {"call_id": result.call_id, "content": [part_to_dict(part) for part in result.content]}
    if result.is_error:
        body["is_error"] = True
    return body


def result_from_dict(body: JsonObject) -> ToolResult:
    content = tuple(part_from_dict(part) for part in body["content"])
    kept = tuple(part for part in content if isinstance(part, TextPart | ImagePart))
    return ToolResult(call_id=body["call_id"], content=kept, is_error=bool(body.get("is_error", False)))


def usage_to_dict(usage: Usage) -> JsonObject:
    return {
        "input": usage.input_tokens,
        "cached": usage.cached_tokens,
        "output": usage.output_tokens,
        "reasoning": usage.reasoning_tokens,
    }


def usage_from_dict(body: JsonObject) -> Usage:
    return Usage(
        input_tokens=body["input"],
        cached_tokens=body["cached"],
        output_tokens=body["output"],
        reasoning_tokens=body["reasoning"],
    )


def spec_to_dict(spec: ToolSpec) -> JsonObject:
    return {"name": spec.name, "description": spec.description, "parameters": spec.parameters}


def spec_from_dict(body: JsonObject) -> ToolSpec:
    return ToolSpec(name=body["name"], description=body["description"], parameters=body["parameters"])


def message_to_dict(message: Message) -> JsonObject:
    body: JsonObject = {
        "v": FORMAT,
        "id": message.id,
        "parent": message.parent,
        "role": message.role.value,
        "origin": message.origin.value,
        "parts": [part_to_dict(part) for part in message.parts],
        "at": message.created_at.isoformat(),
    }
    if message.model is not None:
        body["model"] = message.model
    if message.finish is not None:
        body["finish"] = message.finish.value
    if message.usage is not None:
        body["usage"] = usage_to_dict(message.usage)
    return body


def message_from_dict(body: JsonObject) -> Message:
    _check_format(body)
    usage = body.get("usage")
    finish = body.get("finish")
    parent = body["parent"]
    return Message(
        id=MessageId(body["id"]),
        parent=None if parent is None else MessageId(parent),
        role=Role(body["role"]),
        origin=Origin(body["origin"]),
        parts=tuple(part_from_dict(part) for part in body["parts"]),
        created_at=datetime.fromisoformat(body["at"]),
        model=body.get("model"),
        finish=None if finish is None else Finish(finish),
        usage=None if usage is None else usage_from_dict(usage),
    )


def message_to_json(message: Message) -> str:
    return dump(message_to_dict(message))


def message_from_json(text: str) -> Message:
    """The message, equal to the one that was written. Raises FormatError for text that is not one."""
    try:
        return message_from_dict(json.loads(text))
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"stored message is unreadable ({error!r}): {text[:80]!r}") from error


def event_to_dict(event: ev.AnyEvent) -> JsonObject:
    body: JsonObject = {"v": FORMAT, "event": type(event).__name__}
    for name, codec in _fields(type(event)).items():
        value = getattr(event, name)
        body[name] = None if value is None else codec[0](value)
    return body


def event_from_dict(body: JsonObject) -> ev.AnyEvent:
    _check_format(body)
    kind = _event_types().get(body["event"])
    if kind is None:
        raise FormatError(f"unknown event {body['event']!r}; a newer k3agent wrote it: update")
    values: JsonObject = {}
    for name, codec in _fields(kind).items():
        if name in body:
            values[name] = None if body[name] is None else codec[1](body[name])
    return kind(**values)


def event_to_json(event: ev.AnyEvent) -> str:
    return dump(event_to_dict(event))


def event_from_json(text: str) -> ev.AnyEvent:
    return event_from_dict(json.loads(text))


def _check_format(body: JsonObject) -> None:
    version = body.get("v", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise FormatError(
            f"stored data has format {version!r}, this k3agent reads up to {FORMAT}: update k3agent"
        )


_Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _same(value: Any) -> Any:
    return value


# How a field's annotation is written and read. A new kind of field in events.py fails here, at its first use.
_BY_ANNOTATION: dict[str, _Pair] = {
    **{name: (_same, _same) for name in ("str", "int", "int | None", "float", "bool", "JsonObject | None")},
    "SessionId": (_same, SessionId),
    "datetime": (datetime.isoformat, datetime.fromisoformat),
    "Message": (message_to_dict, message_from_dict),
    "ToolResult": (result_to_dict, result_from_dict),
    "Usage": (usage_to_dict, usage_from_dict),
    "Decision": (str, ev.Decision),
    "TurnOutcome": (str, ev.TurnOutcome),
    "tuple[str, ...]": (list, tuple),
}


@cache
def _fields(kind: type[Any]) -> dict[str, _Pair]:
    return {field.name: _BY_ANNOTATION[str(field.type)] for field in dataclasses.fields(kind)}


@cache
def _event_types() -> dict[str, type[Any]]:
    return {
        name: kind
        for name, kind in vars(ev).items()
        if isinstance(kind, type) and issubclass(kind, ev.Event) and kind is not ev.Event
    }

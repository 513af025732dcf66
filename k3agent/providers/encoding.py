"""Requests as bytes.

Each message is serialised once and its bytes are kept, so the messages of request N are a byte prefix of
those of request N+1. What may vary from call to call stands behind the messages. Rules: kimi-api.md
sections 2.2, 3, 6.1.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from k3agent.providers.dialects import (
    Dialect,
    WireIds,
    WireNames,
    effort_fields,
    empty_reasoning,
    is_kimi_model,
)
from k3agent.providers.schema import wire_schema
from k3agent.types import (
    ImagePart,
    JsonObject,
    Message,
    MessageId,
    Request,
    Role,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)

_MIN_OUTPUT_TOKENS = 1024
# An image costs tokens by its size on screen, not by its bytes; this is a cautious flat figure.
_IMAGE_TOKENS = 2000
_NO_IMAGE = "[an image stood here; the endpoint does not take requests of that size]"


def dumps(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate (from a half-decoded file name) has no UTF-8; its escape is valid JSON.
    return text.encode("utf-8", errors="backslashreplace")


def wire_arguments(arguments: str) -> str:
    """The model's own string, unless it is no JSON object: then an object that holds it.

    Servers check that every argument string in the history is an object and refuse the whole request
    otherwise.
    """
    if not arguments.strip():
        return "{}"
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return arguments
    return json.dumps({"invalid_arguments": arguments}, ensure_ascii=False)


class RequestEncoder:
    """Builds request bodies for one endpoint and remembers what it has serialised.

    `reasoning_field` is where reasoning goes; it changes only when the endpoint shows its own field, and
    messages that were sent before keep their bytes.
    """

    def __init__(self, dialect: Dialect, reasoning_field: str | None = None) -> None:
        self.dialect = dialect
        self.reasoning_field = reasoning_field or dialect.reasoning_field
        self.ids = WireIds(keeps_k2_ids=dialect.keeps_k2_ids)
        self.names = WireNames()
        self._bytes: dict[MessageId, bytes] = {}
        self._head_key: object = None
        self._head = b""
        self._measured: tuple[int, int] | None = None
        self._has_images = True

    def leave_images_out(self) -> bool:
        """From now on images are replaced by a note; False when that is so already."""
        had, self._has_images = self._has_images, False
        self._bytes = {}
        return had

    def body(
        self, request: Request, context_window: int, max_output_tokens: int, cut_tokens: int = 0
    ) -> bytes:
        """The request as bytes. `cut_tokens` lowers the output limit after the endpoint found it too high."""
        head = self._head_bytes(request)
        messages = b",".join(self._message_bytes(request))
        wanted = request.max_output_tokens or max_output_tokens
        room = context_window - self.estimate_tokens(len(head) + len(messages), request)
        limit = max(min(wanted, room) - cut_tokens, min(wanted, _MIN_OUTPUT_TOKENS))
        tail: JsonObject = {"max_completion_tokens": limit}
        if request.response_schema is not None:
            tail["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": request.response_schema, "strict": False},
            }
        return head + messages + b"]," + dumps(tail)[1:]

    def estimate_tokens(self, num_bytes: int, request: Request) -> int:
        """Tokens of a prompt: from the last measured prompt where there is one, else cautiously from
        bytes.
        """
        images = [
            part for message in request.messages for part in message.parts if isinstance(part, ImagePart)
        ]
        num_bytes -= sum(len(image.data) * 4 // 3 for image in images)
        per_byte = 2.0 if self.dialect.name == "bundled" else 2.8
        if self._measured is not None and self._measured[0] <= num_bytes:
            seen_bytes, seen_tokens = self._measured
            return seen_tokens + int((num_bytes - seen_bytes) / per_byte) + 64
        return int(num_bytes / per_byte) + len(images) * _IMAGE_TOKENS

    def measured(self, body: bytes, num_tokens: int) -> None:
        """Remember what the endpoint counted for `body`."""
        if num_tokens > 0:
            self._measured = (len(body), num_tokens)

    def _head_bytes(self, request: Request) -> bytes:
        key = (request.model, request.tools, request.effort, request.cache_key)
        if key != self._head_key:
            head: JsonObject = {
                "model": request.model,
                "stream": True,
                "stream_options": {"include_usage": True},
                **effort_fields(self.dialect, request.model, request.effort),
            }
            if self.dialect.asks_progress:
                head["return_progress"] = True
            if self.dialect.sends_cache_key:
                head["prompt_cache_key"] = request.cache_key
            if request.tools:
                head["tools"] = [self._tool(tool) for tool in request.tools]
            self._head = dumps(head)[:-1] + b',"messages":['
            self._head_key = key
        return self._head

    def _tool(self, tool: ToolSpec) -> JsonObject:
        function = {
            "name": self.names.wire(tool.name),
            "description": tool.description,
            "parameters": wire_schema(tool.parameters),
        }
        return {"type": "function", "function": function}

    def _message_bytes(self, request: Request) -> list[bytes]:
        kept: dict[MessageId, bytes] = {}
        out = [dumps({"role": "system", "content": request.system})] if request.system else []
        order: list[str] = []
        for message in request.messages:
            if message.role is Role.ASSISTANT:
                order = [call.id for call in message.calls]
            raw = self._bytes.get(message.id)
            if raw is None:
                raw = b",".join(dumps(entry) for entry in self._entries(message, request.model, order))
            kept[message.id] = raw
            if raw:
                out.append(raw)
        # Only what is still in the conversation is kept: after a compaction the rest is not needed again.
        self._bytes = kept
        return out

    def _entries(self, message: Message, model: str, order: list[str]) -> list[JsonObject]:
        if message.role is Role.ASSISTANT:
            entry = self._assistant(message, model)
            return [entry] if entry else []
        if message.role is Role.TOOL:
            place = {call_id: number for number, call_id in enumerate(order)}
            results = sorted(message.results, key=lambda result: place.get(result.call_id, len(place)))
            return [self._result(result) for result in results]
        content = self._content(message.parts)
        return [{"role": message.role.value, "content": content}] if content else []

    def _assistant(self, message: Message, model: str) -> JsonObject | None:
        text, reasoning, calls = message.text, message.reasoning, message.calls
        if not text and not calls and not (reasoning and (reasoning.text or reasoning.details)):
            return None
        entry: JsonObject = {"role": "assistant"}
        if reasoning is not None and reasoning.details:
            entry["reasoning_details"] = list(reasoning.details)
        elif reasoning is not None:
            entry[self.reasoning_field] = reasoning.text or empty_reasoning(model)
        elif self.dialect.is_kimi or is_kimi_model(model):
            entry[self.reasoning_field] = empty_reasoning(model)
        if text.strip() or not calls:
            entry["content"] = text
        if calls:
            entry["tool_calls"] = [self._call(call) for call in calls]
        return entry

    def _call(self, call: ToolCall) -> JsonObject:
        function = {"name": self.names.wire(call.name), "arguments": wire_arguments(call.arguments)}
        return {"id": self.ids.wire(call.id), "type": "function", "function": function}

    def _result(self, result: ToolResult) -> JsonObject:
        content = self._content(result.content) or "(no output)"
        if result.is_error:
            content = f"Error: {result.text}" if isinstance(content, str) else [
                {"type": "text", "text": "Error:"}, *content,
            ]  # fmt: skip
        return {"role": "tool", "tool_call_id": self.ids.wire(result.call_id), "content": content}

    def _content(self, parts: tuple[Any, ...]) -> str | list[JsonObject]:
        """A plain string where there is only text; images as data URLs, the same bytes each turn."""
        if not any(isinstance(part, ImagePart) for part in parts):
            return "".join(part.text for part in parts if isinstance(part, TextPart))
        if not self._has_images:
            return "".join(part.text if isinstance(part, TextPart) else _NO_IMAGE for part in parts)
        content: list[JsonObject] = []
        for part in parts:
            if isinstance(part, TextPart) and part.text:
                content.append({"type": "text", "text": part.text})
            elif isinstance(part, ImagePart):
                data = base64.b64encode(part.data).decode("ascii")
                content.append({"type": "image_url", "image_url": {"url": f"data:{part.mime};base64,{data}"}})
        return content

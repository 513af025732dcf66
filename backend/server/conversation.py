"""The messages of a request: roles, empty answers, and that calls and results belong together."""

from dataclasses import dataclass, field
from typing import Any, NoReturn

from k3agent.backend.chat.template import Json, image_url, reasoning_text, text_parts
from k3agent.backend.server.fields import refuse, shown

ROLES = ("system", "developer", "user", "assistant", "tool")
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


@dataclass(slots=True)
class CheckedMessages:
    """`dynamic_tools` are the unchecked `tools` of system messages with their positions."""

    messages: list[Json] = field(default_factory=list)
    dynamic_tools: list[tuple[int, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_messages(messages: object, is_strict: bool) -> CheckedMessages:
    """Raise BadRequestError for a conversation that the model's grammar or the vendor's API has no place
    for.
    """
    if not isinstance(messages, list) or not messages:
        refuse("messages is required and must be a non-empty array")
    checked = CheckedMessages()
    open_calls: list[str] = []
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            refuse(f"messages[{position}] must be an object")
        role = message.get("role")
        if role not in ROLES:
            refuse(f"messages[{position}].role {shown(role)} is not one of {', '.join(ROLES)}")
        if role != "tool" and open_calls:
            _refuse_open(open_calls)
        if role in ("system", "developer"):
            _check_system(message, position, checked)
        elif message.get("tools") is not None:
            refuse(f"messages[{position}]: tools can only be added by a system message")
        if role == "assistant":
            open_calls = _check_assistant(message, position, is_strict, checked)
        elif role == "tool":
            _check_result(message, position, open_calls)
        _check_content(message, position)
        checked.messages.append(message)
    if open_calls:
        _refuse_open(open_calls)
    return checked


def _check_content(message: Json, position: int) -> None:
    """Text everywhere, images in what the user says."""
    content = message.get("content")
    if message["role"] == "user" and isinstance(content, list):
        content = [part for part in content if image_url(part) is None]
    text_parts(content, f"messages[{position}]")


def _check_system(message: Json, position: int, checked: CheckedMessages) -> None:
    if "tools" not in message:
        return
    if message.get("content"):
        refuse(f"messages[{position}]: tools cannot be used with content")
    checked.dynamic_tools.append((position, message["tools"]))


def _check_assistant(message: Json, position: int, is_strict: bool, checked: CheckedMessages) -> list[str]:
    """Returns the ids of the calls that now want results."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        refuse(f"messages[{position}].tool_calls must be an array")
    ids: list[str] = []
    for call in calls:
        call_id = call.get("id") if isinstance(call, dict) else None
        if not isinstance(call_id, str) or not call_id:
            refuse(f"messages[{position}].tool_calls: each call needs an id")
        if call_id in ids:
            refuse(f"messages[{position}].tool_calls: the id {shown(call_id)} occurs twice")
        ids.append(call_id)
    has_text = any(text_parts(message.get("content"), f"messages[{position}]"))
    if not (calls or has_text or reasoning_text(message) or message.get("partial")):
        refuse(f"the message at position {position} with role 'assistant' must not be empty")
    if all(message.get(name) is None for name in _REASONING_FIELDS):
        if is_strict:
            refuse(
                "preserved thinking (thinking.keep=all) requires reasoning_content on every assistant"
                f" message, but assistant message at index {position} is missing reasoning_content"
            )
        checked.notes.append(f"messages[{position}] has no reasoning_content")
    return ids


def _check_result(message: Json, position: int, open_calls: list[str]) -> None:
    """Takes the answered id out of `open_calls`."""
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        refuse(f"messages[{position}]: a tool message needs a tool_call_id")
    if call_id not in open_calls:
        refuse(f"tool_call_id {call_id[:80]} is not found (messages[{position}])")
    open_calls.remove(call_id)


def _refuse_open(ids: list[str]) -> NoReturn:
    refuse(
        "an assistant message with 'tool_calls' must be followed by tool messages responding to each"
        f" 'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(ids)}"
    )

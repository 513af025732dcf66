"""The body of a chat request, checked field by field and reduced to what the engine needs.

Unknown fields are ignored; known ones with a wrong type or value are refused with the words that the
vendor's API uses where these are known. Profiles: `strict` refuses what the vendor refuses; the lenient one
ignores what does no harm and names it in `ignored`.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from k3agent.backend.chat.template import EFFORTS, Json
from k3agent.backend.engine.messages import SamplingParams
from k3agent.backend.server.conversation import check_messages
from k3agent.backend.server.fields import boolean, integer, refuse, shown
from k3agent.backend.server.sampling import Profile, read_sampling
from k3agent.backend.server.subset import check_subset

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,255}")
_MAX_SCHEMA_CHARS = 120_000
_NOT_SUPPORTED = ("logit_bias", "functions", "function_call", "prediction")


@dataclass(slots=True, kw_only=True)
class ChatRequest:
    """A checked request. `tools` are the declared ones, `all_tools` also those added by system messages."""

    model: str
    messages: list[Json]
    tools: list[Json] = field(default_factory=list)
    all_tools: list[Json] = field(default_factory=list)
    tool_choice: str = "auto"
    parallel_calls: bool = True
    effort: str = "max"
    thinking: bool = True
    response_format: Json | None = None
    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    """Without `max_tokens`, which depends on the room that the prompt leaves."""
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse_chat(body: object, profile: Profile) -> ChatRequest:
    """Check a decoded JSON body; raises BadRequestError with the reason."""
    if not isinstance(body, dict):
        refuse("the body must be a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        refuse("model is required and must be a string")
    request = ChatRequest(model=model, messages=[])
    request.tools = check_tools(body.get("tools"), "tools")
    checked = check_messages(body.get("messages"), is_strict=profile.is_strict)
    request.messages, request.notes = checked.messages, checked.notes
    request.all_tools = [*request.tools, *checked_dynamic(checked.dynamic_tools)]
    _check_duplicates(request.all_tools)
    _read_output(request, body)
    if profile.is_strict:
        _check_subset(request)
    _read_thinking(request, body, profile)
    _read_tool_choice(request, body, profile)
    request.params = read_sampling(body, profile, request.thinking, request.ignored)
    request.ignored += [key for key in _NOT_SUPPORTED if body.get(key)]
    return request


# --- tools


def check_tools(tools: object, where: str) -> list[Json]:
    """Declarations as the model knows them; raises for wrong type, missing function or bad name."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        refuse(f"{where} must be an array")
    for place, tool in enumerate(tools):
        at = f"{where}[{place}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            refuse(f'{at}.type must be "function"')
        function = tool.get("function")
        if not isinstance(function, dict):
            refuse(f"{at}.function is required and must be an object")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            refuse(
                f"{at}.function.name {shown(name)} is not valid: letters, digits, _ and -, at most 256,"
                " beginning with a letter or _"
            )
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            refuse(f"{at}.function.parameters must be a JSON schema object")
        if parameters and parameters.get("type", "object") != "object":
            refuse('tools.function.parameters.type is required and must be "object"')
        for key, kind, said in (("properties", dict, "an object"), ("required", list, "an array")):
            if parameters and not isinstance(parameters.get(key, kind()), kind):
                refuse(f"{at}.function.parameters.{key} must be {said}")
    return tools


def checked_dynamic(groups: Sequence[tuple[int, object]]) -> list[Json]:
    """Tools that system messages bring along."""
    found: list[Json] = []
    for position, tools in groups:
        if not isinstance(tools, list):
            refuse(f"messages[{position}].tools must be an array")
        found += check_tools(tools, f"messages[{position}].tools")
    return found


def _check_subset(request: ChatRequest) -> None:
    """The schemas whose makers wanted them kept to, which is the default."""
    for tool in request.all_tools:
        function = tool["function"]
        if function.get("strict") is not False and function.get("parameters"):
            check_subset(function["parameters"], "tools.function.parameters")
    match request.response_format:
        case {"json_schema": {"schema": dict(schema), **outer}} if outer.get("strict") is not False:
            check_subset(schema, "response_format.json_schema.schema")


def _check_duplicates(tools: list[Json]) -> None:
    seen: set[str] = set()
    for tool in tools:
        name = tool["function"]["name"]
        if name in seen:
            refuse(f"tool {shown(name)} is declared twice")
        seen.add(name)


def _read_tool_choice(request: ChatRequest, body: Json, profile: Profile) -> None:
    choice = body.get("tool_choice")
    match choice:
        case None:
            pass
        case "auto" | "none":
            request.tool_choice = choice
        case "required":
            if not request.all_tools:
                refuse("tool_choice 'required' needs tools")
            request.tool_choice = "required"
        case {"type": "function"} if profile.is_strict:
            refuse("tool_choice 'specified' is incompatible with thinking enabled")
        case {"type": "function"}:
            request.ignored.append("tool_choice")
        case _:
            refuse(f"tool_choice {shown(choice)} is not known; use auto, none or required")
    request.parallel_calls = boolean(body, "parallel_tool_calls", True)


# --- thinking


def _read_thinking(request: ChatRequest, body: Json, profile: Profile) -> None:
    effort = body.get("reasoning_effort")
    thinking = body.get("thinking")
    extra = body.get("chat_template_kwargs")
    is_enabled = True
    if isinstance(extra, dict):
        effort = extra.get("thinking_effort", effort)
        is_enabled = extra.get("thinking", extra.get("enable_thinking", True)) is not False
    elif extra is not None:
        refuse("chat_template_kwargs must be an object")
    if isinstance(thinking, dict):
        kind = thinking.get("type", "enabled")
        if kind not in ("enabled", "disabled"):
            refuse(f"thinking.type {shown(kind)} is not known; use enabled")
        is_enabled = is_enabled and kind == "enabled"
        effort = thinking.get("effort") or effort
    elif thinking is not None:
        refuse('thinking must be an object such as {"type": "enabled"}')
    if not is_enabled and not profile.may_disable_thinking:
        refuse("invalid thinking: only type=enabled is allowed for this model")
    if effort is not None and effort not in EFFORTS:
        refuse(f"reasoning effort {shown(effort)} is not valid; use one of {', '.join(EFFORTS)}")
    request.effort = effort or "max"
    request.thinking = is_enabled


# --- output


def _read_output(request: ChatRequest, body: Json) -> None:
    request.stream = boolean(body, "stream", False)
    options = body.get("stream_options")
    if isinstance(options, dict):
        request.include_usage = boolean(options, "include_usage", False)
    elif options is not None:
        refuse("stream_options must be an object")
    wanted = [integer(body, name, 1, 2**31) for name in ("max_completion_tokens", "max_tokens")]
    request.max_tokens = wanted[0] if wanted[0] is not None else wanted[1]
    request.response_format = _response_format(body.get("response_format"))
    if request.response_format and request.messages and request.messages[-1].get("partial"):
        refuse("response_format cannot be used together with partial")


def schema_text(response_format: Json | None) -> str | None:
    """The JSON schema, as text, that the content of an answer must fit."""
    match response_format:
        case None:
            return None
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return json.dumps(schema)
    return '{"type": "object"}'


def _response_format(value: Any) -> Json | None:
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema"}:
            outer = value.get("json_schema")
            if not isinstance(outer, dict):
                refuse("response_format.json_schema is required and must be an object")
            if not isinstance(outer.get("name"), str) or not outer["name"]:
                refuse("response_format.json_schema.name is required")
            if not isinstance(outer.get("schema"), dict):
                refuse("response_format.json_schema.schema is required and must be an object")
            if not isinstance(outer.get("strict", True), bool):
                refuse("response_format.json_schema.strict must be a boolean")
            try:
                json.dumps(outer["schema"], ensure_ascii=False).encode()
            except UnicodeEncodeError:
                refuse("response_format.json_schema.schema has a text that is no Unicode")
            if len(json.dumps(outer["schema"])) > _MAX_SCHEMA_CHARS:
                refuse(f"response_format.json_schema.schema is longer than {_MAX_SCHEMA_CHARS} characters")
            return value
    refuse("response_format.type must be text, json_object or json_schema")

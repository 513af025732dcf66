"""The body of a chat request, checked field by field and reduced to what the engine needs.

Unknown fields are ignored; known ones with a wrong type or value are refused with the words that the
vendor's API uses where these are known. Profiles: `strict` refuses what the vendor refuses; the lenient one
ignores what does no harm and names it in `ignored`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from k3agent.backend.chat.template import EFFORTS, Json
from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.conversation import check_messages

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,255}")
_FIXED = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
_NOT_SUPPORTED = ("logprobs", "top_logprobs", "logit_bias", "functions", "function_call", "prediction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How requests are judged, and what is used where they say nothing."""

    is_strict: bool = False
    may_disable_thinking: bool = False
    takes_sampling: bool = False
    """Requests may set temperature and top_p; else they are fixed, as for Kimi's own models."""
    temperature: float = 1.0
    top_p: float = 0.95


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
    temperature: float = 1.0
    top_p: float = 0.95
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse_chat(body: object, profile: Profile) -> ChatRequest:
    """Check a decoded JSON body; raises BadRequestError with the reason."""
    if not isinstance(body, dict):
        _refuse("the body must be a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        _refuse("model is required and must be a string")
    request = ChatRequest(model=model, messages=[])
    request.tools = check_tools(body.get("tools"), "tools")
    checked = check_messages(body.get("messages"), is_strict=profile.is_strict)
    request.messages, request.notes = checked.messages, checked.notes
    request.all_tools = [*request.tools, *checked_dynamic(checked.dynamic_tools)]
    _check_duplicates(request.all_tools)
    _read_output(request, body)
    _read_thinking(request, body, profile)
    _read_tool_choice(request, body, profile)
    _read_sampling(request, body, profile)
    request.ignored += [key for key in _NOT_SUPPORTED if body.get(key)]
    return request


# --- tools


def check_tools(tools: object, where: str) -> list[Json]:
    """Declarations as the model knows them; raises for wrong type, missing function or bad name."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        _refuse(f"{where} must be an array")
    for place, tool in enumerate(tools):
        at = f"{where}[{place}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            _refuse(f'{at}.type must be "function"')
        function = tool.get("function")
        if not isinstance(function, dict):
            _refuse(f"{at}.function is required and must be an object")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            _refuse(
                f"{at}.function.name {name!r} is not valid: letters, digits, _ and -, at most 256,"
                " beginning with a letter or _"
            )
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            _refuse(f"{at}.function.parameters must be a JSON schema object")
        if parameters and parameters.get("type", "object") != "object":
            _refuse('tools.function.parameters.type is required and must be "object"')
        for key, kind, said in (("properties", dict, "an object"), ("required", list, "an array")):
            if parameters and not isinstance(parameters.get(key, kind()), kind):
                _refuse(f"{at}.function.parameters.{key} must be {said}")
    return tools


def checked_dynamic(groups: Sequence[tuple[int, object]]) -> list[Json]:
    """Tools that system messages bring along."""
    found: list[Json] = []
    for position, tools in groups:
        if not isinstance(tools, list):
            _refuse(f"messages[{position}].tools must be an array")
        found += check_tools(tools, f"messages[{position}].tools")
    return found


def _check_duplicates(tools: list[Json]) -> None:
    seen: set[str] = set()
    for tool in tools:
        name = tool["function"]["name"]
        if name in seen:
            _refuse(f"tool {name!r} is declared twice")
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
                _refuse("tool_choice 'required' needs tools")
            request.tool_choice = "required"
        case {"type": "function"} if profile.is_strict:
            _refuse("tool_choice 'specified' is incompatible with thinking enabled")
        case {"type": "function"}:
            request.ignored.append("tool_choice")
        case _:
            _refuse(f"tool_choice {choice!r} is not known; use auto, none or required")
    request.parallel_calls = _boolean(body, "parallel_tool_calls", True)


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
        _refuse("chat_template_kwargs must be an object")
    if isinstance(thinking, dict):
        kind = thinking.get("type", "enabled")
        if kind not in ("enabled", "disabled"):
            _refuse(f"thinking.type {kind!r} is not known; use enabled")
        is_enabled = is_enabled and kind == "enabled"
        effort = thinking.get("effort") or effort
    elif thinking is not None:
        _refuse('thinking must be an object such as {"type": "enabled"}')
    if not is_enabled and not profile.may_disable_thinking:
        _refuse("invalid thinking: only type=enabled is allowed for this model")
    if effort is not None and effort not in EFFORTS:
        _refuse(f"reasoning effort {effort!r} is not valid; use one of {', '.join(EFFORTS)}")
    request.effort = effort or "max"
    request.thinking = is_enabled


# --- sampling and output


def _read_sampling(request: ChatRequest, body: Json, profile: Profile) -> None:
    temperature = _number(body, "temperature", 0, 2)
    top_p = _number(body, "top_p", 0, 1)
    request.temperature, request.top_p = profile.temperature, profile.top_p
    for name, value, fixed in (
        ("temperature", temperature, profile.temperature),
        ("top_p", top_p, profile.top_p),
        *((name, _number(body, name, -2, 2), fixed) for name, fixed in _FIXED.items()),
    ):
        if value is None or value == fixed:
            continue
        if profile.takes_sampling and name in ("temperature", "top_p"):
            setattr(request, name, value)
        elif profile.is_strict:
            _refuse(f"invalid {name}: only {fixed:g} is allowed for this model")
        else:
            request.ignored.append(name)
    if not request.thinking and not profile.takes_sampling:
        request.temperature = 0.6
    count = body.get("n")
    if count is not None and (type(count) is not int or count != 1):
        _refuse(f"invalid n: only 1 is allowed for this model, not {count!r}")
    request.seed = _integer(body, "seed", -(2**63), 2**63 - 1)


def _read_output(request: ChatRequest, body: Json) -> None:
    request.stream = _boolean(body, "stream", False)
    options = body.get("stream_options")
    if isinstance(options, dict):
        request.include_usage = _boolean(options, "include_usage", False)
    elif options is not None:
        _refuse("stream_options must be an object")
    wanted = [_integer(body, name, 1, 2**31) for name in ("max_completion_tokens", "max_tokens")]
    request.max_tokens = wanted[0] if wanted[0] is not None else wanted[1]
    request.stop = _stop_strings(body.get("stop"))
    request.response_format = _response_format(body.get("response_format"))
    if request.response_format and request.messages and request.messages[-1].get("partial"):
        _refuse("response_format cannot be used together with partial")


def _stop_strings(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or len(strings) > 5 or not all(isinstance(s, str) for s in strings):
        _refuse("stop must be a string or at most 5 strings")
    if any(not 1 <= len(s.encode()) <= 32 for s in strings):
        _refuse("each stop string must have 1 to 32 bytes")
    return tuple(strings)


def _response_format(value: Any) -> Json | None:
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema"}:
            outer = value.get("json_schema")
            if not isinstance(outer, dict):
                _refuse("response_format.json_schema is required and must be an object")
            if not isinstance(outer.get("name"), str) or not outer["name"]:
                _refuse("response_format.json_schema.name is required")
            if not isinstance(outer.get("schema"), dict):
                _refuse("response_format.json_schema.schema is required and must be an object")
            if not isinstance(outer.get("strict", True), bool):
                _refuse("response_format.json_schema.strict must be a boolean")
            return value
    _refuse("response_format.type must be text, json_object or json_schema")


# --- single fields


def _boolean(body: Json, name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        _refuse(f"{name} must be a boolean, not {value!r}")
    return value


def _integer(body: Json, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        _refuse(f"{name} must be an integer of at least {low}, not {value!r}")
    return value


def _number(body: Json, name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        _refuse(f"{name} must be a number from {low} to {high}, not {value!r}")
    return float(value)


def _refuse(reason: str) -> NoReturn:
    raise BadRequestError(reason)

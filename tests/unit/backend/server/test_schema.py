"""Requests: what is refused, what is ignored, what is understood."""

from typing import Any

import pytest

from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.sampling import Profile
from k3agent.backend.server.schema import ChatRequest, parse_chat

LENIENT = Profile()
STRICT = Profile(is_strict=True)
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED = {"role": "assistant", "reasoning_content": "r", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "f"}}


def parse(profile: Profile = LENIENT, **fields: Any) -> ChatRequest:
    return parse_chat({"model": "m", "messages": [USER], **fields}, profile)


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "object"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "robot"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"messages": [USER, {"role": "assistant"}]}, "must not be empty"),
        ({"messages": [USER, ASKED]}, "c1"),
        ({"messages": [USER, ASKED, USER]}, "c1"),
        ({"messages": [USER, ASKED, {"role": "tool", "content": "x"}]}, "tool_call_id"),
        ({"messages": [USER, ASKED, {**RESULT, "tool_call_id": "zz"}]}, "zz is not found"),
        ({"messages": [USER, RESULT]}, "is not found"),
        ({"messages": [USER, ASKED, RESULT, RESULT]}, "is not found"),
        ({"messages": [USER, {**ASKED, "tool_calls": [{**CALL, "id": ""}]}, RESULT]}, "id"),
        ({"messages": [{"role": "system", "content": "x", "tools": [TOOL]}]}, "cannot be used with content"),
        ({"messages": [{**USER, "tools": [TOOL]}]}, "system message"),
        ({"messages": [{"role": "system", "tools": {}}, USER]}, "array"),
        ({"messages": [{"role": "system", "tools": [TOOL]}, USER], "tools": [TOOL]}, "twice"),
        ({"tools": [named("f"), named("f")]}, "twice"),
        ({"tools": [named("")]}, "name"),
        ({"tools": [named("1st")]}, "name"),
        ({"tools": [named("a b")]}, "name"),
        ({"tools": [named("a" * 257)]}, "name"),
        ({"tools": [{"type": "builtin", "function": {"name": "f"}}]}, "type"),
        ({"tools": [{"type": "function"}]}, "function is required"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "object",
        ),
        ({"tools": {}}, "array"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"tool_choice": "required", "tools": []}, "needs tools"),
        ({"tool_choice": "sometimes"}, "sometimes"),
        ({"reasoning_effort": "medium"}, "medium"),
        ({"reasoning_effort": "none"}, "none"),
        ({"reasoning_effort": {"x": 1}}, "effort"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "disabled"}}, "only type=enabled"),
        ({"thinking": {"effort": "huge"}}, "huge"),
        ({"chat_template_kwargs": {"thinking": False}}, "only type=enabled"),
        ({"n": 2}, "invalid n"),
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"stop": ["a"] * 6}, "stop"),
        ({"stop": "x" * 33}, "32 bytes"),
        ({"stop": [""]}, "32 bytes"),
        ({"stop": [1]}, "stop"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"enum": ["\ud800"]}},
                }
            },
            "no Unicode",
        ),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": []}}}, "schema"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}, "strict": 1},
                }
            },
            "strict",
        ),
    ],
)
def test_refusals(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRequestError, match=reason):
        parse(**fields)


def test_the_defaults() -> None:
    request = parse(unknown_field=1, user="me", prompt_cache_key="s")
    assert (request.effort, request.thinking, request.tool_choice) == ("max", True, "auto")
    assert (request.params.temperature, request.params.top_p, request.max_tokens) == (1.0, 0.95, None)
    assert request.ignored == []


def test_effort_is_read_from_each_place() -> None:
    assert parse(reasoning_effort="low").effort == "low"
    assert parse(thinking={"type": "enabled", "effort": "high", "keep": "all"}).effort == "high"
    assert parse(thinking={"effort": "high"}, reasoning_effort="low").effort == "high"
    assert parse(chat_template_kwargs={"thinking_effort": "low"}).effort == "low"


def test_thinking_is_switched_off_only_where_allowed() -> None:
    profile = Profile(may_disable_thinking=True)
    request = parse(profile, thinking={"type": "disabled"})
    assert (request.thinking, request.params.temperature) == (False, 0.6)
    assert not parse(profile, chat_template_kwargs={"enable_thinking": False}).thinking


def test_the_lenient_profile_names_what_it_ignores() -> None:
    request = parse(temperature=0, frequency_penalty=0.5, presence_penalty=0, logprobs=True)
    assert request.ignored == ["temperature", "frequency_penalty"]
    assert (request.params.temperature, request.params.logprobs) == (1.0, 0)
    named_choice = {"type": "function", "function": {"name": "f"}}
    request = parse(tools=[TOOL], tool_choice=named_choice)
    assert (request.tool_choice, request.ignored) == ("auto", ["tool_choice"])


@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty", "frequency_penalty"])
def test_the_strict_profile_refuses_sampling(field: str) -> None:
    with pytest.raises(BadRequestError, match=f"invalid {field}: only"):
        parse(STRICT, **{field: 0.5})
    fixed = {"temperature": 1, "top_p": 0.95, "presence_penalty": 0, "frequency_penalty": 0.0}
    assert parse(STRICT, **fixed).params.temperature == 1.0


def test_small_models_take_sampling() -> None:
    profile = Profile(takes_sampling=True, temperature=0.0, top_p=1.0)
    request = parse(profile, temperature=0.7, top_p=0.5, seed=3)
    assert (request.params.temperature, request.params.top_p, request.params.seed) == (0.7, 0.5, 3)
    assert parse(profile).params.temperature == 0


def test_missing_reasoning_is_a_note_or_a_refusal() -> None:
    messages = [USER, {"role": "assistant", "content": "x"}, USER]
    assert parse(messages=messages).notes == ["messages[1] has no reasoning_content"]
    with pytest.raises(BadRequestError, match="index 1 is missing"):
        parse(STRICT, messages=messages)
    kept = [USER, {"role": "assistant", "content": "x", "reasoning_content": ""}, USER]
    assert parse(STRICT, messages=kept).notes == []


def test_dynamic_tools_count_as_tools() -> None:
    messages = [{"role": "system", "tools": [TOOL]}, USER]
    request = parse(messages=messages, tool_choice="required")
    assert request.tools == []
    assert [tool["function"]["name"] for tool in request.all_tools] == ["f"]


def test_limits_and_stops() -> None:
    request = parse(max_tokens=5, max_completion_tokens=7, stop="END", stream_options={"include_usage": True})
    assert (request.max_tokens, request.params.stop, request.include_usage) == (7, ("END",), True)
    assert parse(max_tokens=5).max_tokens == 5


def test_content_as_parts_and_null() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {**ASKED, "content": None}, {**RESULT, "content": parts}]
    assert len(parse(messages=messages).messages) == 3


def test_a_body_that_is_no_object() -> None:
    for body in ([], None, "x", 5):
        with pytest.raises(BadRequestError):
            parse_chat(body, LENIENT)
    with pytest.raises(BadRequestError, match="model"):
        parse_chat({"messages": [USER]}, LENIENT)

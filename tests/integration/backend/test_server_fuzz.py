"""Random damage to good requests: an answer or a refusal in the documented shape, never a 500 or a hang."""

import copy
import json
import random
from typing import Any

import httpx
import pytest
from support.serving import KEY, MODEL, USER, Running

READ = {
    "type": "function",
    "function": {
        "name": "read",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "mode": {"enum": ["r", "w"]}},
            "required": ["path"],
        },
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
BODY: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.1,
    "seed": 1,
    "n": 1,
    "stop": ["x", "END"],
    "stop_token_ids": [5],
    "stream": False,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "reasoning_effort": "low",
    "thinking": {"type": "enabled", "effort": "high", "keep": "all"},
    "chat_template_kwargs": {"thinking": True},
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "tools": [READ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "tools": [{"type": "function", "function": {"name": "find"}}]},
        {"role": "user", "content": [{"type": "text", "text": "What is in src?"}], "name": "me"},
        {"role": "assistant", "reasoning_content": "r", "content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "main.py"},
        {
            "role": "assistant",
            "reasoning_details": [{"type": "reasoning.text", "text": "t"}],
            "content": "So.",
        },
        USER,
    ],
}
WITH_SCHEMA = {
    **BODY,
    "tools": None,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {
                    "a": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
                    "b": {"type": "array", "items": {"$ref": "#/$defs/c"}, "maxItems": 3},
                },
                "required": ["a"],
                "$defs": {"c": {"type": "string", "pattern": "^a+$"}},
            },
        },
    },
}
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 0.5, 1e308, -0.0),
    *("", " ", "x", "auto", "\x00", "\ud800", "<|open|>think<|sep|>", "é" * 100, "x" * 3000),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"type": "function"},
        {"type": "text", "text": 5},
        [{"role": "user"}],
    ),
    {"$ref": "#"},
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within a value."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        found.append((value, key))
        found += places(value[key])
    return found


def damaged(rng: random.Random) -> dict[str, Any]:
    """A request with one to three changes: a value replaced, removed, doubled, or moved elsewhere."""
    body = copy.deepcopy(rng.choice([BODY, WITH_SCHEMA]))
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(places(body))
        match rng.randrange(5):
            case 0 | 1:
                container[key] = copy.deepcopy(rng.choice(ODD))
            case 2:
                del container[key]
            case 3 if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
            case _:
                other, name = rng.choice(places(body))
                container[key] = copy.deepcopy(other[name])
        if not body:
            break
    if type(body.get("max_tokens")) is int and body["max_tokens"] > 100:
        # valid, and long: what is wanted here is many requests
        body["max_tokens"] = 3
    return body


def check(response: httpx.Response) -> None:
    if response.status_code == 200:
        if response.headers["content-type"].startswith("text/event-stream"):
            assert response.text.endswith("data: [DONE]\n\n") or '"error"' in response.text
        else:
            assert response.json()["choices"][0]["message"]["role"] == "assistant"
        return
    assert response.status_code in (400, 404, 413, 429), response.text
    error = response.json()["error"]
    assert error["message"] and error["type"] != "server_error"


def send(client: httpx.Client, content: bytes) -> None:
    try:
        check(client.post("/v1/chat/completions", content=content))
    except (AssertionError, httpx.HTTPError) as error:
        raise AssertionError(f"{error!r} came of {content[:3000]!r}") from error


@pytest.mark.timeout(600)
def test_damaged_requests(server: Running) -> None:
    rng = random.Random(20)
    engine = server.engine_pid()
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        for _ in range(300):
            body = damaged(rng)
            if body.get("max_tokens") is None:
                body["max_tokens"] = 3
            send(client, json.dumps(body).encode())
        text = json.dumps(BODY).encode()
        for _ in range(150):
            changed = bytearray(text)
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            cut = len(changed) if rng.random() < 0.7 else rng.randrange(len(changed))
            send(client, bytes(changed[:cut]))
        check(client.post("/v1/chat/completions", json={"model": MODEL, "messages": [USER], "max_tokens": 2}))
    assert server.engine_pid() == engine, "the engine was lost on the way"
    assert server.metric("k3agent_engine_running_requests") == 0


@pytest.mark.parametrize("route", ["/v1/tokenize", "/v1/tokenizers/estimate-token-count"])
def test_damaged_requests_of_counting(server: Running, route: str) -> None:
    rng = random.Random(21)
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        for _ in range(60):
            response = client.post(route, content=json.dumps(damaged(rng)).encode())
            assert response.status_code in (200, 400, 404), response.text

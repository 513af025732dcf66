"""The real server on loopback with tiny K3: three turns, streams, refusals, leaving, crashes, endings.

The server is started as users start it.
"""

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import MODEL, USER, Running, Start
from support.tiny_tokenizer import MEDIA_PAD

READ = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "offset": {"type": "integer"}},
            "required": ["path"],
        },
    },
}


def stream(server: Running, **body: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Chunks and comments of a stream that must end with [DONE]."""
    chunks, comments = [], []
    body = {"model": MODEL, "messages": [USER], "max_tokens": 8, "stream": True, **body}
    url = server.url + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=server.headers, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        if line.startswith(":"):
            comments.append(line)
        else:
            chunks.append(json.loads(line.removeprefix("data: ")))
    return chunks, comments


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client builds from a stream."""
    message: dict[str, Any] = {"reasoning_content": "", "content": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            message["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    assert call["id"] and call["type"] == "function"
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message


def call_of(server: Running, **body: Any) -> tuple[int, dict[str, Any]]:
    """Seed and answer of a complete tool call; the seed is searched, the markup is not left to luck."""
    for seed in range(20):
        answer = server.post(seed=seed, **body).json()
        if answer["choices"][0]["finish_reason"] == "tool_calls":
            return seed, answer
    raise AssertionError("no seed led to a complete call")


def test_three_turns_cache_all_but_the_new_part(server: Running) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, USER]
    known = 0
    for turn in range(3):
        answer = server.post(
            messages=messages, tools=[READ], temperature=1.0, seed=turn, max_tokens=300, n=1
        ).json()
        usage, choice = answer["usage"], answer["choices"][0]
        assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
        assert usage["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] <= usage["completion_tokens"]
        if turn:
            # 3 tokens of the prompt, the open think element, are not counted as prompt but are cached
            assert usage["cached_tokens"] == known
        assert choice["finish_reason"] in ("stop", "tool_calls")
        known = usage["prompt_tokens"] + 3 + usage["completion_tokens"]
        message = choice["message"]
        messages.append(message)
        for call in message.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "main.py"})
        messages.append({"role": "user", "content": f"And then, {turn}?"})


def test_a_second_conversation_reuses_the_system_part(server: Running) -> None:
    system = {"role": "system", "content": "You work in a repository. " * 20}
    first = server.post(messages=[system, USER]).json()["usage"]
    second = server.post(messages=[system, {"role": "user", "content": "Other words."}]).json()["usage"]
    assert first["cached_tokens"] < 256
    assert second["cached_tokens"] > 256
    effort = server.post(messages=[system, USER], reasoning_effort="low").json()["usage"]
    assert effort["cached_tokens"] < 256


def test_stream_and_whole_answer_agree(server: Running) -> None:
    body = {"tools": [READ], "tool_choice": "required", "temperature": 1.0, "max_tokens": 300}
    seed, whole = call_of(server, **body)
    message = whole["choices"][0]["message"]
    chunks, comments = stream(server, seed=seed, **body, stream_options={"include_usage": True})
    got = joined(chunks)
    assert got["reasoning_content"] == message["reasoning_content"]
    assert got["content"] == (message["content"] or "")
    assert got["tool_calls"] == [call["function"] for call in message["tool_calls"]]
    assert all(isinstance(json.loads(call["arguments"]), dict) for call in got["tool_calls"])
    roles = [c["choices"][0]["delta"].get("role") for c in chunks if c["choices"]]
    assert roles == ["assistant", *[None] * (len(roles) - 1)]
    assert len({chunk["id"] for chunk in chunks}) == 1
    finishing, last = chunks[-2:]
    assert finishing["choices"][0]["finish_reason"] == "tool_calls"
    assert finishing["usage"] == finishing["choices"][0]["usage"] == last["usage"]
    assert last["choices"] == []
    assert any("prefill" in comment for comment in comments)


def test_the_usage_chunk_comes_only_when_asked_for(server: Running) -> None:
    chunks, _ = stream(server)
    assert all(chunk["choices"] for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_no_calls_without_tools_and_with_choice_none(server: Running) -> None:
    for body in ({}, {"tools": [READ], "tool_choice": "none"}):
        answer = server.post(temperature=1.0, seed=1, max_tokens=300, **body).json()
        assert "tool_calls" not in answer["choices"][0]["message"]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert "<|" not in json.dumps(answer["choices"][0]["message"])


def test_cut_in_thinking(server: Running) -> None:
    choice = server.post(max_tokens=1).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None


def test_stop_strings_cut_a_continued_content(endless: Running) -> None:
    begun = {"role": "assistant", "reasoning_content": "Say it.", "content": "It", "partial": True}
    body = {"messages": [USER, begun], "max_tokens": 60}
    full = endless.post(**body).json()["choices"][0]["message"]
    assert full["reasoning_content"] == ""
    text = full["content"]
    assert len(text) > 20 and not text.startswith("It")
    stop = text[10:12]
    choice = endless.post(stop=stop, **body).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text.split(stop)[0]
    chunks, _ = stream(endless, stop=stop, **body)
    assert joined(chunks)["content"] == choice["message"]["content"]


def test_plain_routes(server: Running) -> None:
    assert server.get("/health").json()["status"] == "ok"
    model = server.get("/v1/models/").json()["data"][0]
    assert (model["id"], model["object"], model["supports_reasoning"]) == (MODEL, "model", True)
    assert model["context_length"] == 8192 and "k3agent" not in model
    count = server.post("/v1/tokenize").json()["count"]
    assert count == server.post().json()["usage"]["prompt_tokens"]
    estimate = server.post("/v1/tokenizers/estimate-token-count").json()
    assert estimate["data"]["total_tokens"] == count
    assert server.post("/v1/tokenize", prompt="think").json()["count"] == 1
    assert "k3agent_engine_generated_tokens_total" in server.get("/metrics").text


def test_errors(server: Running) -> None:
    def check(response: httpx.Response, status: int, kind: str) -> str:
        assert response.status_code == status, response.text
        assert response.headers["x-trace-id"]
        assert response.json()["error"]["type"] == kind
        return response.json()["error"]["message"]

    check(server.post(model="gpt-x"), 404, "resource_not_found_error")
    check(server.get("/v1/nothing"), 404, "resource_not_found_error")
    assert "/v1/chat/completions" in server.get("/v1/completions").text
    check(server.get("/v1/chat/completions"), 405, "resource_not_found_error")
    wrong = httpx.post(server.url + "/v1/chat/completions", json={}, headers={"authorization": "Bearer no"})
    check(wrong, 401, "invalid_authentication_error")
    check(httpx.get(server.url + "/v1/models"), 401, "invalid_authentication_error")
    bad_json = httpx.post(server.url + "/v1/chat/completions", content=b"{", headers=server.headers)
    check(bad_json, 400, "invalid_request_error")
    check(server.post(messages=[]), 400, "invalid_request_error")
    broken = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
    history = [USER, {"role": "assistant", "tool_calls": [broken]}]
    history.append({"role": "tool", "tool_call_id": "a", "content": "x"})
    check(server.post(messages=history), 400, "invalid_request_error")
    broken["function"]["arguments"] = "not json"
    assert server.post(messages=history).status_code == 200
    too_long = check(server.post(max_tokens=9000), 400, "invalid_request_error")
    assert "context length" in too_long and "9000" in too_long
    response = server.post(temperature=0.5, logit_bias={"1": 1})
    assert response.headers["x-k3agent-ignored"] == "logit_bias"


async def test_leaving_stops_the_generation(endless: Running) -> None:
    async def counter(client: httpx.AsyncClient, name: str) -> float:
        text = (await client.get("/metrics")).text
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name)))

    running = "k3agent_engine_running_requests"
    body = {"model": MODEL, "messages": [USER], "max_tokens": 7000, "temperature": 0, "stream": True}
    async with httpx.AsyncClient(base_url=endless.url, headers=endless.headers, timeout=30) as client:
        for is_streamed in (True, False):
            before = await counter(client, "k3agent_engine_requests_total")
            request = client.build_request(
                "POST", "/v1/chat/completions", json={**body, "stream": is_streamed}
            )
            if is_streamed:
                response = await client.send(request, stream=True)
                lines = response.aiter_lines()
                while "reasoning_content" not in await anext(lines):
                    pass
                await response.aclose()
            else:
                with pytest.raises(httpx.ReadTimeout):
                    await client.post("/v1/chat/completions", json={**body, "stream": False}, timeout=0.5)
            for _ in range(100):
                if await counter(client, "k3agent_engine_requests_total") > before:
                    break
                await asyncio.sleep(0.05)
            assert await counter(client, "k3agent_engine_requests_total") == before + 1
            assert await counter(client, running) == 0
        answer = await client.post("/v1/chat/completions", json={**body, "max_tokens": 2, "stream": False})
        assert answer.status_code == 200


def test_the_server_process_is_light(server: Running) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "torch" not in maps
    assert "torch" in Path(f"/proc/{server.engine_pid()}/maps").read_text()


def test_sigterm_ends_running_answers_validly(start: Start) -> None:
    server = start()
    body = {"model": MODEL, "messages": [USER], "max_tokens": 7000, "temperature": 0, "stream": True}
    url = server.url + "/v1/chat/completions"
    seen = []
    with httpx.stream("POST", url, json=body, headers=server.headers, timeout=60) as response:
        for line in response.iter_lines():
            seen.append(line)
            if len(seen) == 30:
                server.process.terminate()
    data = [line for line in seen if line.startswith("data:")]
    assert data[-1] == "data: [DONE]"
    assert json.loads(data[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(15) == 0


def test_a_crashed_engine(start: Start) -> None:
    server = start()
    before = server.post(max_tokens=3).json()["choices"][0]["message"]
    body = {"model": MODEL, "messages": [USER], "max_tokens": 7000, "temperature": 0, "stream": True}
    url = server.url + "/v1/chat/completions"
    seen = []
    with httpx.stream("POST", url, json=body, headers=server.headers, timeout=60) as response:
        for line in response.iter_lines():
            seen.append(line)
            if len(seen) == 30:
                os.kill(server.engine_pid(), signal.SIGKILL)
    last = json.loads([line for line in seen if line.startswith("data:")][-1][6:])
    assert last["error"]["type"] == "server_unavailable"
    assert "ended unexpectedly" in last["error"]["message"]
    assert server.get("/health").status_code == 503
    again = server.post(max_tokens=3)
    assert again.json()["choices"][0]["message"] == before
    os.kill(server.engine_pid(), signal.SIGKILL)
    time.sleep(0.3)
    assert server.get("/health").json()["status"] == "dead"
    assert server.post(max_tokens=3).status_code == 503
    assert server.process.wait(15) == 1


def test_state_file_and_idle_timeout(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "run" / "server.json"
    server = start("--state-file", str(file), "--idle-timeout", "1", key=None)
    state = json.loads(file.read_text())
    assert file.stat().st_mode & 0o077 == 0
    assert (state["url"], state["pid"], state["model"]) == (server.url, server.process.pid, MODEL)
    assert state["version"]
    assert httpx.get(server.url + "/v1/models").status_code == 401
    headers = {"authorization": f"Bearer {state['token']}"}
    assert httpx.get(server.url + "/v1/models", headers=headers).status_code == 200
    assert server.process.wait(15) == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["--model", "/nowhere"], "config.json"),
        (["--engine", "vllm"], "bundled"),
        (["--bogus"], "--bogus"),
    ],
)
def test_refusals_at_start(flags: list[str], reason: str, tiny_dir: Path) -> None:
    command = [sys.executable, "-P", "-m", "k3agent.backend.cli", "--model", str(tiny_dir), *flags]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("K3AGENT_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environ, check=False)
    assert done.returncode == 2
    assert reason in done.stderr


def test_a_taken_port_is_named(server: Running, tiny_dir: Path) -> None:
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-P", "-m", "k3agent.backend.cli", "--model", str(tiny_dir), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert port in done.stderr


class TestImages:
    """A model with vision takes data URLs; one without says so."""

    @staticmethod
    def message(url: str) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
        return {"role": "user", "content": parts}

    @staticmethod
    def png(colour: str) -> str:
        image = pytest.importorskip("PIL.Image")
        buffer = io.BytesIO()
        image.new("RGB", (60, 40), colour).save(buffer, "PNG")
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

    def test_answers_depend_on_the_image(self, seeing: Running) -> None:
        assert seeing.get("/v1/models").json()["data"][0]["supports_image_in"] is True
        texts = []
        for colour in ("red", "blue", "red"):
            response = seeing.post(messages=[self.message(self.png(colour))], temperature=0)
            assert response.status_code == 200, response.text
            texts.append(response.json()["choices"][0]["message"])
        assert texts[0] == texts[2] != texts[1]
        # 60 x 40 pixels are 3 x 2 visual tokens
        with_image = seeing.post("/v1/tokenize", messages=[self.message(self.png("red"))]).json()["tokens"]
        assert with_image.count(MEDIA_PAD) == 6

    def test_refusals(self, seeing: Running, server: Running) -> None:
        for url, words in (
            ("https://example.com/a.png", "data:image"),
            ("data:image/png;base64,AAAA", "format"),
        ):
            response = seeing.post(messages=[self.message(url)])
            assert response.status_code == 400 and words in response.json()["error"]["message"]
        response = server.post(messages=[self.message(self.png("red"))])
        assert response.status_code == 400 and "reads no images" in response.json()["error"]["message"]
        assert server.get("/v1/models").json()["data"][0]["supports_image_in"] is False
        system = {"role": "system", "content": self.message(self.png("red"))["content"]}
        assert seeing.post(messages=[system, USER]).status_code == 400
        assert seeing.post().status_code == 200


def test_nesting_without_end_is_a_bad_request(server: Running) -> None:
    url = server.url + "/v1/chat/completions"
    for body in (b"[" * 200_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000):
        assert httpx.post(url, content=body, headers=server.headers).status_code == 400
    call = {"name": "read", "arguments": '{"a":' * 5000 + "1" + "}" * 5000}
    asked = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": call}]}
    answer = server.post(messages=[USER, asked, {"role": "tool", "tool_call_id": "a", "content": "x"}])
    assert answer.status_code in (200, 400), answer.text


def test_a_schema_that_makes_no_sense_does_not_end_the_engine(server: Running) -> None:
    before = server.engine_pid()
    for parameters in ({"required": 5}, {"properties": 5}, {"properties": {"a": {"enum": [{}, [], None]}}}):
        tool = {"type": "function", "function": {"name": "x", "parameters": parameters}}
        answer = server.post(tools=[tool], tool_choice="required")
        assert answer.status_code in (200, 400), answer.text
    assert server.engine_pid() == before

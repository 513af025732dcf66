"""Programs of others drive the server: OpenAI's Python client, litellm, and the coding agent mini-swe-agent.

The latter two bring many packages, so they live in an environment of their own, which
`K3AGENT_TEST_CLIENTS` names (its folder); without it, or in another interpreter than that of these tests,
their tests are skipped.
"""

import base64
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.serving import KEY, MODEL, USER, Running

openai = pytest.importorskip("openai")

CLIENTS = Path(__file__).parent / "clients"
READ: Any = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
            "required": ["path"],
        },
    },
}
PLAN: Any = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "state": {"enum": ["new", "old"]}},
    "required": ["done", "state"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=120)


def with_call(client: Any, messages: list[Any]) -> tuple[int, Any]:
    """Seed and answer of a whole call; the model's words are random."""
    for seed in range(30):
        answer = client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=[READ],
            tool_choice="required",
            temperature=1,
            max_tokens=300,
            seed=seed,
        )
        if answer.choices[0].finish_reason == "tool_calls":
            return seed, answer
    raise AssertionError("no seed led to a whole call")


class TestOpenAI:
    def test_the_list_of_models(self, client: Any) -> None:
        (model,) = client.models.list().data
        assert (model.id, model.object, model.owned_by) == (MODEL, "model", "k3agent")

    def test_a_conversation_with_tools(self, client: Any) -> None:
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, USER]
        known = 0
        for _ in range(3):
            _, answer = with_call(client, messages)
            message = answer.choices[0].message
            assert isinstance(message.reasoning_content, str)
            assert all(call.function.name == "read" for call in message.tool_calls)
            assert all("path" in json.loads(call.function.arguments) for call in message.tool_calls)
            assert answer.usage.prompt_tokens_details.cached_tokens >= known - 200
            known = answer.usage.prompt_tokens
            messages.append(message)
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "main.py"} for call in message.tool_calls
            ]

    def test_a_stream_is_the_whole_answer_in_pieces(self, client: Any) -> None:
        seed, whole = with_call(client, [USER])
        with client.chat.completions.stream(
            model=MODEL,
            messages=[USER],
            tools=[READ],
            tool_choice="required",
            temperature=1,
            max_tokens=300,
            seed=seed,
            stream_options={"include_usage": True},
        ) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        assert "tool_calls.function.arguments.done" in kinds
        said, told = final.choices[0].message, whole.choices[0].message
        assert [c.function.arguments for c in said.tool_calls] == [
            c.function.arguments for c in told.tool_calls
        ]
        assert final.usage.completion_tokens == whole.usage.completion_tokens

    def test_content_that_fits_a_schema(self, client: Any) -> None:
        for seed in range(5):
            answer = client.chat.completions.create(
                model=MODEL,
                messages=[USER],
                temperature=1,
                max_tokens=400,
                seed=seed,
                response_format={"type": "json_schema", "json_schema": {"name": "plan", "schema": PLAN}},
            )
            choice = answer.choices[0]
            if choice.finish_reason == "stop":
                found = json.loads(choice.message.content)
                assert set(found) == {"done", "state"}
                assert found["done"] in (True, False) and found["state"] in ("new", "old")
                assert choice.message.content == json.dumps(found, separators=(",", ":"))
                return
        raise AssertionError("no seed led to a whole answer")

    def test_logprobs(self, client: Any) -> None:
        answer = client.chat.completions.create(
            model=MODEL, messages=[USER], max_tokens=200, seed=1, logprobs=True, top_logprobs=3
        )
        choice = answer.choices[0]
        text = choice.message.reasoning_content
        entries = choice.logprobs.reasoning_content
        assert b"".join(bytes(e["bytes"]) for e in entries).decode(errors="replace") == text
        assert all(e["logprob"] <= 0 and len(e["top_logprobs"]) == 3 for e in entries)
        content = b"".join(bytes(e.bytes) for e in choice.logprobs.content)
        assert content.decode(errors="replace") == (choice.message.content or "")

    def test_files(self, client: Any, seeing: Running) -> None:
        made = client.files.create(file=("notes.txt", "héllo".encode()), purpose="file-extract")
        assert (made.bytes, made.filename, made.status) == (6, "notes.txt", "processed")
        assert client.files.content(made.id).text == "héllo"
        assert [file.id for file in client.files.list().data] == [made.id]
        assert client.files.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="no images"):
            client.files.create(file=("a.png", b"x"), purpose="image")

        picture = pytest.importorskip("PIL.Image")
        buffer = io.BytesIO()
        picture.new("RGB", (60, 40), "red").save(buffer, "PNG")
        sighted = openai.OpenAI(base_url=seeing.url + "/v1", api_key=KEY, max_retries=0)
        image = sighted.files.create(file=("a.png", buffer.getvalue()), purpose="image")
        carried = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        told = []
        for url in (f"ms://{image.id}", carried):
            parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
            answer = sighted.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=8
            )
            told.append((answer.choices[0].message, answer.usage.prompt_tokens))
        assert told[0] == told[1]
        with pytest.raises(openai.BadRequestError, match="names no image"):
            parts[0]["image_url"] = {"url": "ms://nothing"}
            sighted.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])

    def test_errors_have_their_classes(self, client: Any, server: Running) -> None:
        ask = client.chat.completions.create
        with pytest.raises(openai.NotFoundError, match="not served here"):
            ask(model="gpt-x", messages=[USER])
        with pytest.raises(openai.BadRequestError, match="context length"):
            ask(model=MODEL, messages=[USER], max_tokens=100_000)
        with pytest.raises(openai.BadRequestError, match="invalid n"):
            ask(model=MODEL, messages=[USER], n=2)
        with pytest.raises(openai.BadRequestError, match="schema"):
            impossible = {"type": "string", "minLength": 5, "maxLength": 2}
            ask(
                model=MODEL,
                messages=[USER],
                stream=True,
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": impossible}},
            )
        stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="other", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def python_with(package: str) -> str:
    """An interpreter that can import a package; skips the test if there is none."""
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    folder = os.environ.get("K3AGENT_TEST_CLIENTS")
    if folder and (python := Path(folder) / "bin" / "python").exists():
        found = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False)
        if found.returncode == 0:
            return str(python)
    pytest.skip(f"{package} is not installed here, nor in an environment that K3AGENT_TEST_CLIENTS names")


def drive(python: str, script: str, server: Running) -> dict[str, Any]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, str(CLIENTS / script), server.url + "/v1", KEY, MODEL],
        capture_output=True,
        text=True,
        timeout=500,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
def test_litellm(server: Running) -> None:
    found = drive(python_with("litellm"), "talk_litellm.py", server)
    assert set(found["said"]) == {"openai", "hosted_vllm", "moonshot"}
    for said in found["said"].values():
        assert said["calls"] and set(said["calls"]) == {"read"}
        assert isinstance(said["reasoning"], str)
        assert said["cached_tokens"] > 100
        assert said["streamed"] == said["told"]
        assert said["streamed_usage"] > 0
    assert found["error"] == "NotFoundError"


@pytest.mark.timeout(600)
def test_a_coding_agent_of_others(server: Running) -> None:
    found = drive(python_with("minisweagent"), "work_mini_swe.py", server)
    assert found["end"] == "LimitsExceeded"
    assert found["questions"] == 12
    assert len(found["commands"]) == found["results"] >= 2
    # from the second answer on, most of what was said before is in the cache
    for known, cached in zip(found["prompt"], found["cached"][1:], strict=False):
        assert cached > known / 2

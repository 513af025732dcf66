"""`k3agent run` against real small models behind llama.cpp's own server.

What is asserted is how the product behaves, whatever the model says: calls are recovered from fenced JSON and
paired with results, the loop ends, there is one result line and its exit code, nothing outside the workspace
changes. How many tasks the model solved is written into a report and asserted nowhere.

Needs what `python scripts/foreign_model.py fetch MODEL` brings; K3AGENT_FOREIGN_MODELS names its folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.foreign_setup import (
    ROOT,
    TASKS,
    Call,
    JailedBench,
    Server,
    Task,
    calls_left_in,
    calls_of,
    fill,
    is_solved,
    outside_of,
    server_command,
    serving,
    texts_of,
    why_no_jail,
)
from support.headless import Ran

VARIABLE = "K3AGENT_FOREIGN_MODELS"
MODELS = {
    "0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}
MAX_TURNS = 6
LIMIT_S = 1500
# Done, the model gave up or went in circles, nobody could be asked, a limit.
GOOD_CODES = {0, 1, 3, 5}

pytestmark = pytest.mark.timeout(LIMIT_S + 100)


def _cache() -> Path:
    given = os.environ.get(VARIABLE)
    if not given:
        pytest.skip(f"{VARIABLE} is not set: `python scripts/foreign_model.py fetch 0.5b` brings a model")
    return Path(given)


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> str:
    file = _cache() / MODELS[request.param]
    if not file.exists():
        pytest.skip(f"{file} is absent: `python scripts/foreign_model.py fetch {request.param}` brings it")
    if why_no_jail():
        pytest.skip(why_no_jail())
    return request.param


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    command = server_command(model, _cache())
    with serving(command, environ=dict(os.environ), log=log, limit_s=300) as found:
        yield found


class Report:
    """Rows by model and task; written after every run, so that an interrupted run leaves what it has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, model: str, task: Task, ran: Ran, calls: list[Call], *, solved: bool) -> None:
        self.rows[model, task.name] = {
            "model": model, "task": task.name, "solved": solved, "exit_code": ran.code,
            "steps": ran.result["num_turns"], "calls": len(calls),
            "errors": sum(call.is_error for call in calls), "seconds": round(ran.took_s),
            "input_tokens": ran.result["usage"]["input_tokens"],
            "cached_tokens": ran.result["usage"]["cached_input_tokens"],
            "output_tokens": ran.result["usage"]["output_tokens"],
        }  # fmt: skip
        rows = list(self.rows.values())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        head = list(rows[0])
        lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        lines += ["| " + " | ".join(str(row[name]) for name in head) + " |" for row in rows]
        self._path.with_suffix(".md").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def report() -> Report:
    return Report(ROOT / "build" / "foreign" / "report")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_run_keeps_its_promises(
    model: str, server: Server, task: Task, report: Report, tmp_path: Path
) -> None:
    # Small models run away: without a limit an answer goes on to the end of the window.
    extra = {"K3AGENT_MAX_OUTPUT_TOKENS": "400", "NO_PROXY": "*"}
    bench = JailedBench(tmp_path / "run", server.url, extra, server=server)
    fill(bench)
    before = outside_of(bench)
    ran = bench.stream(
        task.prompt, "--max-turns", str(MAX_TURNS), "--max-time", str(LIMIT_S - 200), timeout_s=LIMIT_S
    )
    (bench.root / "stream.jsonl").write_text(ran.out)

    result = ran.result  # exactly one, the last line, with the process's exit code
    assert ran.code in GOOD_CODES, f"{ran.err[-2000:]}\n{result}"
    assert result["num_turns"] <= MAX_TURNS
    assert "Traceback" not in ran.err
    assert "crashed" not in ran.err
    calls = calls_of(ran)  # each with exactly one result
    tools = next(line for line in ran.lines if line["type"] == "system")["tools"]
    left = [call for text in texts_of(ran) for call in calls_left_in(text, tools)]
    assert not left, "calls of offered tools were left in the text"
    assert all("unknown tool" not in call.result for call in calls if call.tool in tools)
    assert {name: text for name, text in outside_of(bench).items() if name != "stream.jsonl"} == before
    report.add(model, task, ran, calls, solved=is_solved(task, ran, bench))


def test_calls_were_recovered_and_the_prompt_was_cached(model: str, report: Report) -> None:
    """Over all tasks: this server parses no calls, so every call that ran was read from the text."""
    rows = [row for (name, _), row in report.rows.items() if name == model]
    if len(rows) < len(TASKS):
        pytest.skip("not all tasks ran")
    assert sum(row["calls"] for row in rows) > 0
    if model != "0.5b":  # which mostly names tools that are not there
        assert sum(row["calls"] - row["errors"] for row in rows) > 0
    assert sum(row["cached_tokens"] for row in rows) > sum(row["input_tokens"] for row in rows) / 2

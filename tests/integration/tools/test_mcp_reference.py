"""The reference servers of PyPI and npm, where they are installed: by `make references`, or on PATH."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.headless import Bench, make_bench
from support.runs import served

from k3agent.providers.scripted import ScriptedCall, Step

REFERENCES = Path(__file__).resolve().parents[3] / "build" / "references"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


def use(bench: Bench, name: str, *args: str) -> None:
    places = [REFERENCES / "bin", REFERENCES / "npm" / "node_modules" / ".bin"]
    program = shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ["PATH"]]))
    if program is None:
        pytest.skip(f"{name} is not installed: `make references` brings it")
    folder = bench.root / "config" / "k3agent"
    folder.mkdir(parents=True)
    entry = {"command": program, "args": list(args), "start_timeout_s": 120}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"ref": entry}}))


def ask(bench: Bench, *calls: tuple[str, Any]) -> list[Any]:
    steps = [
        Step(
            calls=(
                ScriptedCall(
                    name="mcp", arguments={"server": "ref", "tool": tool, "arguments": json.dumps(arguments)}
                ),
            )
        )
        for tool, arguments in calls
    ]
    with served(bench, [*steps, Step(text="done")]) as server:
        ran = bench.stream("go", "--allow", "mcp__ref__*", timeout_s=200)
    assert ran.result["subtype"] == "success", ran.err
    return [
        message["content"] for message in server.requests[-1].json["messages"] if message["role"] == "tool"
    ]


def test_git(bench: Bench) -> None:
    use(bench, "mcp-server-git", "--repository", str(bench.workspace))
    status, wrong = ask(
        bench,
        ("git_status", {"repo_path": str(bench.workspace)}),
        ("git_status", {"repo_path": "/nowhere"}),
    )
    assert "a.txt" in status
    assert wrong.startswith("Error")


def test_everything(bench: Bench) -> None:
    use(bench, "mcp-server-everything")
    echo, total, picture, long, environment = ask(
        bench,
        ("echo", {"message": "hello"}),
        ("get-sum", {"a": 2, "b": 3}),
        ("get-tiny-image", {}),
        ("trigger-long-running-operation", {"duration": 2, "steps": 2}),
        ("get-env", {}),
    )
    assert "hello" in echo
    assert "5" in total
    assert any(part["type"] == "image_url" for part in picture)
    assert "completed" in long.lower()
    assert "K3AGENT_HOME" in environment


def test_filesystem(bench: Bench) -> None:
    use(bench, "mcp-server-filesystem", str(bench.workspace))
    text, written, outside = ask(
        bench,
        ("read_text_file", {"path": str(bench.workspace / "a.txt")}),
        ("write_file", {"path": str(bench.workspace / "b.txt"), "content": "made by a server\n"}),
        ("read_text_file", {"path": "/etc/hostname"}),
    )
    assert "two" in text
    assert not written.startswith("Error")
    assert (bench.workspace / "b.txt").read_text() == "made by a server\n"
    assert outside.startswith("Error")
    # What a server wrote can be taken back.
    undone = bench.run("undo", "--yes")
    assert undone.code == 0, undone.err
    assert not (bench.workspace / "b.txt").exists()

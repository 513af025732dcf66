"""`k3agent mcp serve` with the official client at its other end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the official client is not installed")

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from support.headless import Bench, make_bench
from support.runs import ANSWER, served, task

from k3agent.providers.scripted import Step


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@contextlib.asynccontextmanager
async def client(bench: Bench, *flags: str) -> AsyncIterator[ClientSession]:
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "k3agent.cli", "mcp", "serve", "--base-url", bench.url, *flags],
        env=bench.environ,
        cwd=bench.workspace,
    )
    async with stdio_client(program) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        yield session


def told(result: Any) -> dict[str, Any]:
    assert not result.is_error, result
    return result.structured_content or {}


async def test_a_task_is_run_and_its_session_gone_on_with(bench: Bench) -> None:
    with served(bench, [*task(), Step(text="It is TWO."), Step(text="Still TWO.")]) as server:
        async with client(bench) as session:
            tools = await session.list_tools()
            assert [tool.name for tool in tools.tools] == ["run", "resume", "status"]
            done = told(await session.call_tool("run", {"prompt": "make two into TWO"}))
            assert (done["state"], done["answer"]) == ("success", ANSWER)
            assert done["files_changed"] == ["a.txt"]
            more = told(
                await session.call_tool("resume", {"session_id": done["session_id"], "prompt": "What is it?"})
            )
            assert more["answer"] == "It is TWO."
            # It is closed between the calls: other programs can have it.
            ran = await asyncio.to_thread(bench.run, "run", "And now?", "--resume", done["session_id"])
            assert ran.code == 0, ran.err
            listed = told(await session.call_tool("status", {}))
            assert [row["session_id"] for row in listed["sessions"]] == [done["session_id"]]
        async with client(bench) as session:
            status = told(await session.call_tool("status", {"session_id": done["session_id"]}))
            assert (status["state"], status["answer"]) == ("success", "Still TWO.")
    assert (bench.workspace / "a.txt").read_text() == "one\nTWO\nthree\n"
    earlier, later = server.requests[3].json["messages"], server.requests[4].json["messages"]
    assert later[: len(earlier)] == earlier


async def test_work_in_the_background_is_asked_about(bench: Bench) -> None:
    slow = Step(text="at last", piece=1, piece_delay_s=0.2)
    with served(bench, [slow]):
        async with client(bench) as session:
            begun = told(await session.call_tool("run", {"prompt": "take your time", "background": True}))
            assert begun["state"] == "running"
            busy = await session.call_tool("resume", {"session_id": begun["session_id"], "prompt": "more"})
            assert busy.is_error
            status = begun
            for _ in range(200):
                status = told(await session.call_tool("status", {"session_id": begun["session_id"]}))
                if status["state"] != "running":
                    break
                await asyncio.sleep(0.1)
            assert (status["state"], status["answer"]) == ("success", "at last")


async def test_what_is_wrong_or_outside_is_refused(bench: Bench) -> None:
    with served(bench, [Step(text="fine")]):
        async with client(bench, "--permission-mode", "plan") as session:
            for tool, arguments, words in (
                ("run", {}, "prompt"),
                ("run", {"prompt": "x", "cwd": ".."}, "outside"),
                ("run", {"prompt": "x", "cwd": "no-such"}, "not a folder"),
                ("run", {"prompt": "x", "max_turns": 0}, "max_turns"),
                ("resume", {"session_id": "nothing"}, "nothing"),
            ):
                result = await session.call_tool(tool, arguments)
                assert result.is_error, (tool, arguments)
                assert words in str(result.content) or words == "max_turns"

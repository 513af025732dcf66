"""Programs that mean harm: floods, bombs, words that a terminal obeys, children that hold the output open."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from k3agent.errors import ToolError
from k3agent.tools.mcp import catalog, server, transport
from k3agent.tools.mcp.bridge import output_of
from k3agent.tools.support.processes import SessionLog
from k3agent.types import ServerSpec

ODD = "\x1b[31mRED\x07\u202e"
LOOP = """
import json, os, sys, time
ODD = "\\x1b[31mRED\\x07\\u202e"
def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()
TOOLS = [{"name": "t", "description": "d", "inputSchema": {"type": "object"}}]
for line in sys.stdin:
    told = json.loads(line)
    number, method = told.get("id"), told.get("method")
    if method == "initialize":
        info = {"name": ODD, "version": "\\ud800"}
        say(id=number, result={"protocolVersion": "2025-11-25", "serverInfo": info, "capabilities": {}})
    elif method == "tools/list":
        say(id=number, result={"tools": TOOLS})
"""


def hostile(tmp_path: Path, then: str, after: str = "") -> server.Server:
    """A server that does `then` for a call and `after` when its input closes."""
    script = tmp_path / "server.py"
    call = '    elif method == "tools/call":\n' + textwrap.indent(textwrap.dedent(then), " " * 8)
    script.write_text(LOOP + call + "\n" + textwrap.dedent(after))
    spec = ServerSpec(name="s", command=sys.executable, args=(str(script),), call_timeout_s=3)
    return server.Server(
        spec, environ=os.environ, cwd=tmp_path, open_http=no_http, processes=SessionLog(tmp_path)
    )


def no_http(*_: Any) -> transport.Transport:
    raise AssertionError("it is a program")


async def test_words_of_a_server_are_bounded_and_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    one = hostile(tmp_path, 'say(id=number, error={"code": 1, "message": ODD + "x" * 1_000_000})')
    with pytest.raises(ToolError) as caught:
        await one.call("t", {}, lambda text: None)
    assert "RED" in str(caught.value) and len(str(caught.value)) < 5_000
    assert "RED" in one.info
    for text in (str(caught.value), one.info):
        assert not set(text) & set("\x1b\x07\u202e\ud800")
    await one.aclose()


async def test_a_flood_of_progress_is_thinned(tmp_path: Path) -> None:
    then = """
    token = told["params"]["_meta"]["progressToken"]
    for step in range(20_000):
        say(method="notifications/progress", params={"progressToken": token, "progress": 1, "message": ODD})
    say(id=number, result={"content": [{"type": "text", "text": "done \\ud800"}]})
    """
    one, heard, begun = hostile(tmp_path, then), list[str](), time.monotonic()
    result = await one.call("t", {}, heard.append)
    most = (time.monotonic() - begun) / server.REPORT_S + 2
    assert 1 <= len(heard) <= most and "\x1b" not in heard[0]
    assert output_of(result).text == "done ?"
    await one.aclose()


async def test_a_child_that_holds_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    after = """
    if os.fork() == 0:
        os.setsid()
        open("child", "w").write(str(os.getpid()))
    time.sleep(600)
    """
    one = hostile(tmp_path, "pass", after)
    one.start()
    await one.ready()
    try:
        await asyncio.wait_for(one.aclose(), 60)
    finally:
        os.kill(int((tmp_path / "child").read_text()), 9)


async def test_changes_of_the_list_without_end_are_taken_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LIST_AGAIN_S", 0.3)
    then = """
    for _ in range(5_000):
        say(method="notifications/tools/list_changed")
    say(id=number, result={"content": []})
    """
    one = hostile(tmp_path, then)
    lists = 0
    listed = one._list

    async def counted() -> None:
        nonlocal lists
        lists += 1
        await listed()

    monkeypatch.setattr(one, "_list", counted)
    begun = time.monotonic()
    await one.call("t", {}, lambda text: None)
    await asyncio.sleep(0.1)
    assert lists <= (time.monotonic() - begun) / server.LIST_AGAIN_S + 2
    await one.aclose()


async def test_a_change_that_is_told_of_while_the_list_comes_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LIST_AGAIN_S", 0.01)
    then = """
    TOOLS.append({"name": "second"})
    say(method="notifications/tools/list_changed")
    say(id=number, result={"content": []})
    """
    one = hostile(tmp_path, then)
    # The third tool comes when the second list has been read, and before it is sent.
    script = tmp_path / "server.py"
    script.write_text(
        script.read_text().replace(
            'say(id=number, result={"tools": TOOLS})',
            "told_of = list(TOOLS)\n"
            "        if len(TOOLS) == 2:\n"
            '            TOOLS.append({"name": "third"})\n'
            '            say(method="notifications/tools/list_changed")\n'
            '        say(id=number, result={"tools": told_of})',
        )
    )
    is_whole = asyncio.Event()
    monkeypatch.setattr(one, "_on_change", lambda _: is_whole.set() if len(one.tools) == 3 else None)
    await one.call("t", {}, lambda text: None)
    await asyncio.wait_for(is_whole.wait(), 60)
    assert [tool.tool for tool in one.tools] == ["second", "t", "third"]
    await one.aclose()


async def test_a_program_that_reads_nothing_of_much_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_UNREAD_BYTES", 1 << 20)
    ended: asyncio.Queue[str] = asyncio.Queue()
    spec = ServerSpec(name="deaf", command="sleep", args=("600",))
    program = transport.ProgramTransport(
        spec, os.environ, tmp_path, lambda _: None, ended.put_nowait, SessionLog(tmp_path)
    )
    await program.start()
    for _ in range(40):
        program.send({"text": "x" * 100_000})
    assert "has not read" in await asyncio.wait_for(ended.get(), 60)
    await program.aclose()


def test_a_schema_that_is_too_long_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    plain = catalog._plain

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal looked
        looked += 1
        return plain(*args, **more)

    monkeypatch.setattr(catalog, "_plain", counted)
    wide = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(1_000)}}
    bomb = {"type": "object", "properties": {f"p{at}": {"title": "w " * 50} for at in range(5_000)}}
    tools = [{"name": f"wide{at}", "inputSchema": wide} for at in range(100)]
    found = catalog.listed("s", [{"name": "a", "inputSchema": bomb}, *tools])
    assert len(found) == 101 and looked < 200_000
    assert found[0].spec.parameters == {"type": "object", "properties": {}, "additionalProperties": True}


def test_no_number_that_json_lacks_is_passed_on() -> None:
    schema = json.loads(
        '{"type": "object", "properties": {"a":'
        ' {"maximum": NaN, "minimum": 1e999, "enum": [1, -1e999], "type": "number"}}}'
    )
    (tool,) = catalog.listed("s", [{"name": "t", "inputSchema": schema}])
    assert tool.spec.parameters["properties"] == {"a": {"enum": [1], "type": "number"}}

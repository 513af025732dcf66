"""Servers with an address: the official SDK's own, with and without a login."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("mcp", reason="the official SDK is not installed")

from support import mcp_servers
from support.headless import Bench, make_bench
from support.runs import served

from k3agent.providers.scripted import ScriptedCall, Step

SERVER = Path(mcp_servers.__file__).with_name("mcp_http_server.py")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def far(*flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    port = free_port()
    command = [sys.executable, str(SERVER), str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError, httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/none", timeout=2)
                break
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def configure(bench: Bench, url: str, **more: Any) -> None:
    folder = bench.root / "config" / "k3agent"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mcp.json").write_text(
        json.dumps({"mcpServers": {"far": {"type": "http", "url": url, **more}}})
    )


def call(tool: str, **arguments: Any) -> Step:
    text = json.dumps(arguments)
    return Step(
        calls=(ScriptedCall(name="mcp", arguments={"server": "far", "tool": tool, "arguments": text}),)
    )


def results(server: Any) -> list[str]:
    return [
        message["content"] for message in server.requests[-1].json["messages"] if message["role"] == "tool"
    ]


@pytest.mark.parametrize("flags", [(), ("--json",), ("--sse",)])
def test_tools_behind_an_address_are_listed_and_called(bench: Bench, flags: tuple[str, ...]) -> None:
    with far(*flags) as (url, _):
        configure(bench, url, type="sse" if "--sse" in flags else "http")
        (entry,) = json.loads(bench.run("mcp", "list", "--json").out)
        assert (entry["status"], entry["tools"]) == ("ready", 3)
        with served(
            bench, [call("add", a=2, b=3), call("slow"), call("add", a="x"), Step(text="done")]
        ) as server:
            ran = bench.stream("go", "--allow", "mcp__far__*")
    assert ran.result["subtype"] == "success"
    added, slow, wrong = results(server)
    assert added == "5"
    assert slow == "slow but done"
    assert wrong.startswith("Error")


@pytest.mark.parametrize("kind", ["http", "sse"])
def test_tools_that_come_during_a_session_are_told_of_at_its_end(bench: Bench, kind: str) -> None:
    with far(*(["--sse"] if kind == "sse" else [])) as (url, _):
        configure(bench, url, type=kind)
        assert bench.run("mcp", "test", "far").code == 0
        steps = [
            Step(calls=(ScriptedCall(name="mcp__far__grow"),)),
            Step(calls=(ScriptedCall(name="shell", arguments={"command": "sleep 2"}),)),
            call("newcomer"),
            Step(text="done"),
        ]
        with served(bench, steps) as server:
            bench.stream("go", "--allow", "mcp__far__*")
    first, last = server.requests[0].json, server.requests[-1].json
    assert last["tools"] == first["tools"]
    assert last["messages"][: len(first["messages"])] == first["messages"]
    told = [m for m in last["messages"] if "Tools of the MCP server far" in str(m.get("content"))]
    assert len(told) == 1 and "newcomer" in str(told[0]) and "add" not in str(told[0]["content"]).split()
    assert results(server)[-1] == "new"


def test_a_server_that_is_gone_fails_its_call_alone(bench: Bench) -> None:
    configure(bench, f"http://127.0.0.1:{free_port()}/mcp")
    with served(bench, [call("add", a=1, b=1), Step(text="done")]) as server:
        ran = bench.stream("go", "--allow", "mcp__far__*")
    assert ran.result["subtype"] == "success"
    assert "cannot be reached" in results(server)[0]


def test_an_older_server_that_is_gone_or_is_none_is_told(bench: Bench) -> None:
    assert bench.run("mcp", "add", "old", "--sse", "--url", f"http://127.0.0.1:{free_port()}/sse").code == 0
    assert "cannot be reached" in bench.run("mcp", "list").out
    with far() as (url, _):
        configure(bench, url, type="sse", start_timeout_s=5)
        said = bench.run("mcp", "test", "far")
    assert said.code == 1 and "no stream of events" in said.out + said.err


def test_an_older_server_that_ends_in_a_session_fails_its_calls(bench: Bench) -> None:
    with far("--sse") as (url, process):
        configure(bench, url, type="sse")
        kill = Step(calls=(ScriptedCall(name="shell", arguments={"command": "sleep 2"}),))
        with served(bench, [call("add", a=2, b=3), kill, call("add", a=1, b=1), Step(text="done")]) as server:
            running = bench.start("run", "go", "--allow", "mcp__far__*", "--output-format", "json")
            end = time.monotonic() + 100
            while len(server.requests) < 2 and time.monotonic() < end:
                time.sleep(0.05)
            process.kill()
            out, _ = running.communicate(timeout=100)
    assert json.loads(out.splitlines()[-1])["subtype"] == "success"
    first, _, last = results(server)
    assert first == "5" and "cannot be" in last


def test_an_older_server_cannot_send_messages_elsewhere(bench: Bench) -> None:
    """Its first event names the address for calls, and tokens go there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
                peer.sendall(f"{head}event: endpoint\ndata: http://127.0.0.2:{port}/take\n\n".encode())
                peer.recv(1)

        threading.Thread(target=answer, daemon=True).start()
        configure(bench, f"http://127.0.0.1:{port}/sse", type="sse")
        said = bench.run("mcp", "test", "far")
    assert said.code == 1 and "messages at another server" in said.out + said.err


def sign_in(bench: Bench) -> subprocess.Popen[str]:
    """`k3agent mcp login`, with a browser that does as it is told."""
    process = bench.start("mcp", "login", "far", "--no-browser")
    assert process.stdout is not None
    lines: list[str] = []

    def browse() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("http"):
                urllib.request.urlopen(line.strip(), timeout=30).read()

    reader = threading.Thread(target=browse)
    reader.start()
    process.wait(60)
    reader.join(10)
    assert "Signed in to far." in "".join(lines), process.stderr.read() if process.stderr else ""
    return process


def test_a_login_is_asked_for_kept_and_renewed(bench: Bench) -> None:
    with far("--login", "--ends-in", "31") as (url, process):
        configure(bench, url)
        (entry,) = json.loads(bench.run("mcp", "list", "--json").out)
        assert entry["status"] == "login"
        with served(bench, [call("add", a=1, b=1), Step(text="done")]) as server:
            bench.stream("go", "--allow", "mcp__far__*")
        assert "k3agent mcp login far" in results(server)[0]

        signed = sign_in(bench)
        assert signed.returncode == 0
        kept = bench.home / "keys.json"
        assert kept.stat().st_mode & 0o777 == 0o600
        with served(bench, [call("add", a=2, b=2), Step(text="done")]) as server:
            bench.stream("go", "--allow", "mcp__far__*")
        assert results(server) == ["4"]
        # Its end is so near by now that it is renewed first.
        time.sleep(2)
        (entry,) = json.loads(bench.run("mcp", "list", "--json").out)
        assert entry["status"] == "ready"
        process.kill()
        assert process.stdout is not None
        assert "renewed" in process.stdout.read()
    assert bench.run("mcp", "logout", "far").code == 0
    assert bench.run("mcp", "logout", "far").code == 2


def test_a_token_of_another_address_is_not_sent(bench: Bench) -> None:
    with far("--login") as (url, _):
        configure(bench, url)
        sign_in(bench)
        configure(bench, url.replace("127.0.0.1", "localhost"))
        (entry,) = json.loads(bench.run("mcp", "list", "--json").out)
        assert entry["status"] == "login"

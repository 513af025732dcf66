"""`k3agent run` when it is stopped: one result line, no child left, and the session goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from support.headless import Bench, Ran
from support.runs import EDIT, READ, alive, check_done, check_history, served, task, wait_for

from k3agent.providers.scripted import ScriptedCall, Step
from k3agent.tools.support.processes import members


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("moment", ["streaming", "in a command"])
def test_signal_ends_with_one_result(bench: Bench, signum: signal.Signals, code: int, moment: str) -> None:
    slow = Step(text="x" * 3000, piece=1, piece_delay_s=0.05)
    command = ScriptedCall(name="shell", arguments={"command": "echo $$ > pid; sleep 600"})
    steps = [Step(calls=(READ,)), slow if moment == "streaming" else Step(calls=(command,))]
    with served(bench, steps) as server:
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        wait_for(lambda: len(server.requests) == 2)
        if moment == "in a command":
            wait_for(
                lambda: (bench.workspace / "pid").exists() and (bench.workspace / "pid").read_text().strip()
            )
        time.sleep(0.2)
        process.send_signal(signum)
        time.sleep(0.01)
        # A wrapper sends it once more.
        process.send_signal(signum)
        # Far less than the command would take.
        out, err = process.communicate(timeout=100)
    ran = Ran(code=process.returncode, out=out, err=err, took_s=0)
    assert ran.code == code, out + err
    assert ran.result["subtype"] == "interrupted"
    if moment == "in a command":
        pid = int((bench.workspace / "pid").read_text())
        wait_for(lambda: not alive(pid))
    with served(bench, task()[1:]) as server:
        check_done(bench, bench.stream("Go on.", "--resume", ran.result["session_id"]))
    check_history(server)


def test_kill_9_in_a_command_then_resume_ends_the_same(bench: Bench) -> None:
    command = ScriptedCall(name="shell", arguments={"command": "touch started; sleep 30"})
    steps = [Step(calls=(READ,)), Step(calls=(EDIT,)), Step(calls=(command,))]
    with served(bench, steps):
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        wait_for(lambda: (bench.workspace / "started").exists())
        process.kill()
        out, _ = process.communicate(timeout=10)
    session_id = json.loads(out.splitlines()[0])["session_id"]
    with served(bench, task()[2:]) as server:
        ran = bench.run("run", "--resume", session_id, "--output-format", "stream-json")
    result = check_done(bench, ran)
    assert result["session_id"] == session_id
    check_history(server)
    texts = json.dumps(server.requests[0].json["messages"])
    assert texts.count("Go.") == 1


def test_kill_9_while_streaming_then_resume(bench: Bench) -> None:
    steps = [Step(calls=(READ,)), Step(text="x" * 3000, piece=1, piece_delay_s=0.05)]
    with served(bench, steps) as server:
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        wait_for(lambda: len(server.requests) == 2)
        time.sleep(0.3)
        process.kill()
        out, _ = process.communicate(timeout=10)
    session_id = json.loads(out.splitlines()[0])["session_id"]
    with served(bench, task()[1:]) as server:
        check_done(bench, bench.run("run", "--resume", session_id, "--output-format", "stream-json"))
    check_history(server)


def test_signal_before_the_first_request(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bench.url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        silent.settimeout(20)
        connection, _ = silent.accept()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        connection.close()
    ran = Ran(code=process.returncode, out=out, err=err, took_s=0)
    assert ran.code == 130, out + err
    assert ran.result["subtype"] == "interrupted"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_while_modules_load(bench: Bench, signum: signal.Signals, code: int) -> None:
    with served(bench, [Step(text="never", delay_s=20)]):
        process = bench.start("run", "Go.", "--output-format", "json")
        wait_for(lambda: catches(process.pid, signal.SIGTERM))
        process.send_signal(signum)
        out, err = process.communicate(timeout=10)
    ran = Ran(code=process.returncode, out=out, err=err, took_s=0)
    assert ran.code == code, out + err
    assert ran.result["subtype"] == "interrupted"
    assert f"signal {signum.name}" in ran.result["result"]


def catches(pid: int, signum: signal.Signals) -> bool:
    """Does this process have a handler of its own for the signal?"""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(mask & 1 << (signum - 1))


def test_nohup_is_respected(bench: Bench) -> None:
    with served(bench, [Step(text="x" * 60, piece=1, piece_delay_s=0.03)]) as server:
        command = ["nohup", *bench.command("run", "Go.", "--output-format", "json")]
        process = subprocess.Popen(
            command, cwd=bench.workspace, env=bench.environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda: len(server.requests) == 1)
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=20)
    assert Ran(code=process.returncode, out=out, err="", took_s=0).result["subtype"] == "success"


def converse(process: subprocess.Popen[str], workspace: Path, server: str) -> None:
    """Say to `k3agent acp` or `k3agent mcp serve` that it shall go to work."""

    def ask(method: str, params: dict[str, object]) -> None:
        assert process.stdin is not None
        line = json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
        process.stdin.write(f"{line}\n")
        process.stdin.flush()

    def answer(method: str) -> dict:
        assert process.stdout is not None
        return next(told["result"] for told in map(json.loads, process.stdout) if told.get("id") == method)

    if server == "acp":
        ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        ask("session/new", {"cwd": str(workspace), "mcpServers": []})
        words = [{"type": "text", "text": "Go."}]
        ask("session/prompt", {"sessionId": answer("session/new")["sessionId"], "prompt": words})
    else:
        about = {"name": "test", "version": "1"}
        ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about})
        answer("initialize")
        ask("tools/call", {"name": "run", "arguments": {"prompt": "Go."}})


@pytest.mark.parametrize("server", ["acp", "mcp serve"])
@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_a_server_ends_with_who_uses_it(bench: Bench, server: str, closed: str) -> None:
    command = ScriptedCall(name="shell", arguments={"command": "touch started; sleep 600"})
    with served(bench, [Step(calls=(command,))]) as endpoint:
        words = [*server.split(), "--base-url", endpoint.url, "--permission-mode", "auto"]
        process = bench.start(*words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        converse(process, bench.workspace, server)
        wait_for(lambda: (bench.workspace / "started").exists(), 60)
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        children = [int(one) for one in listed.split()]
        assert children
        getattr(process, closed).close()
        assert process.wait(60) == 0
        wait_for(lambda: not any(map(alive, children)), 60)


@pytest.mark.parametrize("closed", ["while it loads", "SIGHUP"])
def test_the_model_server_leaves_nothing(bench: Bench, closed: str, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    process = bench.start(
        "serve", "--port", "0", "--state-file", str(state), stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout is not None
    if closed == "SIGHUP":
        assert process.stdout.readline().startswith("http")
        # As the terminal does it: to all of the group.
        os.killpg(process.pid, signal.SIGHUP)
    else:
        process.stdout.close()
    assert process.wait(120) == 0
    assert not state.exists()
    wait_for(lambda: not members(process.pid), 60)

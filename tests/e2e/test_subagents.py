"""`k3agent run` with subagents: killed in the middle of one, it goes on with the same subagent."""

from __future__ import annotations

import json

from support.headless import Bench
from support.runs import served, wait_for

from k3agent.providers.scripted import Fault, ScriptedCall, Step

READ = ScriptedCall(name="read", arguments={"path": "a.txt"})
TASK = ScriptedCall(
    name="task", arguments={"tasks": [{"title": "look", "brief": "Say what a.txt holds.", "mode": "write"}]}
)
SLOW = ScriptedCall(name="shell", arguments={"command": "touch started; sleep 30"})
ANSWER = Step(text="One, two and three.")
END = Step(text="It holds one, two, three.")


def test_a_subagents_lines_carry_the_call_and_its_cost_is_shown(bench: Bench) -> None:
    with served(bench, [Step(calls=(TASK,)), Step(calls=(READ,)), ANSWER, END]):
        ran = bench.stream("Go.")
    result = ran.result
    assert (result["subtype"], result["num_turns"]) == ("success", 4)
    call_id = next(
        block["id"]
        for line in ran.lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
        if block["type"] == "tool_use" and block["name"] == "task"
    )
    own = [line for line in ran.lines if line.get("parent_tool_use_id", "") == call_id and "message" in line]
    assert [line["type"] for line in own if line["type"] == "assistant"] == ["assistant"] * 2
    states = [line["state"] for line in ran.lines if line.get("subtype") == "task"]
    assert states[0] == "waiting" and states[-1] == "done"
    listed = bench.run("tasks", "list", result["session_id"], "--json")
    task = json.loads(listed.out)["tasks"][0]
    assert (task["state"], task["answer"], task["num_turns"]) == ("done", "One, two and three.", 2)
    shown = bench.run("tasks", "show", result["session_id"], "1")
    assert "Say what a.txt holds." in shown.out
    assert "budget    60 model calls, 2,000,000 tokens, $2" in shown.out
    # The newest session is the user's own, not the subagent's.
    assert bench.run("tasks", "list").out.splitlines()[0].startswith(f"session {result['session_id']}")
    assert len(bench.run("sessions", "list").out.splitlines()) == 1
    assert len(bench.run("sessions", "list", "--subagents").out.splitlines()) == 2


def test_kill_9_in_a_subagent_then_resume_goes_on_with_it(bench: Bench) -> None:
    with served(bench, [Step(calls=(TASK,)), Step(calls=(READ,)), Step(calls=(SLOW,))]):
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        wait_for(lambda: (bench.workspace / "started").exists())
        process.kill()
        out, _ = process.communicate(timeout=30)
    lines = [json.loads(line) for line in out.splitlines()]
    session_id = lines[0]["session_id"]
    child = next(line["task_session_id"] for line in lines if line.get("subtype") == "task")
    with served(bench, [ANSWER, END]) as server:
        ran = bench.run("run", "--resume", session_id, "--output-format", "stream-json")
    assert ran.result["subtype"] == "success" and ran.result["result"] == "It holds one, two, three."
    assert {line["task_session_id"] for line in ran.lines if line.get("subtype") == "task"} == {child}
    texts = json.dumps(server.requests[0].json["messages"])
    assert texts.count("Say what a.txt holds.") == 1 and "Its outcome is unknown" in texts
    assert "One, two and three." in json.dumps(server.requests[1].json["messages"])


def test_a_key_that_stops_working_pauses_the_tree_with_its_exit_code(bench: Bench) -> None:
    broken = Step(text="x", faults=(Fault(kind="status", status=401, times=-1),))
    with served(bench, [Step(calls=(TASK,)), Step(calls=(READ,)), broken]):
        ran = bench.stream("Go.")
    assert ran.code == 41 and ran.result["subtype"] == "error_provider"
    assert [line["state"] for line in ran.lines if line.get("subtype") == "task"][-1] == "paused"
    with served(bench, [ANSWER, END]) as server:
        again = bench.run("run", "--resume", ran.result["session_id"], "--output-format", "stream-json")
    assert again.result["subtype"] == "success" and len(server.requests) == 2
